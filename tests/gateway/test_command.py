"""The command as a user meets it: a process of its own, its words, its exit status."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx
import pytest
from anyio import to_thread

import bundled
from tests.gateway.hub.standin import standin
from tests.hang import HANG

COMMAND = (sys.executable, "-m", "gateway.cli")
STARTED: list[subprocess.Popen[str]] = []
SCRIPT = {"lines": [{"say": "The engine turns. " * 50}]}


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """A test that fails leaves no server behind, to take the machine from the next."""
    yield
    while STARTED:
        with STARTED.pop() as process:  # closes the pipes and waits
            process.kill()


def start(*arguments: str, folder: Path, **elsewhere: str) -> subprocess.Popen[str]:
    home = {"PYTHONPATH": str(Path.cwd()), "HOME": str(folder), "PATH": "/usr/bin:/bin"}
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**home, **elsewhere},
    )
    STARTED.append(process)
    return process


def script(folder: Path) -> str:
    path = folder / "demo.script.json"
    path.write_text(json.dumps(SCRIPT))
    return str(path)


def greeting(process: subprocess.Popen[str]) -> list[str]:
    """What it prints when it listens: where, which model, and a line to try."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.strip())
        if line.lstrip().startswith("try:"):
            return lines
    raise AssertionError(f"it never listened: {process.communicate()[1]}")


def stop(process: subprocess.Popen[str], kind: signal.Signals) -> int:
    process.send_signal(kind)
    process.communicate(timeout=HANG)
    return process.returncode


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_serves_and_exits_with_0(
    kind: signal.Signals, tmp_path: Path
) -> None:
    process = start("serve", "--port", "0", script(tmp_path), folder=tmp_path)
    _, listens, model, attempt = greeting(process)
    url = listens.rpartition(" ")[2]
    assert url.startswith("http://127.0.0.1:")
    assert model == "model: demo"
    assert f"curl {url}/v1/chat/completions" in attempt
    body = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 3}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=HANG)
    assert answer.json()["choices"][0]["message"]["content"] == "The"
    assert stop(process, kind) == 0


def test_without_a_model_the_bundled_one_is_served(tmp_path: Path) -> None:
    process = start("serve", "--port", "0", folder=tmp_path)
    assert f"model: {bundled.GGUF.stem}" in greeting(process)
    assert stop(process, signal.SIGTERM) == 0


def test_a_taken_port_is_exit_status_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        process = start("serve", "--port", port, script(tmp_path), folder=tmp_path)
        _, told = process.communicate(timeout=HANG)
    assert process.returncode == 1
    assert "address already in use" in told


@pytest.mark.parametrize(
    ("config", "arguments", "told"),
    [
        ("server: {prot: 1}", (), "did you mean 'port'"),
        ("server: {host: 0.0.0.0}", (), "without API keys"),
        ("{}", ("missing.gguf",), "there is no file or folder missing.gguf"),
        ("models: [{name: demo, path: x}]", ("demo.script.json",), "demo is in the configuration"),
        ("{}", ("--host", "0.0.0.0"), "without API keys"),
    ],
)
def test_mistakes_are_told_in_one_line_with_exit_status_2(
    config: str, arguments: tuple[str, ...], told: str, tmp_path: Path
) -> None:
    script(tmp_path)
    (tmp_path / "roundhouse.yaml").write_text(config)
    process = start("serve", *arguments, folder=tmp_path)
    _, errors = process.communicate(timeout=HANG)
    assert process.returncode == 2
    assert told in errors
    assert errors.count("\n") == 1


@pytest.mark.anyio
async def test_a_download_before_the_start_can_be_interrupted(tmp_path: Path) -> None:
    async with standin({"model.gguf": bytes(9_000_000)}) as hub:
        hub.cut["model.gguf"] = 3_000_000
        process = start("serve", "hf:org/small", folder=tmp_path, HF_ENDPOINT=hub.url)
        with anyio.fail_after(HANG):
            await hub.sent_cut.wait()
        process.send_signal(signal.SIGINT)
        _, told = await to_thread.run_sync(lambda: process.communicate(timeout=HANG))
    assert process.returncode == 130
    assert "Traceback" not in told
