"""Coding agents as they come from their registries, without a person: each reads a file, mends it
and runs the check, on a script that plays the model. What they sent that is not applied is in the
server's log, and stands here: nothing of it is left out in silence.

They are not installed for the tests, since they take hundreds of megabytes. `AGENTS_PATH` names
folders with their commands; those that are missing are skipped. For example:

    npm install --prefix /tmp/agents @anthropic-ai/claude-code opencode-ai
    pip install aider-chat  # in an environment of its own
    pip install llm  # likewise
    AGENTS_PATH=/tmp/agents/node_modules/.bin:FOLDER_OF_AIDER pytest -m slow tests/promises/clients
"""

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.prompt.families import source
from tests.hang import HANG
from tests.served import Serve, Served, scripted

pytestmark = pytest.mark.slow

WRONG, RIGHT = "return a - b", "return a + b"
TASK = "Please mend add.py and run check.py"
PASSED = "CHECKED-OK"
CHECK = "from add import add\nassert add(2, 3) == 5\nprint('CHECKED', 'OK', sep='-')\n"
EDIT = (
    f"add.py\n```python\n<<<<<<< SEARCH\n    {WRONG}\n=======\n    {RIGHT}\n>>>>>>> REPLACE\n```\n"
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository whose check fails."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "add.py").write_text(f"def add(a, b):\n    {WRONG}\n")
    (folder / "check.py").write_text(CHECK)
    subprocess.run(["git", "init", "-q", "."], cwd=folder, check=True)
    return folder


def call(name: str, **arguments: str) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def playing(serve: Serve, folder: Path, *calls: tuple[str, str]) -> Served:
    """A server whose model says the last of these texts whose cue is in the prompt."""
    lines = [{"when": cue, "say": text} for cue, text in reversed(calls)]
    script: dict[str, Any] = {
        "lines": [*lines, {"say": "ok"}],
        "context_length": 1 << 20,
        "chat_template": source("qwen3"),
    }
    return serve({"models": [scripted(folder, "coder", **script)]})


def run(
    words: Sequence[str], project: Path, variables: Mapping[str, str]
) -> "subprocess.CompletedProcess[str]":
    """The agent, in the project; skips where it isn't installed."""
    path = os.pathsep.join([os.environ.get("AGENTS_PATH", ""), "/usr/local/bin:/usr/bin:/bin"])
    if shutil.which(words[0], path=path) is None:
        pytest.skip(f"{words[0]} is not installed")
    home = project.parent / "home"
    home.mkdir()
    return subprocess.run(
        words,
        cwd=project,
        env={"PATH": path, "HOME": str(home), "TERM": "dumb", **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )


def not_applied(server: Served, route: str) -> list[dict[str, Any]]:
    """What the log says of the answers on a route."""
    answers = [record for record in server.log.records("request") if record["route"] == route]
    assert all(record["status"] == 200 for record in answers)
    return [
        {name: record[name] for name in ("ignored", "relaxed") if name in record}
        for record in answers
    ]


def test_claude_code_mends_a_file_and_runs_its_check(
    serve: Serve, tmp_path: Path, project: Path
) -> None:
    file = str(project / "add.py")
    server = playing(
        serve,
        tmp_path,
        (TASK, call("Read", file_path=file)),
        (WRONG, call("Edit", file_path=file, old_string=WRONG, new_string=RIGHT)),
        (RIGHT, call("Bash", command="python3 check.py", description="Run the check")),
        (PASSED, "The check passes."),
    )
    variables = {
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": "coder",
        "ANTHROPIC_SMALL_FAST_MODEL": "coder",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",
    }
    done = run(["claude", "-p", TASK, "--dangerously-skip-permissions"], project, variables)
    assert done.returncode == 0, done.stderr
    assert "The check passes." in done.stdout
    assert RIGHT in (project / "add.py").read_text()
    for said in not_applied(server, "/v1/messages"):
        assert said.get("ignored") == "system[0]"  # its billing line
        assert {name.rpartition(".")[2] for name in said.get("relaxed", "").split(", ")} <= {
            "propertyNames"
        }


def test_opencode_mends_a_file_and_runs_its_check(
    serve: Serve, tmp_path: Path, project: Path
) -> None:
    file = str(project / "add.py")
    server = playing(
        serve,
        tmp_path,
        (TASK, call("read", filePath=file)),
        (WRONG, call("edit", filePath=file, oldString=WRONG, newString=RIGHT)),
        (RIGHT, call("bash", command="python3 check.py")),
        (PASSED, "The check passes."),
    )
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{server.url}/v1", "apiKey": "none"},
        "models": {"coder": {"name": "coder"}},
    }
    config = {
        "provider": {"roundhouse": provider},
        "model": "roundhouse/coder",
        "small_model": "roundhouse/coder",
        "permission": "allow",
        "autoupdate": False,
    }
    variables = {"OPENCODE_CONFIG_CONTENT": json.dumps(config)}
    done = run(["opencode", "run", TASK], project, variables)
    assert done.returncode == 0, done.stderr
    assert "The check passes." in done.stdout
    assert RIGHT in (project / "add.py").read_text()
    assert not any(not_applied(server, "/v1/chat/completions"))


def test_aider_mends_a_file_and_runs_its_check(serve: Serve, tmp_path: Path, project: Path) -> None:
    server = playing(serve, tmp_path, (TASK, EDIT))
    variables = {"OPENAI_API_BASE": f"{server.url}/v1", "OPENAI_API_KEY": "none"}
    options = (
        "--model openai/coder --edit-format diff --yes-always --no-check-update"
        " --analytics-disable --no-show-model-warnings --no-gitignore --no-auto-commits"
    )
    words = ["aider", *options.split(), "--auto-test", "--test-cmd", "python3 check.py"]
    done = run([*words, "--message", TASK, "add.py"], project, variables)
    assert done.returncode == 0, done.stderr
    assert PASSED in done.stdout
    assert RIGHT in (project / "add.py").read_text()
    # A script has no sampling: engines apply it.
    assert not_applied(server, "/v1/chat/completions") == [{"ignored": "temperature"}]


FUNCTIONS = """
import pathlib, subprocess

def edit(file: str, old: str, new: str) -> str:
    "Replace old by new in a file."
    path = pathlib.Path(file)
    path.write_text(path.read_text().replace(old, new))
    return path.read_text()

def check(command: str) -> str:
    "Run a command."
    return subprocess.run(command, shell=True, capture_output=True, text=True).stdout
"""


def test_llm_mends_a_file_and_runs_its_check(serve: Serve, tmp_path: Path, project: Path) -> None:
    server = playing(
        serve,
        tmp_path,
        (TASK, call("edit", file="add.py", old=WRONG, new=RIGHT)),
        (f"    {RIGHT}", call("check", command="python3 check.py")),
        (PASSED, "The check passes."),
    )
    words = ["llm", "openai", "endpoint", f"{server.url}/v1", "-m", "coder"]
    done = run([*words, "--functions", FUNCTIONS, TASK], project, {})
    assert done.returncode == 0, done.stderr
    assert "The check passes." in done.stdout
    assert RIGHT in (project / "add.py").read_text()
    assert not any(not_applied(server, "/v1/chat/completions"))
