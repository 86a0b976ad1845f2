"""Measures memory per device: how much there is, and how much is taken. Decides nothing.

Main memory comes from `/proc` and the control group's limit (Linux, proc(5), cgroups(7)), that of
other devices from `backends.devices`.
"""

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Protocol, TypeAlias

from backends.catalog import CPU
from backends.devices import Device, devices, devices_anew, main_bandwidth
from backends.devices import bandwidths as of_cards
from gateway.registry.protocol import Bytes

Finds: TypeAlias = Callable[[Mapping[str, str]], Mapping[str, Device]]  # in this environment
KEPT_FREE = 0.05  # of what is free, for the rest of the machine


class Gauge(Protocol):
    """Measures memory. Every method may block for some milliseconds."""

    def free(self) -> Bytes:
        """Bytes that models may take now, per device."""
        ...

    def available(self) -> Bytes:
        """Bytes that are free now, per device, the reserve included."""
        ...

    def free_anew(self) -> Bytes:
        """As `available`, read anew where that is of an earlier time: it may block for a second."""
        ...

    def total(self) -> Bytes:
        """Total bytes of each device; cards in the order of their library."""
        ...

    def used(self) -> Bytes:
        """Bytes that are taken, per device: a difference is what a load took.

        A device that can't be measured is left out.
        """
        ...

    def held(self) -> Bytes:
        """Bytes that this process itself has, per device: also what stays when no model is there,
        as CUDA's context. A device that can't be measured is left out.
        """
        ...


def bandwidths(cards: Collection[str]) -> Mapping[str, float]:
    """Bytes a second that are read of each of `cards` and of main memory; nothing where there are
    none, as there is nothing to compare. Blocks.
    """
    return {CPU: main_bandwidth(), **of_cards(cards)} if cards else {}


class SystemGauge:
    """This machine. What shares main memory (integrated graphics, Apple's chips) is part of it."""

    def __init__(
        self,
        environment: Mapping[str, str] = os.environ,
        find: Finds = devices,
        find_anew: Finds = devices_anew,
        root: Path = Path("/"),
    ) -> None:
        """`root`: where `proc` and `sys` are."""
        self._environment = environment
        self._find = find
        self._find_anew = find_anew
        self._root = root

    def free(self) -> Bytes:
        return {name: int(size * (1 - KEPT_FREE)) for name, size in self.available().items()}

    def available(self) -> Bytes:
        return self._free_of(self._find)

    def free_anew(self) -> Bytes:
        return self._free_of(self._find_anew)

    def _free_of(self, find: Finds) -> Bytes:
        cards = {name: card.free for name, card in _own_memory(find(self._environment))}
        return {CPU: _main_memory_free(self._root), **cards}

    def total(self) -> Bytes:
        return {CPU: _main_memory(), **{name: card.total for name, card in self._cards()}}

    def used(self) -> Bytes:
        return _with_main(
            {name: card.used for name, card in self._cards() if card.used is not None}
        )

    def held(self) -> Bytes:
        return _with_main({name: card.own for name, card in self._cards() if card.own is not None})

    def _cards(self) -> list[tuple[str, Device]]:
        return _own_memory(self._find(self._environment))


def _own_memory(found: Mapping[str, Device]) -> list[tuple[str, Device]]:
    """Those with memory of their own."""
    return [(name, device) for name, device in found.items() if not device.shared]


def _with_main(cards: Bytes) -> Bytes:
    try:
        return {CPU: _resident_set(), **cards}
    except OSError:  # not Linux
        return cards


def _main_memory_free(root: Path) -> int:
    try:
        available = _counted(root / "proc/meminfo")["MemAvailable"] * 1024
    except OSError:  # not Linux: all there is, as nothing says what is free
        return _main_memory()
    group = root / "sys/fs/cgroup"
    limit, used = _number(group / "memory.max"), _number(group / "memory.current")
    if limit is None or used is None:
        return available
    return min(available, max(0, limit - used + _reclaimable(group)))


def _reclaimable(group: Path) -> int:
    """Bytes of a control group's that it gives up when its programs need them: copies of files,
    which otherwise grow to its limit.
    """
    try:
        counted = _counted(group / "memory.stat")
    except OSError:
        return 0
    return sum(counted.get(name, 0) for name in ("inactive_file", "active_file"))


def _counted(path: Path) -> dict[str, int]:
    """A file of the kernel's with a name and a number in each line, which has a unit or none."""
    rows = [line.replace(":", " ").split() for line in path.read_text().splitlines()]
    return {row[0]: int(row[1]) for row in rows}


def _main_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _number(path: Path) -> int | None:
    """The number in a control file; None, if it isn't there or says `max`."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _resident_set() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
