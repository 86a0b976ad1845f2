"""Chooses how many threads a step computes with, by measuring which count is fastest.

What is best changes with what else runs on the machine. OpenMP's barriers (libgomp) spin: with a
thread per core and one busy neighbour, two of our threads may share a core, and each of a step's
many barriers then costs a time slice. A step that takes 0.3 ms takes up to a second, and one thread
is five to a hundred times faster than two. On an idle machine two threads win. Only measuring shows
it.

`ThreadController` is pure: it knows no clock, no engine and no system. It is fed with the times of
steps and answers which count the next one should use. Steps of about the same size (`bucket`) are
compared with each other only. Most steps use the best count known; now and then a few try the next
lower or higher one, for `TRIAL` seconds. A trial that loses costs little and makes the next one
wait; steps that become slow make a lower count be tried at once. `StepThreads` does that for an
engine.

Costs are mean times, not medians: where threads wait for each other most steps are as fast as ever
and a few take all the time.

How many processors this process may use, and how many of them are idle. Knows no engine.
"""

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from backends import control_groups
from backends.control_groups import ROOT, text
from config.values import Threads

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
    physical = {_siblings(root, cpu) for cpu in _allowed()}
    quota = cpu_quota(root)
    return max(1, min(len(physical), len(physical) if quota is None else int(quota)))


def _siblings(root: Path, cpu: int) -> str:
    return text(root / _SMT.format(cpu)) or str(cpu)


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


Kind: TypeAlias = Literal["decode", "prefill"]  # one token per sequence, or chunks of prompts

EPOCH = 0.05  # seconds of steps that make one figure of the count in use
TRIAL = 0.025  # seconds of a trial; one that seems to win goes on until one of these is reached
CONFIRM_STEPS, CONFIRM_SECONDS, LONGEST_TRIAL = 10, 0.075, 0.5
# A trial is given up after so few steps where each of them costs so many times what it does now: an
# 18th of the speed, as two threads have it next to a busy second core, is seen in three steps.
HOPELESS_STEPS, HOPELESS = 3, 2.0
BETTER = 0.98  # a trial wins when a step costs less than this share of what it costs now
SLOWER = 1.3  # something has changed when a step costs this much more than it did
RECENT = 0.3  # weight of the newest figure in the mean
FIRST_WAIT = 0.5  # seconds of steps until a trial in the same direction after one that lost
# The same, towards more threads, after steps became slow: what took a core is mostly gone in no
# time, and with fewer threads until `FIRST_WAIT` a tenth of the speed was lost to it.
BACK_WAIT = 0.05
LONGEST_WAIT = {-1: 4.0, 1: 1.5}  # lower counts are also tried when steps become slow
LOST_SHARE = {-1: 0.02, 1: 0.06}  # of all time may go to trials that lose
NO_CORE_WAIT = 8.0  # more seconds between trials of more threads while no core is idle
IDLE_CORE = 0.4  # idle cores below which another thread has nowhere to run
IDLE_EVERY = 0.3  # seconds between two readings of the system's idle time


def candidates(cores: int) -> tuple[int, ...]:
    """The counts worth trying on so many cores: 1, 2, 3, 4, 6, 8, 12, 16, … and all of them."""
    steps = {size for power in range(cores.bit_length()) for size in (1 << power, 3 << power)}
    return tuple(sorted({count for count in steps if count < cores} | {cores}))


def counts(threads: Threads | None) -> tuple[int, ...]:
    """The counts to choose from: one, unless the option is "auto", or null, its name before."""
    if isinstance(threads, int):
        return (threads,)
    return (count(),) if threads == "all" else candidates(cores())


def bucket(kind: Kind, rows: int) -> int:
    """Decoding steps of one bucket differ in size by less than half (1, 2, 3, 4, 5-6, 7-8, 9-12,
    …), chunks of prompts by less than twice: these are compared by the token, and hardly two are of
    one size, so that each of many buckets would be tried out for itself.
    """
    if kind == "prefill":
        return rows.bit_length()
    exponent = max(0, (rows - 1).bit_length() - 2)
    return exponent << 32 | -(-rows >> exponent)


class CommonKnowledge:
    """What the searches of one controller know together."""

    def __init__(self) -> None:
        self.now = 0.0  # seconds of steps so far
        self.idle: bool | None = None  # whether a core has nothing to do; None: not known
        self.crowded = False  # whether more threads were tried since the last reading of idle time
        self.changes = 0  # how often a search has found another count


class CountSearch:
    """The best of `counts` for steps of one kind and size."""

    def __init__(self, choices: Sequence[int], at: int, shared: CommonKnowledge) -> None:
        self._choices = choices
        self._shared = shared
        self._at = at  # index of the best count known
        self._trying: int | None = None
        self.count = choices[at]  # what the next step should use
        self._cost: float | None = None  # mean seconds of a unit of work with the best count
        self._late = False  # whether the last figure was that of one late step
        self._wait = {-1: FIRST_WAIT, 1: FIRST_WAIT}
        self._due = {-1: shared.now + FIRST_WAIT, 1: shared.now}
        self._reach = 0  # how far below, after steps became slow
        self._shortest = math.inf  # seconds of any step yet
        self._usual = 0.0  # what a unit of work cost before that
        self._returns = False  # whether more threads were better until then
        self._back_wait = BACK_WAIT
        self._moved = 0, -1.0  # direction and time of the last change
        self._seen = shared.changes
        self._begin(EPOCH)

    @property
    def best(self) -> int:
        """The best count known."""
        return self._at

    def _begin(self, seconds: float) -> None:
        self._seconds = self._work = self._longest = 0.0  # since `_begin`
        self._least = math.inf
        self._steps = 0
        self._until = seconds

    def measured(self, work: float, seconds: float) -> None:
        """A step with `count` threads did so much work in so much time."""
        self._seconds += seconds
        self._work += work
        self._steps += 1
        self._longest = max(self._longest, seconds)
        self._shortest = min(self._shortest, seconds)
        self._least = min(self._least, seconds / work)
        if self._trying is None:
            if self._seconds >= self._until:
                self._judge_current()
        elif self._seconds >= self._until or self._is_hopeless():
            self._judge_trial(self._trying)

    def _is_hopeless(self) -> bool:
        """Whether the trial has lost already: not one of its steps was near what they cost now."""
        assert self._cost is not None
        return self._steps >= HOPELESS_STEPS and self._least > HOPELESS * self._cost

    def _judge_current(self) -> None:
        cost = self._seconds / self._work
        slow = self._cost is not None and cost > SLOWER * self._cost
        if slow and not self._late and self._may_be_chance():
            self._late = True
            self._begin(TRIAL)
            return
        self._late = False
        if slow and not self._returns:
            self._usual = self._cost or 0.0
        if self._cost is None or slow:
            self._cost = cost
        else:
            self._cost += RECENT * (cost - self._cost)
        self._begin(EPOCH)
        if slow and self._at:
            self._wait[-1] = FIRST_WAIT
            self._reach = 1
            self._try(self._at - 1)
        elif (direction := self._next_direction()) is not None:
            self._try(self._at + direction)

    def _may_be_chance(self) -> bool:
        """Whether a single step made the last figure, or few did: the host took the core, say. That
        is no change yet.
        """
        assert self._cost is not None
        if CONFIRM_STEPS * self._shortest > EPOCH:
            return True  # all steps are long, and a trial takes ten of them
        others = self._seconds - self._longest
        expected = self._cost * self._work * (self._steps - 1) / self._steps
        return self._steps > 1 and others <= SLOWER * expected

    def _next_direction(self) -> int | None:
        """Whether it is time to try fewer (-1) or more (1) threads."""
        now = self._shared.now
        if self._seen != self._shared.changes:  # other steps found that something has changed
            self._seen = self._shared.changes
            self._due = dict.fromkeys(self._due, now)
        for direction in (1, -1):
            crowded = direction == 1 and self._shared.idle is False and not self._returns
            late = NO_CORE_WAIT if crowded else 0.0
            there = 0 <= self._at + direction < len(self._choices)
            if there and now >= self._due[direction] + late:
                return direction
        return None

    def _try(self, index: int) -> None:
        self._trying = index
        self.count = self._choices[index]
        self._begin(TRIAL)

    def _judge_trial(self, index: int) -> None:
        assert self._cost is not None
        self._shared.crowded |= index > self._at
        expected = self._work * self._cost
        if self._seconds < BETTER * expected:
            sure = self._steps >= CONFIRM_STEPS and self._seconds >= CONFIRM_SECONDS
            if sure or self._seconds >= LONGEST_TRIAL:
                self._won(index, self._seconds / self._work)
            else:
                self._until = self._seconds + TRIAL
        else:
            self._lost(index, self._seconds - expected)

    def _won(self, index: int, cost: float) -> None:
        direction = 1 if index > self._at else -1
        now, (before, when) = self._shared.now, self._moved
        flaps = before == 1 and now - when < FIRST_WAIT
        self._back_wait = 2 * self._back_wait if flaps else BACK_WAIT
        better_before = bool(self._reach) and self._usual < BETTER * cost
        self._returns = better_before and self._back_wait < FIRST_WAIT
        if self._returns:
            self._wait[1], self._due[1] = self._back_wait, now + self._back_wait
        elif before == -direction and now - when < 2 * LONGEST_WAIT[-direction]:
            self._lengthen(-direction, 0.0)  # the last change was none for the better
        else:
            self._wait[-direction] = FIRST_WAIT
            self._due[-direction] = now + FIRST_WAIT
        self._wait[direction], self._due[direction] = FIRST_WAIT, now
        self._moved = direction, now
        self._cost = cost
        self._reach = 0
        self._shared.changes += 1
        self._seen = self._shared.changes
        self._use(index)

    def _lost(self, index: int, seconds: float) -> None:
        if self._reach:
            self._due[-1] = self._shared.now + FIRST_WAIT
        else:
            self._lengthen(1 if index > self._at else -1, seconds)
        if self._reach and index:
            self._reach *= 2
            self._try(max(0, self._at - self._reach))
        else:
            self._reach = 0
            self._use(self._at)

    def _lengthen(self, direction: int, lost: float) -> None:
        """Let the next trial in that direction wait longer, by what the last one cost."""
        wait = self._wait[direction]
        self._due[direction] = self._shared.now + max(wait, lost / LOST_SHARE[direction])
        self._wait[direction] = min(2 * wait, LONGEST_WAIT[direction])
        if direction == 1 and wait >= FIRST_WAIT:
            self._returns = False  # what has changed stays so

    def _use(self, index: int) -> None:
        self._at = index
        self._trying = None
        self.count = self._choices[index]
        self._begin(EPOCH)

    def core_became_idle(self) -> None:
        """Try more threads sooner than the price of the last such trial would have it."""
        self._due[1] = min(self._due[1], self._shared.now + self._wait[1])


class ThreadController:
    """The counts for an engine's steps: of `single` for a step of one token, of `batch` for one of
    more, as llama.cpp's options `threads` and `threads_batch` are meant. Both are ascending.
    """

    def __init__(self, single: Sequence[int], batch: Sequence[int]) -> None:
        self._single = tuple(single)
        self._batch = tuple(batch)
        self._last: dict[tuple[Kind, bool], int] = {}  # index of the last steps' best count
        self._shared = CommonKnowledge()
        self._searches: dict[tuple[Kind, int], CountSearch] = {}

    @property
    def adapts(self) -> bool:
        """Whether there is anything to choose."""
        return len(self._single) > 1 or len(self._batch) > 1

    def count(self, kind: Kind, rows: int) -> int:
        """The threads for a step of `rows` tokens."""
        return self._search(kind, rows).count

    def measured(self, kind: Kind, threads: int, rows: int, seconds: float) -> None:
        """A step took `seconds`."""
        search = self._search(kind, rows)
        self._shared.now += seconds
        if threads == search.count:
            search.measured(rows if kind == "prefill" else 1, seconds)
            self._last[kind, rows > 1] = search.best

    def idle(self, cores: float | None) -> None:
        """So many of the cores we may use had nothing to do lately; None: unknown."""
        if self._shared.crowded:  # by ourselves
            self._shared.crowded = False
            return
        idle = None if cores is None else cores >= IDLE_CORE
        if idle and not self._shared.idle:
            for search in self._searches.values():
                search.core_became_idle()
        self._shared.idle = idle

    def _search(self, kind: Kind, rows: int) -> CountSearch:
        key = kind, bucket(kind, rows)
        search = self._searches.get(key)
        if search is None:  # it begins where steps of another size are
            choices = self._batch if rows > 1 else self._single
            start = self._last.get((kind, rows > 1), (len(choices) - 1) // 2)
            search = CountSearch(choices, start, self._shared)
            self._searches[key] = search
        return search


class StepThreads:
    """Times an engine's steps and sets its threads: `use(count)` before a step that needs another
    count. Only the thread that computes may call it.

        threads.begin("decode", rows)
        ...
        seconds = threads.end()
        ...threads.needed...

    A decoding step lasts from the end of the one before, unless there was a `pause`: what keeps
    Python from going on (the event loop, without a core of its own) is a part of its price.
    `beside`: a card computes meanwhile, which this process waits for.
    """

    def __init__(
        self,
        controller: ThreadController,
        use: Callable[[int], None],
        idle_cores: Callable[[], float | None],
        *,
        beside: bool = False,
    ) -> None:
        # Seconds that the last step would have taken with a core for this thread alone: what others
        # take of it falls upon long steps, and seldom upon short ones.
        self.needed = 0.0
        self._beside = beside
        self._computed = 0.0
        self._controller = controller
        self._use = use
        self._idle_cores = idle_cores
        self._adapts = controller.adapts
        self._kind: Kind = "decode"
        self._rows = self._count = 0
        self._started = self._looked = 0.0
        self._ended: float | None = None

    def begin(self, kind: Kind, rows: int) -> None:
        """A step of `rows` tokens comes."""
        count = self._controller.count(kind, rows)
        if count != self._count:
            self._use(count)
            self._count = count
        self._kind, self._rows = kind, rows
        self._computed = time.thread_time()
        self._started = time.perf_counter()

    def end(self) -> float:
        """The step is done. Returns the seconds it took."""
        now = time.perf_counter()
        seconds = now - self._started
        self.needed = seconds if self._beside else time.thread_time() - self._computed
        if self._adapts:
            decoding = self._kind == "decode" and self._ended is not None
            whole = now - self._ended if decoding and self._ended is not None else seconds
            self._controller.measured(self._kind, self._count, self._rows, whole)
            if now - self._looked > IDLE_EVERY:
                self._looked = now
                self._controller.idle(self._idle_cores())
        self._ended = now
        return seconds

    def pause(self) -> None:
        """What comes until the next step is no part of its time."""
        self._ended = None
