"""The command as a user meets it: a process of its own, its words, its exit status."""

import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import anyio
import httpx
import pytest
from anyio import to_thread

import bundled
from backends.llamacpp.files import offloads
from config.settings import Config
from gateway.cli.configured import with_downloads
from gateway.hub.fetching import CHUNK
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


def start(
    *arguments: str, folder: Path, stderr: int = subprocess.PIPE, **elsewhere: str
) -> subprocess.Popen[str]:
    home = {"PYTHONPATH": str(Path.cwd()), "HOME": str(folder), "PATH": "/usr/bin:/bin"}
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=stderr,
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
    _, listens, model, room, attempt = greeting(process)
    url = listens.rpartition(" ")[2]
    assert url.startswith("http://127.0.0.1:")
    assert model == "model: demo"
    assert re.search(r"\bcpu \d+\.\d [MG]B$", room)
    assert f"curl {url}/v1/chat/completions" in attempt
    body = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 3}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=HANG)
    assert answer.json()["choices"][0]["message"]["content"] == "The"
    assert stop(process, kind) == 0


@pytest.mark.parametrize("read", ["not any more", "not yet"])
def test_a_log_that_nobody_reads_holds_up_neither_answers_nor_the_end(
    read: str, tmp_path: Path
) -> None:
    reader, end = os.pipe()
    fill(end)
    process = start("serve", "--port", "0", script(tmp_path), folder=tmp_path, stderr=end)
    os.close(end)
    url = greeting(process)[1].rpartition(" ")[2]
    if read == "not any more":
        os.close(reader)
    body = {"messages": [{"role": "user", "content": "Hello!"}], "stream": True}
    for _ in range(3):
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=HANG)
        assert answer.text.endswith("data: [DONE]\n\n")
    assert stop(process, signal.SIGINT) == 0
    if read == "not yet":
        os.close(reader)


def fill(end: int) -> None:
    """Until a pipe takes no more."""
    os.set_blocking(end, False)
    with suppress(BlockingIOError):
        while True:
            os.write(end, bytes(1))
    os.set_blocking(end, True)


def test_without_a_model_the_bundled_one_is_served(tmp_path: Path) -> None:
    process = start("serve", "--port", "0", folder=tmp_path)
    assert f"model: {bundled.GGUF.stem}" in greeting(process)
    assert stop(process, signal.SIGTERM) == 0


def test_a_taken_port_is_exit_status_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        process = start("serve", "--port", port, script(tmp_path), folder=tmp_path)
        _, errors = process.communicate(timeout=HANG)
    assert process.returncode == 1
    assert "address already in use" in errors
    assert f":{port}" in errors
    assert "--port" in errors
    assert errors.count("\n") == 1


def stream_of(url: str) -> Iterator[httpx.Response]:
    body = {"messages": [{"role": "user", "content": "Hello!"}], "stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=HANG) as answer:
        yield answer


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once_and_every_stream_hears_why(
    second: signal.Signals, tmp_path: Path
) -> None:
    path = tmp_path / "slow.script.json"
    path.write_text(json.dumps({"lines": [{"say": "The engine turns. " * 5000}]}))
    (tmp_path / "roundhouse.yaml").write_text(
        "engines: {scripted: {tokens_per_second: 20}}\nserver: {shutdown_grace: 600}\n"
        f"models: [{{name: slow, path: {path}}}]\n"
    )
    process = start("serve", "--port", "0", folder=tmp_path)
    url = greeting(process)[1].rpartition(" ")[2]
    for answer in stream_of(url):
        lines = answer.iter_lines()
        assert next(lines).startswith("data:")
        process.send_signal(signal.SIGTERM)
        while httpx_refused(url):
            pass
        process.send_signal(second)
        rest = [line for line in lines if line.startswith("data:")]
        assert "the server is stopping" in "".join(rest[-2:])
    _, errors = process.communicate(timeout=HANG)
    assert process.returncode == 128 + second
    assert "Traceback" not in errors


def httpx_refused(url: str) -> bool:
    """Whether it still lets somebody in."""
    try:
        return httpx.get(f"{url}/health", timeout=HANG).is_success
    except httpx.TransportError:
        return False


def test_a_hangup_reads_the_configuration_again(tmp_path: Path) -> None:
    config = tmp_path / "roundhouse.yaml"
    config.write_text(f"models: [{{name: one, path: {script(tmp_path)}}}]\n")
    process = start("serve", "--port", "0", folder=tmp_path)
    url = greeting(process)[1].rpartition(" ")[2]
    assert process.stderr is not None
    config.write_text("models: [{name: one, pth: x}]\n")
    process.send_signal(signal.SIGHUP)
    line = next(line for line in process.stderr if "stays as it was" in line)
    assert "roundhouse.yaml:1: $.models[0].pth: unknown option; did you mean 'path'?" in line
    config.write_text(f"models: [{{name: two, path: {script(tmp_path)}}}]\n")
    process.send_signal(signal.SIGHUP)
    line = next(line for line in process.stderr if "configuration reloaded" in line)
    assert json.loads(line)["added"] == ["two"]
    listed = httpx.get(f"{url}/v1/models", timeout=HANG).json()["data"]
    assert [one["id"] for one in listed] == ["two"]
    assert stop(process, signal.SIGTERM) == 0


def test_an_engine_that_is_missing_is_reported_before_it_listens(tmp_path: Path) -> None:
    """In an environment of its own, which has our dependencies and no engine."""
    without = tmp_path / "sitecustomize.py"
    without.write_text(
        "from importlib import metadata\n"
        "found = metadata.version\n"
        "def version(name):\n"
        "    if name == 'transformers':\n"
        "        raise metadata.PackageNotFoundError(name)\n"
        "    return found(name)\n"
        "metadata.version = version\n"
    )
    process = start(
        "serve",
        "--port",
        "0",
        str(bundled.SAFETENSORS),
        folder=tmp_path,
        PYTHONPATH=f"{tmp_path}:{Path.cwd()}",
    )
    greeting(process)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=HANG)
    line = next(json.loads(line) for line in errors.splitlines() if "not installed" in line)
    assert line["missing"] == ["transformers"]
    assert line["install"] == "scripts/install transformers"


def test_layers_for_a_card_on_a_build_without_one_are_a_warning_and_a_load_says_where_it_lies(
    tmp_path: Path,
) -> None:
    if offloads():
        pytest.skip("this llama.cpp was built for cards")
    (tmp_path / "roundhouse.yaml").write_text(
        "engines: {llamacpp: {gpu_layers: 99}}\n"
        f"models: [{{name: tiny, path: {bundled.GGUF}, preload: true}}]\n"
    )
    process = start("serve", "--port", "0", folder=tmp_path)
    assert process.stderr is not None
    line = next(json.loads(line) for line in process.stderr if "no card is used" in line)
    assert line["gpu_layers"] == 99
    assert line["rebuild"] == "CMAKE_ARGS=-DGGML_CUDA=on scripts/install llamacpp"
    loaded = next(json.loads(line) for line in process.stderr if "model loaded" in line)
    assert re.fullmatch(r"cpu \d+\.\d [MG]iB with 5 layers", loaded["devices"])
    assert stop(process, signal.SIGTERM) == 0


def test_an_import_of_an_engine_does_not_outlast_the_grace(tmp_path: Path) -> None:
    """A stand-in for torch, whose import takes longer than anybody waits."""
    slow = tmp_path / "torch.py"
    slow.write_text("print('importing', flush=True)\nimport time\ntime.sleep(600)\n")
    (tmp_path / "roundhouse.yaml").write_text(
        f"server: {{shutdown_grace: 0}}\n"
        f"models: [{{name: tiny, path: {bundled.SAFETENSORS}, preload: true}}]\n"
    )
    process = start("serve", "--port", "0", folder=tmp_path, PYTHONPATH=f"{tmp_path}:{Path.cwd()}")
    greeting(process)
    assert process.stdout is not None
    assert any(line.startswith("importing") for line in process.stdout)
    assert stop(process, signal.SIGTERM) == 0


@pytest.mark.parametrize("folders", ["/nowhere/a,/nowhere/b", "empty"])
def test_model_folders_without_a_model_are_served_with_a_warning(
    folders: str, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    process = start("serve", "--port", "0", folder=tmp_path, ROUNDHOUSE_MODEL_DIRS=folders)
    assert any(line.startswith("model: none yet") for line in greeting(process))
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=HANG)
    assert process.returncode == 0
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("config", "arguments", "message"),
    [
        ("server: {prot: 1}", (), "did you mean 'port'"),
        ("server: {host: 0.0.0.0}", (), "without API keys"),
        ("{}", ("missing.gguf",), "there is no file or folder missing.gguf"),
        ("models: [{name: demo, path: x}]", ("demo.script.json",), "demo is in the configuration"),
        ("{}", ("--host", "0.0.0.0"), "without API keys"),
        (
            "models: [{name: x, path: demo.script.json, format: hermess}]",
            (),
            "did you mean 'hermes_json'",
        ),
    ],
)
def test_mistakes_are_reported_in_one_line_with_exit_status_2(
    config: str, arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    script(tmp_path)
    (tmp_path / "roundhouse.yaml").write_text(config)
    process = start("serve", *arguments, folder=tmp_path)
    _, errors = process.communicate(timeout=HANG)
    assert process.returncode == 2
    assert message in errors
    assert errors.count("\n") == 1


def is_waiting(process: subprocess.Popen[str], folder: Path) -> bool:
    """Whether all whole chunks are on the disk, and the main thread sleeps."""
    come = sum(part.stat().st_size for part in folder.rglob("*.part"))
    status = Path(f"/proc/{process.pid}/task/{process.pid}/status").read_text()
    return come >= 2 * CHUNK and "State:\tS" in status


def interrupt(process: subprocess.Popen[str], thread: str) -> None:
    """SIGINT to the main thread, or to another."""
    threads = [int(entry.name) for entry in Path(f"/proc/{process.pid}/task").iterdir()]
    chosen = process.pid if thread == "main" else max(threads)
    assert (chosen == process.pid) == (thread == "main")
    assert ctypes.CDLL(None).tgkill(process.pid, chosen, signal.SIGINT) == 0


@pytest.mark.anyio
@pytest.mark.parametrize("thread", ["main", "other"])
async def test_a_download_before_the_start_can_be_interrupted(thread: str, tmp_path: Path) -> None:
    """The system may hand a signal to any thread, or just before the main one begins to wait."""
    async with standin({"model.gguf": bytes(9_000_000)}) as hub:
        hub.cut["model.gguf"] = 3_000_000
        process = start("serve", "hf:org/small", folder=tmp_path, HF_ENDPOINT=hub.url)
        with anyio.fail_after(HANG):
            await hub.sent_cut.wait()
            while not is_waiting(process, tmp_path):
                await anyio.sleep(0.005)
        interrupt(process, thread)
        _, errors = await to_thread.run_sync(lambda: process.communicate(timeout=HANG))
    assert process.returncode == 130  # not that of a download that ended by itself
    assert "Traceback" not in errors


@pytest.mark.anyio
async def test_a_model_pulled_without_any_configuration_is_offered(tmp_path: Path) -> None:
    async with standin({"model.gguf": bundled.GGUF.read_bytes()}) as hub:
        process = start("serve", "--port", "0", folder=tmp_path, HF_ENDPOINT=hub.url)
        url = greeting(process)[1].rpartition(" ")[2]
        pulling = start("pull", "hf:org/small", "--url", url, folder=tmp_path)
        _, errors = await to_thread.run_sync(lambda: pulling.communicate(timeout=HANG))
        assert pulling.returncode == 0, errors
        assert (tmp_path / ".cache/roundhouse/models/small/model.gguf").is_file()
        async with httpx.AsyncClient(timeout=HANG) as client:
            listed = (await client.get(f"{url}/v1/models")).json()["data"]
        assert [one["id"] for one in listed] == [bundled.GGUF.stem, "small/model"]
    assert stop(process, signal.SIGTERM) == 0


def test_folders_that_are_configured_take_the_downloads() -> None:
    config = Config(model_dirs=("/srv/models",))
    assert with_downloads(config) is config
