"""`roundhouse launch`: a program of the agent's name is found on the path, and with what that is
given the server is asked as the agent would.
"""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from gateway.cli.arguments import AGENTS
from tests.hang import HANG
from tests.served import COMMAND, ROOT, Served, scripted, served

KEY = "the key"
MODEL = "a model's name"
PROGRAM = """#!{python}
import json, os, sys
found = {{name: os.environ[name] for name in {names} if name in os.environ}}
print(json.dumps([sys.argv[1:], found]))
"""
VARIABLES = (
    *("ANTHROPIC_BASE_URL", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY", "ANTHROPIC_MODEL"),
    *("ANTHROPIC_SMALL_FAST_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL"),
    *("CLAUDE_CODE_MAX_CONTEXT_TOKENS", "CLAUDE_CODE_AUTO_COMPACT_WINDOW"),
    *("OPENAI_API_BASE", "OPENAI_BASE_URL", "OPENAI_HOST", "OPENAI_API_KEY", "OPENAI_MODEL"),
    *("ROUNDHOUSE_KEY", "OPENCODE_CONFIG_CONTENT", "GOOSE_MODEL", "GOOSE_PROVIDER"),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("launch")
    script: dict[str, Any] = {"lines": [{"say": "The engine turns."}], "context_length": 65_536}
    model = {**scripted(folder, "demo", **script), "name": MODEL, "aliases": ["demo"]}
    short = {**scripted(folder, "short", **{**script, "context_length": 4_096}), "name": "short"}
    with served(folder, {"models": [model, short], "keys": [{"key": KEY}]}) as running:
        yield running


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with a program of each agent's name, which prints what it was given."""
    for name in AGENTS:
        path = tmp_path / name
        path.write_text(PROGRAM.format(python=sys.executable, names=VARIABLES))
        path.chmod(0o755)
    return tmp_path


def launch(server: Served, programs: Path, *words: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PATH": str(programs), "PYTHONPATH": str(ROOT)}
    for name in VARIABLES:
        variables.pop(name, None)
    variables["ANTHROPIC_API_KEY"] = "another's"
    options = ("--url", server.url, "--key", KEY)
    return subprocess.run(
        [*COMMAND, "launch", *options, *words],
        env=variables,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )


def given(server: Served, programs: Path, *words: str) -> tuple[list[str], dict[str, str]]:
    """The arguments and variables of the program that was run."""
    ended = launch(server, programs, *words)
    assert (ended.returncode, ended.stderr) == (0, "")
    arguments, variables = json.loads(ended.stdout)
    return arguments, variables


def test_claude_finds_the_server(server: Served, programs: Path) -> None:
    arguments, variables = given(server, programs, "claude", "--", "-p", "Hi")
    assert arguments == ["-p", "Hi"]
    assert variables["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "65536"
    assert variables["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "65536"
    assert variables["ANTHROPIC_API_KEY"] == ""  # that of another service is not used
    url, token = variables["ANTHROPIC_BASE_URL"], variables["ANTHROPIC_AUTH_TOKEN"]
    hello: Any = [{"role": "user", "content": "Hi"}]
    with anthropic.Anthropic(base_url=url, auth_token=token) as client:
        for kind in ("MODEL", "SMALL_FAST_MODEL", "DEFAULT_HAIKU_MODEL"):
            model = variables[f"ANTHROPIC_{kind}"]
            answer = client.messages.create(model=model, max_tokens=50, messages=hello)
            assert answer.model == MODEL


def test_codex_finds_the_server(server: Served, programs: Path) -> None:
    arguments, variables = given(server, programs, "codex", "--model", "demo", "--", "exec", "Hi")
    options = [arguments[at + 1] for at, word in enumerate(arguments) if word == "-c"]
    assert arguments[2 * len(options) :] == ["exec", "Hi"]
    config = tomllib.loads("\n".join(options))
    provider = config["model_providers"][config["model_provider"]]
    assert (provider["wire_api"], config["model_context_window"]) == ("responses", 65_536)
    asks(provider["base_url"], variables[provider["env_key"]], config["model"])


def test_opencode_finds_the_server(server: Served, programs: Path) -> None:
    _, variables = given(server, programs, "opencode")
    config = json.loads(variables["OPENCODE_CONFIG_CONTENT"])
    name, _, model = config["model"].partition("/")
    provider: dict[str, Any] = config["provider"][name]
    assert provider["models"][model]["limit"]["context"] == 65_536
    variable = provider["options"]["apiKey"].removeprefix("{env:").removesuffix("}")
    asks(provider["options"]["baseURL"], variables[variable], model)


@pytest.mark.parametrize("agent", ["aider", "qwen", "goose"])
def test_agents_of_openais_api_find_the_server(server: Served, programs: Path, agent: str) -> None:
    arguments, variables = given(server, programs, agent)
    base = variables.get("OPENAI_API_BASE") or variables.get("OPENAI_BASE_URL")
    base = base or f"{variables['OPENAI_HOST']}/v1"
    named = arguments[1].removeprefix("openai/") if arguments else None
    model = named or variables.get("OPENAI_MODEL") or variables["GOOSE_MODEL"]
    asks(base, variables["OPENAI_API_KEY"], model)


def test_llm_finds_the_server(server: Served, programs: Path) -> None:
    arguments, _ = given(server, programs, "llm", "--", "Say hello.")
    kind, where, base, option, model, named, key, *rest = arguments
    assert [kind, where, option, named, *rest] == [
        "openai",
        "endpoint",
        "-m",
        "--key",
        "Say hello.",
    ]
    asks(base, key, model)


def asks(base: str, key: str, model: str) -> None:
    messages: Any = [{"role": "user", "content": "Hi"}]
    with openai.OpenAI(base_url=base, api_key=key) as client:
        assert client.chat.completions.create(model=model, messages=messages).model == MODEL
        assert client.responses.create(model=model, input="Hi").model == MODEL


def test_what_is_printed_is_what_a_shell_runs(server: Served, programs: Path) -> None:
    printed = launch(server, programs, "codex", "--print", "--", "exec", "it's me").stdout
    ended = subprocess.run(
        ["/bin/sh", "-c", printed],
        env={"PATH": str(programs)},
        capture_output=True,
        text=True,
        timeout=HANG,
        check=True,
    )
    arguments, variables = json.loads(ended.stdout)
    run, environment = given(server, programs, "codex", "--", "exec", "it's me")
    assert arguments == run
    assert variables["ROUNDHOUSE_KEY"] == environment["ROUNDHOUSE_KEY"] == KEY


def test_what_is_missing_is_said(server: Served, programs: Path, tmp_path: Path) -> None:
    (programs / "goose").unlink()
    absent = launch(server, programs, "goose")
    assert (absent.returncode, absent.stdout) == (1, "")
    assert "goose is not installed" in absent.stderr
    assert "brew install" in absent.stderr
    unknown = launch(server, programs, "claude", "--model", "nobody")
    assert unknown.returncode == 1
    assert "'nobody'; the server's models: " in unknown.stderr
    short = launch(server, programs, "claude", "--model", "short")
    assert short.returncode == 0
    assert "a context of 4,096 tokens" in short.stderr
