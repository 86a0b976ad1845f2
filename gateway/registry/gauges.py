"""Measures memory per device: how much there is, and how much is taken. Decides nothing.

Main memory comes from `backends.machine.control_groups`, that of other devices from
`backends.machine.devices`.
"""

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TypeAlias

from backends.contract.catalog import CPU
from backends.machine.control_groups import ROOT, main_memory, main_memory_free
from backends.machine.devices import Device, devices, devices_anew, main_bandwidth
from backends.machine.devices import bandwidths as of_cards
from gateway.registry.protocol import Bytes

Finds: TypeAlias = Callable[[Mapping[str, str]], Mapping[str, Device]]  # in this environment
KEPT_FREE = 0.05  # of what is free, for the rest of the machine


def bandwidths(cards: Collection[str]) -> Mapping[str, float]:
    """Bytes a second that are read of each of `cards` and of main memory; nothing where there are
    none, as there is nothing to compare. Blocks.
    """
    return {CPU: main_bandwidth(), **of_cards(cards)} if cards else {}


class Gauge:
    """Measures this machine's memory; every method may block for some milliseconds. What shares
    main memory (integrated graphics, Apple's chips) is part of it.
    """

    def __init__(
        self,
        environment: Mapping[str, str] = os.environ,
        find: Finds = devices,
        find_anew: Finds = devices_anew,
        root: Path = ROOT,
    ) -> None:
        """`root`: where `proc` and `sys` are."""
        self._environment, self._root = environment, root
        self._find, self._find_anew = find, find_anew

    def free(self) -> Bytes:
        """Bytes that models may take now, per device."""
        return {name: int(size * (1 - KEPT_FREE)) for name, size in self.available().items()}

    def available(self, *, anew: bool = False) -> Bytes:
        """Bytes that are free now, per device, the reserve included. `anew`: read again where that
        is of an earlier time, which may block for a second.
        """
        find = self._find_anew if anew else self._find
        cards = {name: card.free for name, card in _own_memory(find(self._environment))}
        return {CPU: main_memory_free(self._root), **cards}

    def total(self) -> Bytes:
        """Total bytes of each device; cards in the order of their library."""
        cards = {name: card.total for name, card in self._cards()}
        return {CPU: main_memory(self._root), **cards}

    def used(self) -> Bytes:
        """Bytes that are taken, per device: a difference is what a load took.

        A device that can't be measured is left out.
        """
        return _with_main(
            {name: card.used for name, card in self._cards() if card.used is not None}
        )

    def held(self) -> Bytes:
        """Bytes that this process itself has, per device: also what stays when no model is there,
        as CUDA's context. A device that can't be measured is left out.
        """
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


def _resident_set() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
