"""What a person who writes of other machines may rely on."""

from pathlib import Path

import pytest

from config.changes import masked
from config.errors import ConfigError
from config.loader import load_config
from config.nodes import joined, split
from config.settings import Config

TOKEN = "of-no-use-anywhere-else"
NODE = f"nodes:\n  - {{name: box, address: 'box:7000', token: {TOKEN}}}\n"


def loaded(folder: Path, text: str, **environment: str) -> Config:
    path = folder / "roundhouse.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, environment)


def model(host: str, path: str = "/models/a.gguf") -> str:
    return f"models:\n  - {{name: a, path: '{path}', options: {{host: {host}}}}}\n"


MISTAKES = [
    ("nodes: [{name: a, address: 'a:1'}]", "$.nodes[0]: the option 'token' is missing"),
    ("nodes: [{name: a, address: a, token: 0123456789abcdef}]", "expected HOST:PORT, got 'a'"),
    ("nodes: [{name: a, address: 'a:70000', token: 0123456789abcdef}]", "expected HOST:PORT"),
    ("nodes: [{name: a, address: 'a:1', token: short}]", "a token has 16 characters or more"),
    ("nodes: [{name: worker, address: 'a:1', token: 0123456789abcdef}]", "'worker' is taken"),
    ("nodes: [{name: a, address: 'a:1', token: 'env:NONE'}]", "variable NONE is not set"),
    (NODE.replace("}", ", fingerprint: sha256:" + "0" * 64 + "}"), "only with `tls: true`"),
    (NODE + model("bix"), "$.models[0].options.host: unknown host 'bix'; did you mean 'box'?"),
    (NODE + model("box", "models/a.gguf"), "has its whole path there, which begins with /"),
    (NODE + "engines: {host: box}", "$.engines.host: 'box': expected process, worker, auto"),
    (NODE + "engines: {llamacpp: {host: box}}", "$.engines.llamacpp.host: 'box': expected"),
    (
        NODE + "models: [{name: a, command: 'serve {port}', options: {host: box}}]",
        "commands run on this machine",
    ),
]


@pytest.mark.parametrize(("text", "problem"), MISTAKES)
def test_a_mistake_is_named(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        loaded(tmp_path, text)
    assert problem in str(raised.value)
    assert TOKEN not in str(raised.value)


def test_a_token_comes_from_where_it_is_kept_and_is_shown_nowhere(tmp_path: Path) -> None:
    config = loaded(tmp_path, NODE.replace(TOKEN, "'env:BOX'") + model("box"), BOX=TOKEN)
    (node,) = config.nodes
    assert node.token == TOKEN
    assert TOKEN not in repr(config)
    assert TOKEN not in repr(masked(config))


@pytest.mark.parametrize("address", ["box.lan:7000", "10.0.0.2:1", "[fd00::2]:65535"])
def test_an_address_is_read_as_it_is_written(address: str) -> None:
    assert joined(*split(address)) == address
