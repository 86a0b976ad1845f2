"""The number of threads that a step computes with: as many as there are cores for them.

Barriers of OpenMP (libgomp) spin: with a thread per core and one busy neighbour, two of our threads
may share a core, and each of a step's many barriers then costs a time slice. So what others keep
busy is left to them; other processes are looked at once a second, and what computes in this one is
known at once. It knows no engine.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import TypeVar

from backends.machine import control_groups
from backends.machine.control_groups import ROOT, text
from config.values import Threads

T = TypeVar("T")

_SMT = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
_FIRST_CPU_LINE, _IDLE_FIELDS = 1, (4, 5)  # /proc/stat: "cpu0 user nice system idle iowait …"


def count() -> int:
    """Those that its affinity leaves it, where the system reports it; else all."""
    return len(_allowed())


def _allowed() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def cores(root: Path = ROOT) -> int:
    """The cores that can compute for us at once: those of the affinity, hyperthreads of one core
    counted once, and no more than the CPU quota of the cgroup pays for. At least 1.

    Where the system doesn't report which processors are hyperthreads all count. `root` is where
    /proc and /sys are.
    """
    physical = {text(root / _SMT.format(cpu)) or str(cpu) for cpu in _allowed()}
    quota = cpu_quota(root)
    return max(1, min(len(physical), len(physical) if quota is None else int(quota)))


def cpu_quota(root: Path = ROOT) -> float | None:
    """The CPU seconds per second that the cgroup and those above it leave this process; None: no
    limit. Reads cgroup v2's `cpu.max` and v1's `cpu.cfs_quota_us`.
    """
    return min(_quotas(root), default=None)


def _quotas(root: Path) -> Iterator[float]:
    for folder in control_groups.groups("cpu", root):
        yield from _quota(*text(folder / "cpu.max").split())
        yield from _quota(text(folder / "cpu.cfs_quota_us"), text(folder / "cpu.cfs_period_us"))


def _quota(quota: str = "", period: str = "") -> Iterator[float]:
    """v1 writes -1 for no limit, v2 "max"."""
    if quota.isdecimal() and period.isdecimal() and int(quota) and int(period):
        yield int(quota) / int(period)


class IdleCores:
    """How many of the processors we may use had nothing to do since the last call."""

    def __init__(self, root: Path = ROOT) -> None:
        self._stat = root / "proc/stat"
        self._allowed = {f"cpu{number}" for number in _allowed()}
        self._ticks = 1 / os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0.0
        self._last = time.monotonic(), self._idle_seconds()

    def __call__(self) -> float | None:
        """None where the system doesn't report it."""
        before, idle_before = self._last
        now, idle = self._last = time.monotonic(), self._idle_seconds()
        if idle is None or idle_before is None or now <= before:
            return None
        return (idle - idle_before) / (now - before)

    def _idle_seconds(self) -> float | None:
        """Linux' `/proc/stat`, in which waiting for a disk counts as idle."""
        if not self._ticks:
            return None
        found = [
            sum(int(fields[field]) for field in _IDLE_FIELDS)
            for line in text(self._stat).splitlines()[_FIRST_CPU_LINE:]
            if (fields := line.split())[0] in self._allowed
        ]
        return sum(found) * self._ticks if any(found) else None


LOOK_EVERY = 1.0  # seconds between two readings of what is idle
BETWEEN = 0.02  # seconds from a step to the next, at most, of an engine that computes
# Threads of this process that compute, a model's each: when its step ended; infinite: in one.
_computing: dict[int, float] = {}


def rested() -> None:
    """This thread computes no more: its step failed, or its engine ends."""
    _computing.pop(threading.get_ident(), None)


def most(threads: Threads | None) -> int:
    """Of them at once: the option's number, or all that there can be."""
    if isinstance(threads, int):
        return threads
    return count() if threads == "all" else cores()


def left(idle: float, own: float) -> int:
    """The cores that others leave us: the `idle` ones, and as many as this process used."""
    return max(1, round(idle + own))


class StepThreads:
    """Times an engine's steps and sets its threads: `use(count)` before a step that needs another
    count. Only the thread that computes may call it.

        threads.begin(rows)
        ...
        seconds = threads.end()
        ...threads.needed...

    `single`, `batch`: for a step of one token, and of more, as llama.cpp's options `threads` and
    `threads_batch` are meant. `beside`: a card computes meanwhile, which this process waits for.
    """

    def __init__(
        self,
        single: Threads | None,
        batch: Threads | None,
        use: Callable[[int], None],
        idle_cores: Callable[[], float | None] | None = None,
        *,
        beside: bool = False,
    ) -> None:
        # Seconds that the last step would have taken with a core for this thread alone: what others
        # take of it falls upon long steps, and seldom upon short ones.
        self.needed = 0.0
        self._most = most(single), most(batch)
        self._adapts = tuple(threads in {None, "auto"} for threads in (single, batch))
        self._free = max(self._most)  # cores
        self._use = use
        self._idle_cores = idle_cores or IdleCores()
        self._beside = beside
        self._count = 0
        self._started = self._computed = 0.0  # seconds
        self._looked = time.perf_counter(), time.process_time()

    def begin(self, rows: int) -> None:
        """A step of `rows` tokens comes."""
        several = rows > 1
        count = self._most[several]
        if self._adapts[several]:
            count = max(1, min(count // (1 + self._others()), self._free))
        if count != self._count:
            self._use(count)
            self._count = count
        self._computed = time.thread_time()
        self._started = time.perf_counter()
        _computing[threading.get_ident()] = 0.0 if self._beside else math.inf

    def _others(self) -> int:
        """Models of this process that compute meanwhile: a thread each, which drafts on it, too."""
        since, own = time.perf_counter() - BETWEEN, threading.get_ident()
        return sum(last > since for one, last in list(_computing.items()) if one != own)

    def end(self) -> float:
        """The step is done. Returns the seconds it took."""
        now, computed = time.perf_counter(), time.thread_time() - self._computed
        seconds = now - self._started
        self.needed = seconds if self._beside else computed
        _computing[threading.get_ident()] = 0.0 if self._beside else now
        if any(self._adapts) and now - self._looked[0] >= LOOK_EVERY:
            self._look(now)
        return seconds

    def _look(self, now: float) -> None:
        own, (before, own_before) = time.process_time(), self._looked
        if (idle := self._idle_cores()) is not None:
            self._free = left(idle, (own - own_before) / (now - before))
        self._looked = now, own


_stack = threading.Lock()  # of `threading.stack_size`, which is the process's


def submit_deep(executor: Executor, stack: int, call: Callable[[], T]) -> "Future[T]":
    """As `executor.submit`; a thread that it begins for that has `stack` bytes of stack."""
    with _stack:
        before = threading.stack_size(stack)
        try:
            return executor.submit(call)
        finally:
            threading.stack_size(before)
