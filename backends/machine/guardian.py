"""Runs a command, and leaves nothing of it behind:

    python -I -S guardian.py SECONDS INPUT WORD...

A program of its own between the server and the command, since a server that is killed can't clean
up. Its standard input is a socket to the server: `started PID`, `refused REASON` and `ended STATUS`
are written to it (a status as `Popen.returncode` has it), and when the server closes its end,
because it wants the command to stop or because it is gone, the command gets SIGTERM, and whatever
is left of it after SECONDS gets SIGKILL.

INPUT is the descriptor that the command gets as its standard input; -1: it gets an empty one.

The command is the leader of a process group. Whatever it starts has this program for its last
ancestor (Linux: a "child subreaper", prctl(2)), also what leaves the group or loses its parent.

It imports nothing of this project.
"""

import ctypes
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LOOK_AGAIN = 0.01  # seconds between two looks at processes that were killed
PATIENCE = 5.0  # seconds that killed ones may take to go: the kernel may still write for them
WAITED_FOR = 0.5  # seconds between two looks at what may have lost its parent meanwhile
PROC = Path("/proc")
NOT_STARTED = 127  # exit status, as shells have it


def main(seconds: float, given: int, words: Sequence[str]) -> None:
    """Returns when no process of the command is left."""
    control = socket.socket(fileno=os.dup(0))  # which the command doesn't inherit (PEP 446)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    wake, write = os.pipe()
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    command = Command(control, given, words)
    command.start()
    if given >= 0:
        os.close(given)  # the server's end closes when the command's alone is left, and is closed
    command.watch(wake)
    command.stop(wake, seconds)
    command.tell(f"ended {command.status}")


class Command:
    """The command, and what descends from it."""

    def __init__(self, control: socket.socket, given: int, words: Sequence[str]) -> None:
        self._control = control
        self._given = given  # its standard input
        self._words = words
        self._pid = 0
        self.status: int | None = None  # None: it runs

    def start(self) -> None:
        """Run it. Its output is this program's."""
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            self._become(parent)
        with suppress(OSError):  # the child may have done it, and be another program already
            os.setpgid(self._pid, self._pid)
        self.tell(f"started {self._pid}")

    def _become(self, parent: int) -> None:
        """In the child: never returns."""
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.setpgid(0, 0)
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # it died before the signal was asked for
                os._exit(NOT_STARTED)
            given = self._given if self._given >= 0 else os.open(os.devnull, os.O_RDONLY)
            os.dup2(given, 0)
            os.execvp(self._words[0], [*self._words])  # noqa: S606 - words: nothing is expanded
        except OSError as error:
            self.tell(f"refused {error.strerror}")
        finally:
            os._exit(NOT_STARTED)

    def tell(self, text: str) -> None:
        """The server, if it is still there."""
        with suppress(OSError):
            self._control.sendall(f"{text}\n".encode())

    def watch(self, wake: int) -> None:
        """Until it ends, or the server wants it to, or this program is told to stop."""
        while self.status is None:
            control = self._control.fileno()
            ready, _, _ = select.select([control, wake], [], [])
            if wake in ready and set(os.read(wake, 512)) - {signal.SIGCHLD}:
                return
            self._reap()
            if control in ready and not _received(self._control):
                return

    def stop(self, wake: int, seconds: float) -> None:
        """Until all of it is gone."""
        deadline, told = time.monotonic() + seconds, set[int]()
        if self.status is None:
            self._signal_group(signal.SIGTERM)
            told.add(self._pid)
        while self._reap():
            if time.monotonic() >= deadline:
                self._kill()
                return
            if self.status is not None:  # what it left behind
                for pid in set(descendants(os.getpid())) - told:
                    told.add(pid)
                    _signal(pid, signal.SIGTERM)
            select.select([wake], [], [], min(WAITED_FOR, max(0.0, deadline - time.monotonic())))
            with suppress(OSError):
                os.set_blocking(wake, False)
                os.read(wake, 512)

    def _kill(self) -> None:
        """A process that is killed may have started another meanwhile."""
        deadline = time.monotonic() + PATIENCE
        while self._reap() and time.monotonic() < deadline:
            self._signal_group(signal.SIGKILL)
            for pid in descendants(os.getpid()):
                _signal(pid, signal.SIGKILL)
            time.sleep(LOOK_AGAIN)

    def _signal_group(self, number: int) -> None:
        with suppress(OSError):
            os.killpg(self._pid, number)

    def _reap(self) -> bool:
        """Whether a process is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._pid:
                self.status = os.waitstatus_to_exitcode(status)


def _received(control: socket.socket) -> bytes:
    """Empty where the other end is closed, also by an end that had not read all it was told."""
    try:
        return control.recv(512)
    except ConnectionResetError:
        return b""


def _signal(pid: int, number: int) -> None:
    with suppress(OSError):
        os.kill(pid, number)


def descendants(ancestor: int) -> Iterator[int]:
    """The processes below one, as they are now. Linux alone: elsewhere none is found."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found = list(children.get(ancestor, ()))
    while found:
        pid = found.pop()
        yield pid
        found += children.get(pid, ())


def _parents() -> Iterator[tuple[int, int]]:
    try:
        paths = [path for path in PROC.iterdir() if path.name.isdigit()]
    except OSError:
        return
    for path in paths:
        with suppress(OSError, ValueError, IndexError):
            # The second field is the program's name in brackets, which may hold any (proc(5)).
            fields = path.joinpath("stat").read_bytes().rpartition(b")")[2].split()
            yield int(path.name), int(fields[1])


def prctl(option: int, value: int) -> None:
    """Where there is such a call (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
