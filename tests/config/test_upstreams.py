"""What a person who writes of servers elsewhere may rely on."""

from pathlib import Path

import pytest

from config.errors import ConfigError
from config.loader import load_config
from config.upstreams import UpstreamConfig


def loaded(folder: Path, text: str, **environment: str) -> UpstreamConfig:
    path = folder / "roundhouse.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, environment).upstreams[0]


ONE = "upstreams:\n  - name: far\n    urls: [http://far/v1]\n"

MISTAKES = [
    ("upstreams: [{name: far}]", "1: $.upstreams[0]: the option 'urls' is missing"),
    (
        "upstreams: [{name: far, urls: []}]",
        "1: $.upstreams[0].urls: at least one base URL is needed",
    ),
    (
        "upstreams: [{name: far, url: http://far}]",
        "1: $.upstreams[0].url: unknown option; did you mean 'urls'?",
    ),
    (
        "upstreams: [{name: far, urls: [far:8000]}]",
        "1: $.upstreams[0].urls[0]: expected a URL like http://host:8000/v1",
    ),
    (
        "upstreams: [{name: far, urls: ['http://far:eight']}]",
        "1: $.upstreams[0].urls[0]: not a URL: ",
    ),
    (
        "upstreams: [{name: far, urls: [http://me:secret@far]}]",
        "1: $.upstreams[0].urls[0]: a URL holds no secrets here; write `key` instead",
    ),
    (
        "upstreams: [{name: far, urls: ['http://far/v1?key=secret']}]",
        "1: $.upstreams[0].urls[0]: a base URL ends with its path, without ? or #",
    ),
    (
        "upstreams: [{name: far, urls: [http://far, http://far]}]",
        "1: $.upstreams[0].urls: the same URL is listed twice",
    ),
    (ONE + "    weights: [1, 2]", "4: $.upstreams[0].weights: expected 1, one for each URL"),
    (ONE + "    weights: [0]", " $.upstreams[0].weights[0]: expected a number greater than 0"),
    (ONE + "    models: al", "4: $.upstreams[0].models: 'al' is not valid; did you mean 'all'?"),
    (ONE + "    models: {}", "4: $.upstreams[0].models: expected 'all', or our names"),
    (
        ONE + "    key: env:FAR_KEY",
        "4: $.upstreams[0].key: the environment variable FAR_KEY is not set",
    ),
    (ONE + "    key: file:none", " $.upstreams[0].key: …/none can't be read: No such file"),
    (ONE + '    key: "a\\nb"', "4: $.upstreams[0].key: a key is one line of ASCII"),
    (
        ONE + "    rename: {model: engine}",
        "4: $.upstreams[0].rename.model: this field belongs to the request itself",
    ),
    (
        ONE + "    headers: {Host: other}",
        "4: $.upstreams[0].headers.Host: this header belongs to the connection",
    ),
    (ONE + '    headers: {X-A: "b\\r\\nc"}', "4: $.upstreams[0].headers.X-A: not a header"),
    (
        ONE + "    capabilities: [sight]",
        " $.upstreams[0].capabilities: ",
    ),
    (
        ONE + "    split: here",
        " $.upstreams[0].template: `split: here` needs the model's chat template",
    ),
    (ONE + "    proxy: socks5://p", "4: $.upstreams[0].proxy: expected a URL like http"),
    (
        ONE + "    stall_timeout: 0",
        "4: $.upstreams[0].stall_timeout: expected a time: seconds, or with a unit",
    ),
    (
        ONE + "    models: {a: x}\n    fallbacks: [b]",
        " $.upstreams[0].fallbacks[0]: unknown model 'b'; available: a",
    ),
    (
        ONE + "    models: {a: x}\nmodels: [{name: a, path: a.gguf}]",
        " $.upstreams[0].models.a: 'a' is taken already, by $.models[0].name",
    ),
    (
        ONE + "  - name: far\n    urls: [http://b]",
        "4: $.upstreams[1].name: 'far' is taken already",
    ),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_a_mistake_is_named_where_it_is(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, text)

    error = str(caught.value).replace(str(tmp_path), "…")
    assert message.split(":", 1)[1].lstrip() in error
    assert error.startswith("…/roundhouse.yaml")


def test_a_key_comes_from_a_variable_even_one_with_our_prefix(tmp_path: Path) -> None:
    assert loaded(tmp_path, ONE + "    key: env:ROUNDHOUSE_FAR", ROUNDHOUSE_FAR="k").key == "k"


def test_a_key_comes_from_a_file_beside_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "far.key").write_text("sk-1\n")

    assert loaded(tmp_path, ONE + "    key: file:far.key").key == "sk-1"


def test_a_key_is_never_shown(tmp_path: Path) -> None:
    upstream = loaded(tmp_path, ONE + "    key: sk-secret\n    headers: {X-Key: sk-secret}")

    assert "secret" not in repr(upstream)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("http://far", "http://far/v1"),
        ("http://far:8000/", "http://far:8000/v1"),
        ("https://far/api/v3/", "https://far/api/v3"),
    ],
)
def test_a_base_url_is_as_openais_clients_take_it(tmp_path: Path, written: str, read: str) -> None:
    assert loaded(tmp_path, f"upstreams: [{{name: a, urls: ['{written}']}}]").urls == (read,)
