"""Starts and stops the servers that are measured: Roundhouse, llama.cpp's and llama-cpp-python's.

The others have dependencies that the project doesn't want, so each lives in a virtual environment
of its own inside the present one.
"""

import contextlib
import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import msgspec

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = Path(__file__).parent / "peers.txt"
# What is installed for whom. pip takes the wheel of llama-cpp-python that it built before.
LLAMA_CPP_PYTHON = ("--constraint", str(CONSTRAINTS), "llama-cpp-python[server]")
LLAMA_SERVER = ("xllamacpp==2026.10.11549",)  # llama.cpp's own server as a wheel
ROUNDHOUSE = (
    "from gateway.cli import main; raise SystemExit(main())"  # this one, not an installed one
)
PATIENCE = 300.0  # seconds until a server must listen, also beside busy processes
GRACE = 10.0  # seconds until a server that was told to stop must have stopped
LONGEST = 900  # CPU seconds after which a busy process ends, even if nobody ends it
BUSY = f"ulimit -t {LONGEST}; while :; do :; done"
LAST_WORDS = 2000  # characters of what a server or pip printed
LOOK_AGAIN = 0.005  # seconds between two attempts to connect: the precision of `Running.started_in`


class Running(msgspec.Struct, frozen=True):
    """A server that listens on 127.0.0.1."""

    port: int
    pid: int
    started_in: float  # seconds from the start of the process until it listened


class DidNotStart(Exception):
    """The server ended, did not listen in time or can't be installed; the message holds its last
    words.
    """


def peer(
    running: contextlib.ExitStack, name: str, server: contextlib.AbstractContextManager[Running]
) -> Running | None:
    """Another server, to the end of `running`. One that can't be had is left out: a line says
    why.
    """
    try:
        return running.enter_context(server)
    except DidNotStart as error:
        print(f"{name} is left out: {error}", flush=True)
        return None


@contextlib.contextmanager
def roundhouse(
    *arguments: str, environment: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Running]:
    """`roundhouse serve` of this checkout, with further arguments and variables: it is started in
    `ROOT`, which comes before PYTHONPATH and what is installed. Raises DidNotStart.
    """
    port = free_port()
    command = [sys.executable, "-c", ROUNDHOUSE, "serve", "--port", str(port), *arguments]
    with serving(command, port, environment) as running:
        yield running


def llamacpp_options(**options: str) -> Mapping[str, str]:
    """The environment that gives `roundhouse` these options of the llama.cpp engine."""
    return {f"ROUNDHOUSE_ENGINES_LLAMACPP_{name.upper()}": value for name, value in options.items()}


@contextlib.contextmanager
def llama_cpp_python(
    model: Path, context: int, *, interrupt: bool, embedding: bool = False
) -> Iterator[Running]:
    """llama-cpp-python's server with one context of `context` tokens. Raises DidNotStart.

    `interrupt`, its default: a request that comes cuts off the one that runs. Without, requests
    stand in line.
    """
    port = free_port()
    options = {
        "--model": str(model),
        "--model_alias": model.stem,
        "--host": "127.0.0.1",
        "--port": str(port),
        "--n_ctx": str(context),
        "--logits_all": "false",  # its default keeps all logits, which nobody asks for here
        "--verbose": "false",
        "--interrupt_requests": str(interrupt).lower(),
        "--embedding": str(embedding).lower(),
    }
    flat = [word for option in options.items() for word in option]
    python = str(peer_python("peers", LLAMA_CPP_PYTHON))
    with serving([python, "-m", "llama_cpp.server", *flat], port) as running:
        yield running


@contextlib.contextmanager
def llama_server(
    model: Path,
    context: int,
    slots: int,
    *,
    cache_type: str = "f16",
    drafts: str = "none",
    threads: int = 0,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Running]:
    """llama.cpp's own server with `context` tokens for each of `slots` requests; `drafts` as its
    `--spec-type` has it; 0 `threads`: its default. Raises DidNotStart.
    """
    port = free_port()
    python = str(peer_python("peers-llama-server", LLAMA_SERVER))
    script = str(Path(__file__).parent / "llama_server.py")
    arguments = [str(model), str(port), str(context), str(slots), cache_type, drafts, str(threads)]
    with serving([python, script, *arguments], port, environment) as running:
        _wait_until_healthy(port)
        yield running


def _wait_until_healthy(port: int) -> None:
    """llama-server listens before its model is loaded, and refuses until then. Raises
    DidNotStart.
    """
    deadline = time.perf_counter() + PATIENCE
    while time.perf_counter() < deadline:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        with contextlib.closing(connection):
            connection.request("GET", "/health")
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        time.sleep(LOOK_AGAIN)
    raise DidNotStart("llama-server's model was not loaded in time")


def peer_python(name: str, install: Sequence[str], within: Path = Path(sys.prefix)) -> Path:
    """The interpreter of a peer's environment, which is made at the first call; `install` is what
    pip is asked for. Raises DidNotStart when it can't be made.
    """
    folder = within / name
    python, ready = folder / "bin" / "python", folder / ".ready"
    if not ready.exists():
        print(f"Installing {install[-1]} into {folder}", flush=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for command in ([sys.executable, "-m", "venv", str(folder)], [*pip, *install]):
            _done(command)
        ready.touch()
    return python


def _done(command: Sequence[str]) -> None:
    """Raises DidNotStart with the end of what a command printed."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        words = (ended.stdout + ended.stderr).strip()[-LAST_WORDS:]
        raise DidNotStart(f"{' '.join(command[1:4])} failed: {words}")


@contextlib.contextmanager
def serving(
    command: Sequence[str], port: int, environment: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Running]:
    """Run a server until the block ends, then stop it. Raises DidNotStart."""
    with tempfile.TemporaryFile() as log:
        started = time.perf_counter()
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait_until_listening(process, port, log)
            yield Running(port, process.pid, time.perf_counter() - started)
        finally:
            _stop(process)


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[Sequence[int]]:
    """So many processes that each want a core; their ids. They end with the block, or by
    themselves after `LONGEST` CPU seconds.
    """
    with contextlib.ExitStack() as ended:
        started = []
        for _ in range(count):
            process = subprocess.Popen(["sh", "-c", BUSY])
            ended.callback(process.wait)
            ended.callback(process.kill)
            started.append(process.pid)
        yield started


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_listening(process: subprocess.Popen[bytes], port: int, log: IO[bytes]) -> None:
    """Foreign servers tell in no common way that they listen, so this tries to connect."""
    deadline = time.perf_counter() + PATIENCE
    while process.poll() is None and time.perf_counter() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(LOOK_AGAIN)
        else:
            return
    log.seek(0)
    raise DidNotStart(
        f"{process.args!r} does not listen: {log.read()[-LAST_WORDS:].decode(errors='replace')}"
    )


def _stop(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
