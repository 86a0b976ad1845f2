"""Processes of `roundhouse` that are forked from one that has imported it: importing takes a second
of processor time, a fork a hundredth.

    test ──begin──▶ parent: has imported what a server imports, and waits
                    parent ──fork──▶ `roundhouse ARGUMENTS`, in its folder, with its environment

The parent has one thread and opens nothing. What a process does from its first line of
`gateway.cli` on is what it does when it is started anew; what Python and imports do before is not
tried here, so some tests start one anew (`tests/served.py`, `anew`).
"""

import atexit
import gc
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Self

import msgspec

from config.settings import Config, HubConfig
from config.shape import leaves
from tests.signatures import read_once

ROOT = Path(__file__).parents[1]
LARGEST = 1 << 17  # bytes of a `Start`
NUMBER = struct.Struct("i")  # first the process's, then its exit status as `Popen` has it
SINGLE = {"OPENBLAS_NUM_THREADS": "1"}
IMPORTED = (
    "gateway.cli.serve",
    "gateway.cli.check",
    "gateway.cli.remote",
    "uvicorn.loops.uvloop",
    "uvicorn.lifespan.on",
    "anyio._backends._asyncio",
    "encodings.idna",
    "backends.engines.scripted",
    "backends.engines.exllamav2.files",
    "backends.engines.exllamav3.files",
    "backends.engines.transformers.files",
)


class Start(msgspec.Struct, frozen=True):
    """What a process begins with. `files`: that it may have open."""

    arguments: Sequence[str]
    folder: str
    environment: Mapping[str, str]
    files: int | None


class Parent:
    """The process that forks, seen from the one that runs the tests."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.forked", str(other.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                cwd=ROOT,
                # numpy's library makes threads, which a fork would lose
                env={**environment, **SINGLE, "PYTHONPATH": str(ROOT), "HOME": "/nonexistent"},
            )
        atexit.register(self.close)

    def begin(self, start: Start, *files: int) -> None:
        """`files`: its stdout, its stderr, and where its numbers are told."""
        socket.send_fds(self._control, [msgspec.json.encode(start)], files)

    def close(self) -> None:
        """What it forked runs on."""
        self._control.close()
        self._process.wait()


@cache
def parent(path: str) -> Parent:
    """Started when it is needed first."""
    return Parent({"PATH": path})


class Forked:
    """A process, with what tests use of `subprocess.Popen`."""

    def __init__(self, start: Start, stderr: int) -> None:
        """`stderr`: a file, or `subprocess.PIPE`."""
        told, tells = os.pipe()
        out, to_out = os.pipe()
        self.stdout: IO[str] = os.fdopen(out, encoding="utf-8")
        self.stderr: IO[str] | None = None
        theirs = [to_out, tells]
        if stderr == subprocess.PIPE:
            errors, stderr = os.pipe()
            self.stderr = os.fdopen(errors, encoding="utf-8")
            theirs.append(stderr)
        parent(start.environment["PATH"]).begin(start, to_out, stderr, tells)
        for file in theirs:
            os.close(file)
        self._told = told
        (self.pid,) = NUMBER.unpack(os.read(told, NUMBER.size))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit status, where it has ended."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("roundhouse", timeout or 0.0)
            (self.returncode,) = NUMBER.unpack(os.read(self._told, NUMBER.size))
            os.close(self._told)
        return self.returncode

    def send_signal(self, kind: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, kind)

    def kill(self) -> None:
        """Whatever it does."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()
        self.stdout.close()
        if self.stderr is not None:
            self.stderr.close()


def serve(control: socket.socket) -> Start | None:
    """Fork what is asked for, and tell how it ends. In each process it returns what that is to do;
    in the parent None, when nobody will ask.
    """
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the tests' to follow
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    running: dict[int, int] = {}  # by process, where its status is told
    while True:
        ready, _, _ = select.select([control.fileno(), wake], [], [])
        if wake in ready:
            os.read(wake, 512)
            tell_ends(running)
        if control.fileno() not in ready:
            continue
        data, files, _, _ = socket.recv_fds(control, LARGEST, 3)
        if not data:
            return None
        out, errors, tells = files
        if (pid := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.dup2(out, 1)
            os.dup2(errors, 2)
            control.close()
            for file in {wake, woken, *files, *running.values()}:
                os.close(file)
            return msgspec.json.decode(data, type=Start)
        running[pid] = tells
        os.write(tells, NUMBER.pack(pid))
        os.close(out)
        os.close(errors)


def tell_ends(running: dict[int, int]) -> None:
    """Of all that have ended."""
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            tells = running.pop(ended[0])
            with suppress(BrokenPipeError):  # nobody waits for it
                os.write(tells, NUMBER.pack(os.waitstatus_to_exitcode(ended[1])))
            os.close(tells)


def become(start: Start) -> int:
    """Run it: its exit status."""
    from gateway.cli import main as command  # what the parent imported

    os.chdir(start.folder)
    coerced = {name: value for name, value in os.environ.items() if name == "LC_CTYPE"}  # PEP 538
    os.environ.clear()
    os.environ.update({**coerced, **start.environment})
    if start.files is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (start.files, start.files))
    sys.argv = ["roundhouse", *start.arguments]
    sys.stdout = os.fdopen(1, "w", encoding="utf-8")  # as Python begins with them
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    return command()


def rehearse() -> None:
    """Build an application: what is read of signatures and types for the first is there for all.
    So are the options, and whether llama.cpp is built for cards.
    """
    from backends.machine import ggml
    from gateway.http.metrics import Metrics
    from gateway.registry import ModelLibrary, Registry
    from gateway.serving.app import build

    config = Config(hub=HubConfig(cache=os.devnull))  # else the environment is read, and kept
    list(leaves(Config))
    ggml.offloads()
    build(config, Registry(ModelLibrary(config, cache=None), config), Metrics())


def main(control: int) -> int:
    """Of the parent, and of what it forks."""
    for name in IMPORTED:
        import_module(name)
    with suppress(ImportError):
        import_module("backends.engines.llamacpp.container")
    read_once()
    rehearse()
    gc.collect()
    gc.freeze()  # or the first collection would copy what processes share
    start = serve(socket.socket(fileno=control))
    return 0 if start is None else become(start)


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1])))
