"""Measures memory per device: how much there is, and how much is taken. Decides nothing.

Main memory comes from `/proc` and the control group's limit (Linux, proc(5), cgroups(7)), that of
other devices from `backends.devices`.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from backends.catalog import CPU
from backends.devices import Device, devices
from gateway.registry.record import Bytes

KEPT_FREE = 0.05  # of what is free, for the rest of the machine


class Gauge(Protocol):
    """Measures memory. Every method may block for some milliseconds."""

    def free(self) -> Bytes:
        """Bytes that models may take now, per device."""
        ...

    def available(self) -> Bytes:
        """Bytes that are free now, per device, the reserve included."""
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


class SystemGauge:
    """This machine. What shares main memory (integrated graphics, Apple's chips) is part of it."""

    def __init__(
        self,
        environment: Mapping[str, str] = os.environ,
        find: Callable[[Mapping[str, str]], Mapping[str, Device]] = devices,
    ) -> None:
        self._environment = environment
        self._find = find

    def free(self) -> Bytes:
        return {name: int(size * (1 - KEPT_FREE)) for name, size in self.available().items()}

    def available(self) -> Bytes:
        return {CPU: _main_memory_free(), **{name: card.free for name, card in self._cards()}}

    def total(self) -> Bytes:
        return {CPU: _main_memory(), **{name: card.total for name, card in self._cards()}}

    def used(self) -> Bytes:
        return _with_main(
            {name: card.used for name, card in self._cards() if card.used is not None}
        )

    def held(self) -> Bytes:
        return _with_main({name: card.own for name, card in self._cards() if card.own is not None})

    def _cards(self) -> list[tuple[str, Device]]:
        """Those with memory of their own."""
        devices = self._find(self._environment)
        return [(name, device) for name, device in devices.items() if not device.shared]


def _with_main(cards: Bytes) -> Bytes:
    try:
        return {CPU: _resident_set(), **cards}
    except OSError:  # not Linux
        return cards


def _main_memory_free() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux: all there is, as nothing says what is free
        return _main_memory()
    fields = dict(line.split(":") for line in lines)
    available = int(fields["MemAvailable"].split()[0]) * 1024
    limit, used = _number("/sys/fs/cgroup/memory.max"), _number("/sys/fs/cgroup/memory.current")
    return available if limit is None or used is None else min(available, max(0, limit - used))


def _main_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _number(path: str) -> int | None:
    """The number in a control file; None, if it isn't there or says `max`."""
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None


def _resident_set() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
