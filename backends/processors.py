"""How many processors this process may use, and how many of them are idle. Knows no engine."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
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
    return _text(root / _SMT.format(cpu)) or str(cpu)


def cpu_quota(root: Path = ROOT) -> float | None:
    """The CPU seconds per second that the cgroup and those above it leave this process; None: no
    limit. Reads cgroup v2's `cpu.max` and v1's `cpu.cfs_quota_us`.
    """
    return min(_quotas(root), default=None)


def _quotas(root: Path) -> Iterator[float]:
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            for folder in _upwards(root / "sys/fs/cgroup", path):
                yield from _quota(*_text(folder / "cpu.max").split())
        elif "cpu" in controllers.split(","):
            for mount in (controllers, "cpu"):
                for folder in _upwards(root / "sys/fs/cgroup" / mount, path):
                    period = _text(folder / "cpu.cfs_period_us")
                    yield from _quota(_text(folder / "cpu.cfs_quota_us"), period)


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """The group's folder and those above it. In a container the mount may begin at the group, and
    the path be one that only the host knows: then the mount itself is left.
    """
    folder = mount / path.lstrip("/")
    yield from (above for above in (folder, *folder.parents) if above.is_relative_to(mount))


def _quota(quota: str = "", period: str = "") -> Iterator[float]:
    """v1 writes -1 for no limit, v2 "max"."""
    if quota.isdecimal() and period.isdecimal() and int(quota) and int(period):
        yield int(quota) / int(period)


def _text(path: Path) -> str:
    """What the file says; "" where there is none."""
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""


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
            for line in _text(self._stat).splitlines()[_FIRST_CPU_LINE:]
            if (fields := line.split())[0] in self._allowed
        ]
        return sum(found) * self._ticks if any(found) else None
