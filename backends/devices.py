"""The devices of this machine that compute beside its CPU, each under one name for all engines, and
their memory.

NVIDIA's driver knows most of its cards (`gpus`): what other processes hold, and this one. All
others are those of ggml's registry (`ggml`). Where both list a card, which its PCI address tells,
it has CUDA's name, whatever llama.cpp was built for. A device whose memory is the machine's own has
none of its own here.
"""

import os
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import msgspec
import pynvml

from backends import ggml, gpus
from backends.ggml import GgmlDevice
from backends.gpus import GpuMemory


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes. `used`: by all processes, `own`: by this one; None where the driver doesn't say."""

    description: str
    total: int
    free: int
    used: int | None = None
    own: int | None = None
    shared: bool = False  # `total` is part of main memory
    library: str | None = None  # ggml's name for it; None: llama.cpp can't use it


def devices(environment: Mapping[str, str] = os.environ, nvml: Any = pynvml) -> dict[str, Device]:
    """By name, `cuda:0`, `vulkan:1`; as they are now. May block: the first time for a second."""
    cards = gpus.memory(environment, nvml)
    found = ggml.devices()
    named = names(found, cards)
    free = ggml.free([one.name for one in found if named[one.name] not in cards])
    return merged(found, cards, free)


@cache
def of_llamacpp() -> Mapping[str, str]:
    """The devices with memory of their own that the installed llama.cpp uses, in its order: its
    names for them, by ours.
    """
    found = ggml.devices()
    known = merged(found, gpus.memory(), {})
    libraries = {one.library: name for name, one in known.items() if not one.shared}
    return {libraries[one.name]: one.name for one in found if one.name in libraries}


def names(found: Iterable[GgmlDevice], cards: Mapping[str, GpuMemory]) -> Mapping[str, str]:
    """Our names of ggml's devices, by its own. `cards`: what NVIDIA's driver lists."""
    buses = {card.bus: name for name, card in cards.items() if card.bus}
    return {one.name: buses.get(one.bus or "") or own_name(one.name) for one in found}


def own_name(library: str) -> str:
    """`CUDA0` is `cuda:0`."""
    kind, number = re.fullmatch(r"(.*?)(\d*)", library).groups()  # type: ignore[union-attr]
    return f"{kind.lower()}:{number}" if number else kind.lower()


def merged(
    found: Iterable[GgmlDevice], cards: Mapping[str, GpuMemory], free: Mapping[str, int]
) -> dict[str, Device]:
    """`cards` as NVIDIA's driver reports them, then the others of `found`. `free`: bytes, by ggml's
    names; of the others it is what the registry said at first.
    """
    found = tuple(found)
    named = names(found, cards)
    libraries: dict[str, str] = {}
    for one in found:  # of a card that ggml has twice, as CUDA's and Vulkan's, llama.cpp takes one
        libraries.setdefault(named[one.name], one.name)
    known = {
        name: Device(
            description=card.description,
            total=card.total,
            free=card.free,
            used=card.used,
            own=card.own,
            library=libraries.get(name),
        )
        for name, card in cards.items()
    }
    for one in found:
        known.setdefault(
            named[one.name],
            Device(
                description=one.description,
                total=one.total,
                free=free.get(one.name, one.free),
                shared=one.shared,
                library=one.name,
            ),
        )
    return known
