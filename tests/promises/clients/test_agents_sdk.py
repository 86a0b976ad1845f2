"""OpenAI's Agents SDK, from PyPI: its `apply_patch` and `shell` mend a file and run its test."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hang import HANG
from tests.served import Serve, scripted

pytestmark = pytest.mark.slow

PACKAGE = "openai-agents==0.24.0"
DIFF = "@@ def add(a, b):\n-    return a - b\n+    return a + b\n"
PROGRAM = """
import asyncio, os, subprocess, sys
from pathlib import Path
from agents import (
    Agent, ApplyPatchTool, OpenAIResponsesModel, Runner, ShellCallOutcome, ShellCommandOutput,
    ShellResult, ShellTool, apply_diff, set_tracing_disabled,
)
from openai import AsyncOpenAI


class Editor:
    def create_file(self, operation):
        Path(operation.path).write_text(apply_diff("", operation.diff, mode="create"))

    def update_file(self, operation):
        file = Path(operation.path)
        file.write_text(apply_diff(file.read_text(), operation.diff))

    def delete_file(self, operation):
        Path(operation.path).unlink()


async def execute(request):
    found = []
    for command in request.data.action.commands:
        done = subprocess.run(command, shell=True, capture_output=True, text=True)
        outcome = ShellCallOutcome(type="exit", exit_code=done.returncode)
        found.append(ShellCommandOutput(stdout=done.stdout, stderr=done.stderr, outcome=outcome))
    return ShellResult(output=found)


async def main():
    set_tracing_disabled(True)
    model = OpenAIResponsesModel("m", AsyncOpenAI(base_url=sys.argv[1], api_key="none"))
    tools = [ApplyPatchTool(editor=Editor()), ShellTool(executor=execute)]
    agent = Agent(name="Mender", instructions="Mend.", model=model, tools=tools)
    if sys.argv[2] == "streamed":
        result = Runner.run_streamed(agent, "Fix add.py and run its test.")
        async for _ in result.stream_events():
            pass
    else:
        result = await Runner.run(agent, "Fix add.py and run its test.")
    print(result.final_output)


asyncio.run(main())
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter that has the package; skipped where the registry is not to be had."""
    folder = tmp_path_factory.mktemp("agents") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=HANG)
    found = folder / "bin" / "python"
    words = [str(found), "-m", "pip", "install", "-q", PACKAGE]
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG, check=False)
    if done.returncode:
        pytest.skip(f"pip: {done.stderr[-200:]}")
    return found


def call(name: str, **arguments: Any) -> str:
    whole = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{whole}\n</tool_call>"


@pytest.mark.parametrize("mode", ["whole", "streamed"])
def test_an_agent_edits_a_file_and_runs_its_test(
    tmp_path: Path, serve: Serve, python: Path, mode: str
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "add.py").write_text("def add(a, b):\n    return a - b\n")
    (project / "test_add.py").write_text(
        "from add import add\nassert add(2, 3) == 5\nprint('ALL', 'GOOD')\n"
    )
    edit = call("apply_patch", type="update_file", path="add.py", diff=DIFF)
    lines = [
        {"when": "ALL GOOD", "say": "The sum is right now."},
        {"when": "completed", "say": call("shell", commands=[f"{sys.executable} test_add.py"])},
        {"say": edit},
    ]
    model = scripted(tmp_path, "m", lines=lines, context_length=100_000)
    server = serve({"models": [model]})
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(python), "-c", PROGRAM, f"{server.url}/v1", mode],
        cwd=project,
        env=variables,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "The sum is right now."
    assert "a + b" in (project / "add.py").read_text()
    assert '"ignored"' not in server.log.text
