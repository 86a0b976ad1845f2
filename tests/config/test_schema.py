"""default.yaml and schema.json say what the structs say."""

import json
from collections.abc import Iterator
from importlib.resources import files

import msgspec

from config.check import convert
from config.document import parse
from config.errors import Source
from config.mcp import McpConfig
from config.nodes import NodeConfig
from config.schema import descriptions, documentation, schema, uncommented
from config.settings import Config, KeyConfig, ModelConfig
from config.shape import Kind, is_section, options
from config.upstreams import UpstreamConfig
from tests.every import for_every

PLAIN = documentation()
WITH_EXAMPLES = uncommented(PLAIN)


def written(text: str) -> Kind:
    data, _ = parse(text, "default.yaml")
    return data


def missing(data: Kind, section: Kind, path: str = "$") -> Iterator[str]:
    """Options of `section` that `data` doesn't write."""
    for name, kind in options(section).items():
        if name not in data:
            yield f"{path}.{name}"
        elif is_section(kind):
            yield from missing(data[name], kind, f"{path}.{name}")


def test_every_default_written_is_the_default() -> None:
    assert convert(written(PLAIN), Config, Source("default.yaml")) == Config()


def test_every_option_is_written() -> None:
    data = written(WITH_EXAMPLES)

    assert list(missing(data, Config)) == []
    assert list(missing(data["keys"][0], KeyConfig)) == []
    assert list(missing(data["models"][0], ModelConfig)) == []
    assert list(missing(data["upstreams"][0], UpstreamConfig)) == []


def test_the_examples_are_valid_and_show_the_defaults() -> None:
    config = convert(written(WITH_EXAMPLES), Config, Source("default.yaml"))

    assert config.keys == (KeyConfig(key="env:MY_ROUNDHOUSE_KEY"),)
    assert config.models == (ModelConfig(name="qwen3-8b", path="models/Qwen3-8B-Q4_K_M.gguf"),)
    (cluster,) = config.upstreams
    assert cluster == UpstreamConfig(name="cluster", urls=("http://127.0.0.1:8001/v1",))
    box = NodeConfig(name="box2", address="box2.lan:7000", token="env:BOX2_TOKEN")
    assert config.nodes == (box,)
    assert config.mcp == (McpConfig(name="search", url="https://mcp.example.com/mcp"),)
    assert (
        msgspec.structs.replace(config, keys=(), models=(), upstreams=(), nodes=(), mcp=())
        == Config()
    )


@for_every(("path", "description"), sorted(descriptions(PLAIN).items()))
def test_every_option_has_its_reason(path: str, description: str) -> None:
    assert description.endswith((".", "}.")), path


def test_the_first_line_leads_editors_to_the_schema() -> None:
    assert PLAIN.splitlines()[0] == "# yaml-language-server: $schema=schema.json"


def test_the_schema_is_up_to_date() -> None:
    """If this fails: `make schema`."""
    stored = json.loads(files("config").joinpath("schema.json").read_text(encoding="utf-8"))

    assert stored == json.loads(json.dumps(schema()))


def test_the_schema_describes_and_refuses() -> None:
    definitions = schema()["$defs"]

    assert definitions["ServerConfig"]["properties"]["port"]["description"].startswith("The port")
    assert definitions["ServerConfig"]["additionalProperties"] is False
    assert "llamacpp" in definitions["ModelConfig"]["properties"]["backend"]["enum"]
