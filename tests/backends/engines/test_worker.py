"""The program that forks workers."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from backends.engines import worker
from tests.hang import HANG


def test_a_gateway_that_ends_with_a_report_unread_is_no_fault(tmp_path: Path) -> None:
    """The connection is reset then, not closed."""
    gateway, control = socket.socketpair()
    words = (control.fileno(), os.getpid(), "toy", "no.such.engine", "config.engines", "Toy")
    program = f"from {worker.__name__} import main; import sys, config.engines as it; it.Toy = None"
    with (tmp_path / "said").open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-c", f"{program}; main(sys.argv[1:])", *map(str, words), "bare"],
            pass_fds=(control.fileno(),),
            stderr=said,
        )
    control.close()
    gateway.settimeout(HANG)
    ours, connection = socket.socketpair()
    with ours, connection, Path(os.devnull).open("wb") as errors:
        socket.send_fds(gateway, [b"."], [connection.fileno(), errors.fileno()])
        gateway.recv(1, socket.MSG_PEEK)  # a worker was forked, and it says so
    gateway.close()
    assert (process.wait(HANG), (tmp_path / "said").read_text()) == (0, "")
