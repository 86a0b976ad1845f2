"""The control groups that this process is in, and what they leave it of main memory: Linux,
cgroups(7) of both versions, proc(5). Knows no device and no engine.
"""

import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
# Of version 2 and of version 1. Above `memory.high` the kernel makes programs wait.
_LIMITS = ("memory.max", "memory.high", "memory.limit_in_bytes")
# Copies of files, which otherwise grow to a group's limit; version 1 counts the groups below apart.
_RECLAIMABLE = {
    "memory.current": ("inactive_file", "active_file"),
    "memory.usage_in_bytes": ("total_inactive_file", "total_active_file"),
}


def groups(controller: str, root: Path = ROOT) -> Iterator[Path]:
    """The folders of the group that limits this process by `controller`, and of those above it.
    `root` is where /proc and /sys are.
    """
    for line in text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            yield from _upwards(root / "sys/fs/cgroup", path)
        elif controller in controllers.split(","):
            for mount in dict.fromkeys((controllers, controller)):
                yield from _upwards(root / "sys/fs/cgroup" / mount, path)


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """The group's folder and those above it. In a container the mount may begin at the group, and
    the path be one that only the host knows: then the mount itself is left.
    """
    folder = mount / path.lstrip("/")
    yield from (above for above in (folder, *folder.parents) if above.is_relative_to(mount))


def main_memory(root: Path = ROOT) -> int:
    """Bytes of the machine, or of the smallest limit."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min((whole, *(limit for group in groups("memory", root) for limit in _limits(group))))


def main_memory_free(root: Path = ROOT) -> int:
    """Bytes that programs can have now, those that are given up for them included."""
    available = counted(root / "proc/meminfo").get("MemAvailable")
    if available is None:  # not Linux: all there is, as nothing says what is free
        return main_memory(root)
    left = (
        max(0, limit - used)
        for group in groups("memory", root)
        for used in _used(group)
        for limit in _limits(group)
    )
    return min((available * 1024, *left))


def _limits(group: Path) -> Iterator[int]:
    """Where there is none, version 2 writes "max", version 1 a number that is larger than any
    machine's memory.
    """
    return (int(limit) for name in _LIMITS if (limit := text(group / name)).isdecimal())


def _used(group: Path) -> Iterator[int]:
    for name, reclaimable in _RECLAIMABLE.items():
        if (used := text(group / name)).isdecimal():
            there = counted(group / "memory.stat")
            yield int(used) - sum(there.get(one, 0) for one in reclaimable)


def counted(path: Path) -> dict[str, int]:
    """A file of the kernel's with a name and a number in each line, which has a unit or none."""
    rows = [line.replace(":", " ").split() for line in text(path).splitlines()]
    return {row[0]: int(row[1]) for row in rows}


def text(path: Path) -> str:
    """What the file says; "" where there is none."""
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""
