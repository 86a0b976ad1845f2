"""OpenAI's Codex CLI, from npm: it edits a file and runs a test, on a model that plays its part."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.hang import HANG
from tests.served import Serve, scripted

pytestmark = pytest.mark.slow

PACKAGE = "@openai/codex@0.171.0"
# Said in docs/coding-agents.md: the tool is `web_search`, which OpenAI's servers run.
NOT_APPLIED = "client_metadata, tools[].external_web_access, tools[8]"
PATCH = """\
*** Begin Patch
*** Update File: add.py
@@ def add(a, b):
-    return a - b
+    return a + b
*** End Patch
"""


@pytest.fixture(scope="module")
def codex(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program; skipped where npm or its registry is not to be had."""
    if (npm := shutil.which("npm")) is None:
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("npm")
    words = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), PACKAGE]
    done = subprocess.run(words, capture_output=True, text=True, timeout=HANG, check=False)
    if done.returncode:
        pytest.skip(f"npm: {done.stderr[-200:]}")
    return folder / "node_modules" / ".bin" / "codex"


def call(name: str, **arguments: Any) -> str:
    whole = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{whole}\n</tool_call>"


def settings(url: str, *, socket: bool) -> list[str]:
    provider = {
        "name": "Roundhouse",
        "base_url": f"{url}/v1",
        "env_key": "ROUNDHOUSE_KEY",
        "wire_api": "responses",
        "request_max_retries": 0,
        "stream_max_retries": 0,
        "supports_websockets": socket,
    }
    lines = {
        "model": "m",
        "model_provider": "roundhouse",
        **{f"model_providers.roundhouse.{name}": value for name, value in provider.items()},
    }
    return [word for name, value in lines.items() for word in ("-c", f"{name}={json.dumps(value)}")]


@pytest.mark.parametrize("socket", [False, True])
def test_codex_edits_a_file_and_runs_its_test(
    socket: bool, tmp_path: Path, serve: Serve, codex: Path
) -> None:
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir()
    home.mkdir()
    (project / "add.py").write_text("def add(a, b):\n    return a - b\n")
    (project / "test_add.py").write_text(
        "from add import add\nassert add(2, 3) == 5\nprint('ALL', 'GOOD')\n"
    )
    edits = f"apply_patch <<'EOF'\n{PATCH}EOF\n"
    lines = [
        {"when": "ALL GOOD", "say": "The sum is right now."},
        {"when": "M add.py", "say": call("exec_command", cmd="python3 test_add.py")},
        {"say": call("exec_command", cmd=edits)},
    ]
    model = scripted(tmp_path, "m", lines=lines, context_length=200_000)
    server = serve({"models": [model]})
    done = subprocess.run(
        [
            *(str(codex), "exec", "--dangerously-bypass-approvals-and-sandbox"),
            *(
                "--skip-git-repo-check",
                *settings(server.url, socket=socket),
                "Fix add.py and run its test.",
            ),
        ],
        cwd=project,
        env={**os.environ, "HOME": str(home), "CODEX_HOME": str(home), "ROUNDHOUSE_KEY": "none"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "The sum is right now." in done.stdout
    assert "a + b" in (project / "add.py").read_text()
    answers = [line for line in server.log.records("request") if "api" in line]
    assert {line["method"] for line in answers} == {"WEBSOCKET" if socket else "POST"}
    assert {answer["ignored"] for answer in answers} == {NOT_APPLIED}
    assert not any("relaxed" in answer for answer in answers)
