"""Starts and stops the servers that are measured: Roundhouse, and llama-cpp-python's own.

llama-cpp-python's server has dependencies that the project doesn't want, so it lives in a virtual
environment of its own inside the present one; pip takes the wheel that it built before.
"""

import contextlib
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
PEERS = Path(sys.prefix) / "peers"
ROUNDHOUSE = (
    "from gateway.cli import main; raise SystemExit(main())"  # this one, not an installed one
)
PATIENCE = 60.0  # seconds until a server must listen
GRACE = 10.0  # seconds until a server that was told to stop must have stopped
LOOK_AGAIN = 0.005  # seconds between two attempts to connect: the precision of `Running.started_in`


class Running(msgspec.Struct, frozen=True):
    """A server that listens on 127.0.0.1."""

    port: int
    pid: int
    started_in: float  # seconds from the start of the process until it listened


class DidNotStart(Exception):
    """The server ended, or did not listen in time; the message holds its last words."""


@contextlib.contextmanager
def roundhouse(
    *arguments: str, environment: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Running]:
    """`roundhouse serve` of this checkout, with further arguments and variables. Raises
    DidNotStart.
    """
    port = free_port()
    command = [sys.executable, "-c", ROUNDHOUSE, "serve", "--port", str(port), *arguments]
    with serving(command, port, environment) as running:
        yield running


@contextlib.contextmanager
def llama_cpp_python(model: Path, context: int, *, interrupt: bool) -> Iterator[Running]:
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
    }
    flat = [word for option in options.items() for word in option]
    with serving([str(peers_python()), "-m", "llama_cpp.server", *flat], port) as running:
        yield running


def peers_python() -> Path:
    """The interpreter of the peers' environment, which is made at the first call.

    Raises CalledProcessError when it can't be made.
    """
    python = PEERS / "bin" / "python"
    ready = PEERS / ".ready"
    if not ready.exists():
        print(f"Installing llama-cpp-python's server into {PEERS}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        pinned = ["--constraint", str(ROOT / "constraints.txt"), "llama-cpp-python[server]"]
        subprocess.run([*install, *pinned], check=True)
        ready.touch()
    return python


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
        f"{process.args!r} does not listen: {log.read()[-2000:].decode(errors='replace')}"
    )


def _stop(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
