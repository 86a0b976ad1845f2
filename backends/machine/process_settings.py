"""Settings of a process that computes, made before an engine's library is loaded."""

import ctypes
import gc
import sys
from collections.abc import MutableMapping

M_ARENA_MAX, ARENAS = -8, 2  # mallopt(3), malloc.h
SPINS = 10_000  # of a thread that waits for others, about 0.2 ms
# The engine's thread, back from the device, waits for the GIL as long as this when the event loop
# computes: Python's default of 5 ms is many steps of a small model. With 0.2 instead of 1 ms the
# first text comes a fifth sooner at 4 and 16 streams; tokens/s stay (benchmarks/results/diary.md).
SWITCH_INTERVAL = 0.0002
# Python goes through all objects of the process, looking for cycles, whenever 70,000 were made
# (700 * 10 * 10) and a quarter of all are new: a body of as many objects stops every other thread
# for 0.1 to 0.7 s. Ten times rarer; the young ones are looked at as often as ever. A hundred times
# rarer would keep 0.65 kB of each answer for 150,000 answers: cycles that were long in use.
FULL_COLLECTIONS = 100


def prepare_process(environment: MutableMapping[str, str]) -> None:
    """Once, before an engine's library is loaded: `environment` is the process's own.

    libgomp spins 300,000 times before a waiting thread sleeps, which takes longer than a time
    slice: a thread that waits for one on its own core keeps it from running. With `SPINS` the worst
    step beside a busy process takes a third of the time and an idle machine loses nothing
    (benchmarks/results/diary.md). What the user has set stays.
    """
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", str(SPINS))
    sys.setswitchinterval(SWITCH_INTERVAL)
    gc.set_threshold(*gc.get_threshold()[:2], FULL_COLLECTIONS)
    if "MALLOC_ARENA_MAX" not in environment:
        _bound_arenas()


def _bound_arenas() -> None:
    """Two arenas, where glibc would make up to eight a core: what is free in one serves no other.
    Models are loaded on one thread after another, so that each arena keeps fragmented memory of its
    own, a seventh of the process after hundreds of loads (benchmarks/results/diary.md).
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None and sys.platform == "linux":
        mallopt(M_ARENA_MAX, ARENAS)


def trim_heap() -> None:
    """Return to the system what was freed, and what the C library keeps for the process: after
    large things were there that is a lot, torn into pieces. glibc has malloc_trim(3) for it;
    elsewhere there is nothing to do.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)  # ctypes lets go of the interpreter meanwhile
