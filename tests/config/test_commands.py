"""Command lines become words, and what can't work is refused at the start."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from config.commands import COMMAND, words
from config.engines import CommandOptions
from config.errors import ConfigError
from config.loader import load_config
from config.models import options_for

VALUES = {"path": "/models/a b.gguf", "port": "5800", "host": "127.0.0.1", "key": "k", "name": "m"}


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("server -m {path} --port {port}", ["server", "-m", "/models/a b.gguf", "--port", "5800"]),
        ("server --port ${PORT} --host={host}", ["server", "--port", "5800", "--host=127.0.0.1"]),
        ("server 'a b' \"c d\" e\\ f", ["server", "a b", "c d", "e f"]),
        ("server \\\n  --one\n# all of this\n  # and this\n  --two", ["server", "--one", "--two"]),
        (
            "server --kwargs '{\"thinking\": {}}' {other}",
            ["server", "--kwargs", '{"thinking": {}}', "{other}"],
        ),
        ("server $HOME `ls` ; rm -rf {name}", ["server", "$HOME", "`ls`", ";", "rm", "-rf", "m"]),
        ("server a#b --color '#fff'", ["server", "a#b", "--color", "#fff"]),
    ],
)
def test_a_command_is_split_as_a_shell_would_and_nothing_in_it_is_expanded(
    command: str, found: list[str]
) -> None:
    assert [*words(CommandOptions(command=command), VALUES)] == found


def test_a_shell_gets_the_line_with_each_value_in_quotes() -> None:
    options = CommandOptions(command="cd / && exec server {path} --port $PORT", shell=True)
    line = "cd / && exec server '/models/a b.gguf' --port $PORT"
    assert words(options, VALUES) == ("/bin/sh", "-c", line)


def loaded(folder: Path, **model: Any) -> Any:
    path = folder / "roundhouse.yaml"
    path.write_text(yaml.safe_dump({"models": [{"name": "far", **model}]}))
    return load_config(path, {})


@pytest.mark.parametrize(
    ("model", "place", "problem"),
    [
        ({}, "$.models[0]", "the option 'path' is missing"),
        ({"command": ""}, "$.models[0].command", "a command is needed"),
        ({"command": "server 'a"}, "$.models[0].command", "not a command line"),
        ({"command": "server"}, "$.models[0].command", "write `{port}`"),
        ({"command": "s {path} {port}"}, "$.models[0].command", "needs the model's `path`"),
        ({"command": "s {port}", "backend": "llamacpp"}, "$.models[0].backend", "llamacpp"),
        (
            {"command": "s {port}", "options": {"gpu_layers": 1}},
            "$.models[0].options.gpu_layers",
            "",
        ),
        ({"command": "s {port}", "options": {"health": "up"}}, "$.models[0].options.health", ""),
        (
            {"command": "s {port}", "options": {"memory": "much"}},
            "$.models[0].options.memory",
            "expected a size",
        ),
        (
            {"command": "s {port}", "options": {"memory": {"cpu": "much"}}},
            "$.models[0].options.memory.cpu",
            "expected a size",
        ),
        (
            {"command": "s {port}", "options": {"set": {"model": "x"}}},
            "$.models[0].options.set.model",
            "",
        ),
    ],
)
def test_a_command_that_can_not_work_is_refused_with_its_place(
    tmp_path: Path, model: dict[str, Any], place: str, problem: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, **model)
    assert refused.value.path == place
    assert problem in refused.value.problem


@pytest.mark.parametrize(
    "model",
    [
        {"command": "server {port}"},
        {"command": "server ${PORT}"},
        {"command": "server", "options": {"port": 8001}},
        {"command": "server", "options": {"env": {"LISTEN": "{host}:{port}"}}},
        {"command": "server $PORT", "options": {"shell": True}},
    ],
)
def test_a_command_learns_its_port_in_several_ways(tmp_path: Path, model: dict[str, Any]) -> None:
    config = loaded(tmp_path, **model)
    options = options_for(config, config.models[0], COMMAND)
    assert isinstance(options, CommandOptions)
    assert options.command == model["command"]


@pytest.mark.parametrize(
    ("memory", "bytes_of_it"),
    [("6GB", 6 * 10**9), (7, 7), ({"cpu": "4GiB"}, {"cpu": 4 * 2**30}), ({}, {})],
)
def test_memory_is_one_figure_or_one_for_each_device(
    tmp_path: Path, memory: Any, bytes_of_it: Any
) -> None:
    config = loaded(tmp_path, command="server {port}", options={"memory": memory})
    options = options_for(config, config.models[0], COMMAND)
    assert isinstance(options, CommandOptions)
    assert options.memory == bytes_of_it


def test_models_can_share_the_engines_command(tmp_path: Path) -> None:
    path = tmp_path / "roundhouse.yaml"
    path.write_text(
        "engines: {command: {command: 'server -m {path} --port {port}', cwd: below}}\n"
        "models: [{name: far, backend: command, path: a.gguf}]\n"
    )
    config = load_config(path, {})
    options = options_for(config, config.models[0], COMMAND)
    assert isinstance(options, CommandOptions)
    assert options.command == "server -m {path} --port {port}"
    assert options.cwd == str(tmp_path / "below")
    assert config.models[0].path == str(tmp_path / "a.gguf")
