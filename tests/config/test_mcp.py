"""MCP servers in the configuration."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from config.changes import MASK, masked, masked_text
from config.errors import ConfigError
from config.loader import load_config
from config.mcp import words
from config.settings import Config

NOTHING: Mapping[str, str] = {}


def loaded(server: dict[str, Any], environment: Mapping[str, str] = NOTHING, **more: Any) -> Config:
    text = yaml.safe_dump({"mcp": [{"name": "tools", **server}], **more})
    return load_config(Path("/nowhere/roundhouse.yaml"), environment, text=text)


def test_secrets_come_from_the_environment_and_are_shown_nowhere() -> None:
    given = {"url": "https://a.example/mcp", "headers": {"Authorization": "env:TOKEN"}}
    config = loaded(given, {"TOKEN": "Bearer deep-secret"})
    assert config.mcp[0].headers == {"Authorization": "Bearer deep-secret"}
    assert masked(config)["mcp"][0]["headers"] == {"Authorization": MASK}
    assert "deep-secret" not in repr(config.mcp)
    text = masked_text("mcp:\n- name: a\n  command: x\n  env: {KEY: deep-secret}\n")
    assert text is not None
    assert "deep-secret" not in text


def test_a_command_is_words_and_no_shell_reads_them() -> None:
    config = loaded({"command": "python 'my server.py' --root $HOME"})
    assert words(config.mcp[0]) == ("python", "my server.py", "--root", "$HOME")


@pytest.mark.parametrize(
    ("server", "place"),
    [
        ({}, "$.mcp[0].url"),
        ({"url": "https://a.example", "command": "x"}, "$.mcp[0].url"),
        ({"url": "ftp://a.example"}, "$.mcp[0].url"),
        ({"url": "https://me:pw@a.example"}, "$.mcp[0].url"),
        ({"url": "https://[::"}, "$.mcp[0].url"),
        ({"url": "https://a.example*"}, "$.mcp[0].url"),
        ({"url": "https://*", "headers": {"A": "b"}}, "$.mcp[0].headers"),
        ({"command": "a 'b"}, "$.mcp[0].command"),
        ({"command": " "}, "$.mcp[0].command"),
        ({"command": "x", "keys": ["nobody"]}, "$.mcp[0].keys[0]"),
        ({"command": "x", "name": "a b"}, "$.mcp[0].name"),
        ({"command": "x", "env": {"A": "env:MISSING"}}, "$.mcp[0].env.A"),
        ({"url": "https://a.example", "headers": {"A": "é"}}, "$.mcp[0].headers.A"),
        ({"url": "https://a.example", "headers": {"A b": "x"}}, "$.mcp[0].headers.A b"),
        ({"command": "x", "wat": 1}, "$.mcp[0].wat"),
    ],
)
def test_an_error_names_the_option(server: dict[str, Any], place: str) -> None:
    with pytest.raises(ConfigError) as raised:
        loaded(server)
    assert raised.value.path == place


def test_a_model_names_servers_that_are_there() -> None:
    models = [{"name": "m", "path": "/m.gguf", "mcp": ["other"]}]
    with pytest.raises(ConfigError, match=r"models\[0\]\.mcp\[0\]"):
        loaded({"command": "x"}, models=models)


def test_urls_that_clients_may_name() -> None:
    one = loaded({"url": "https://a.example/mcp"}).mcp[0]
    assert one.serves("https://a.example/mcp/")
    assert not one.serves("https://a.example/mcp/other")
    some = loaded({"url": "https://a.example/*"}).mcp[0]
    assert some.is_open
    assert some.serves("https://a.example/b")
    assert not some.serves("https://a.example.evil/b")


def test_approvals() -> None:
    some = loaded({"command": "x", "require_approval": ["delete"]}).mcp[0]
    assert (some.needs_approval("delete"), some.needs_approval("read")) == (True, False)
    assert loaded({"command": "x", "require_approval": "always"}).mcp[0].needs_approval("read")
