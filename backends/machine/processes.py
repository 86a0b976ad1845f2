"""Processes that serve models: the memory that a tree of them takes, whose a port is, their end.

Main memory is counted by proportional set sizes (proc(5), smaps_rollup): a page that several
processes share is counted once. That of cards is what NVIDIA's driver says of each process.
"""

import os
import signal
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Literal

from backends.contract.catalog import CPU
from backends.machine.devices import held_by
from backends.machine.guardian import PR_SET_PDEATHSIG, PROC, descendants, prctl


def tree_memory(
    root: int, cards: Callable[[Collection[int]], Mapping[str, int]] = held_by
) -> Mapping[str, int] | None:
    """Bytes per device of all processes below `root`, without itself; None where there is no
    /proc, or none of them is left. Blocks for some milliseconds.
    """
    pids = frozenset(descendants(root))
    sizes = [size for pid in pids if (size := proportional(pid)) is not None]
    return {CPU: sum(sizes), **cards(pids)} if sizes else None


def proportional(pid: int | Literal["self"]) -> int | None:
    """Bytes of main memory that a process has, what it shares in equal parts; None for one that is
    gone, or another user's, or where there is no /proc.
    """
    with suppress(OSError, ValueError):
        for line in PROC.joinpath(str(pid), "smaps_rollup").read_bytes().splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    return None


def owner_of_listener(port: int) -> int | None:
    """The id of the user whose process listens at a TCP port of this machine; None: nobody does, or
    it isn't known here.
    """
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in PROC.joinpath("net", table).read_text("ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                    return int(fields[7])
    return None


def is_foreign(port: int) -> bool:
    """Whether somebody else's process listens there; the system's may, for a container's."""
    return owner_of_listener(port) not in (None, 0, os.getuid())


def end_with(parent: int) -> None:
    """Have the kernel end this process when its parent, that process, does."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # where there is none the end of the socket is left
    if os.getppid() != parent:  # it ended meanwhile
        os._exit(0)
