"""The program between a server and a command."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

from backends.machine import guardian
from tests.hang import HANG

GUARDIAN = (sys.executable, "-I", "-S", str(Path(guardian.__file__)))


def test_a_server_that_ends_with_something_unread_leaves_nothing_behind(tmp_path: Path) -> None:
    """The connection is reset then, not closed: as where it is killed behind a command's start."""
    server, control = socket.socketpair()
    words = ("1", "-1", "/bin/sh", "-c", "sleep 1000 & wait")
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen([*GUARDIAN, *words], stdin=control.fileno(), stderr=said)
    control.close()
    until = time.monotonic() + HANG
    while len(begun := psutil.Process(process.pid).children(recursive=True)) < 2:
        assert time.monotonic() < until
        time.sleep(0.01)
    server.close()
    status = process.wait(HANG)
    left = [one for one in begun if one.is_running()]
    for one in left:
        one.kill()
    assert (status, left, (tmp_path / "said").read_text()) == (0, [], "")
