"""The devices of this machine that compute beside its CPU, each under one name for all engines, and
their memory.

NVIDIA's driver knows most of its cards: what other processes hold, and this one. It is asked
through NVIDIA's management library (nvidia-ml-py), so that no engine has to be imported; cards have
the numbers that CUDA gives them in this process (`number_by_bus`). All others are those of ggml's
registry (`ggml`). Where both list a card, which its PCI address tells, it has CUDA's name, whatever
llama.cpp was built for. A device whose memory is the machine's own has none of its own here.
"""

import ctypes
import os
import re
import time
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
import pynvml
import structlog
from msgspec.structs import replace

from backends.machine import ggml
from backends.machine.ggml import GgmlDevice

ORDER = "CUDA_DEVICE_ORDER"
VISIBLE = "CUDA_VISIBLE_DEVICES"
BY_BUS = "PCI_BUS_ID"

log = structlog.get_logger(__name__)


# Bytes a second that are read, of a device that says nothing: a middling card, two channels.
CARD_BANDWIDTH, MAIN_BANDWIDTH = 300e9, 40e9
BUFFER, READERS, ROUNDS = 32 << 20, 8, 3  # what main memory is measured with


class Card(msgspec.Struct, frozen=True):
    """A card of the machine. `instances`: the UUIDs of its MIG instances, where it is divided."""

    uuid: str  # GPU-…
    instances: tuple[str, ...] = ()  # MIG-…


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes. `used`: by all processes, `own`: by this one; None where the driver doesn't say.
    `bus`: a card's PCI address as Linux writes it, "0000:c1:00.0"; "" of a part of one.
    """

    description: str
    total: int
    free: int
    used: int | None = None
    own: int | None = None
    shared: bool = False  # `total` is part of main memory
    library: str | None = None  # ggml's name for it; None: llama.cpp can't use it
    bus: str = ""


def number_by_bus(environment: MutableMapping[str, str] = os.environ, nvml: Any = pynvml) -> None:
    """Have CUDA count cards as NVML and nvidia-smi do, before any engine starts it. What the user
    set stays, with a warning where it makes the numbers uncertain.

    NVML counts all cards of the machine by PCI bus; CUDA counts those that `CUDA_VISIBLE_DEVICES`
    names, and by speed unless `CUDA_DEVICE_ORDER` says otherwise (CUDA C++ Programming Guide, "CUDA
    Environment Variables").
    """
    if environment.setdefault(ORDER, BY_BUS) == BY_BUS:
        return
    with _seen(environment, nvml) as cards:
        _warn_of_unlike(nvml, [*cards.values()])


def visible(variable: str | None, cards: Sequence[Card]) -> list[str]:
    """The UUIDs of the cards or MIG instances CUDA sees, in its order.

    `variable` is CUDA_VISIBLE_DEVICES: numbers or UUIDs, which may be shortened as long as one card
    fits. As in CUDA, what follows the first bad entry is ignored, an entry named twice leaves none,
    and of MIG instances a process sees the first one only.
    """
    whole = [card.instances[0] if card.instances else card.uuid for card in cards]
    known = [uuid for card in cards for uuid in (card.uuid, *card.instances)]
    if variable is None:
        return _first_instance(whole)
    chosen: list[str] = []
    for entry in variable.split(","):
        found = _named(entry.strip(), whole, known)
        if found is None:
            break
        if found in chosen:
            return []
        chosen.append(found)
    return _first_instance(chosen)


def _named(entry: str, whole: Sequence[str], known: Sequence[str]) -> str | None:
    if entry.startswith(("GPU-", "MIG-")):
        found = [uuid for uuid in known if uuid.startswith(entry)]
        return found[0] if len(found) == 1 else None
    number = re.match(r"\+?\d+", entry)  # as strtoul reads it: `1gpu` is 1
    if number is None or int(number[0]) >= len(whole):
        return None
    return whole[int(number[0])]


def _first_instance(uuids: Sequence[str]) -> list[str]:
    instances = [uuid for uuid in uuids if uuid.startswith("MIG-")]
    return instances[:1] or list(uuids)


def memory(environment: Mapping[str, str] = os.environ, nvml: Any = pynvml) -> dict[str, Device]:
    """Each card's, by CUDA's name for it; nothing where there is no driver. May block for
    milliseconds. A card that doesn't answer is left out, and keeps its number.
    """
    with _seen(environment, nvml) as cards:
        found = {name: _memory(nvml, handle) for name, handle in cards.items()}
        return {name: one for name, one in found.items() if one is not None}


def bandwidths(
    cards: Collection[str], environment: Mapping[str, str] = os.environ, nvml: Any = pynvml
) -> dict[str, float]:
    """Bytes a second that each of `cards` reads, by the width of its bus and its clock, where
    NVIDIA's driver knows it; of the others a guess.
    """
    with _seen(environment, nvml) as known:
        found = {name: _bandwidth(nvml, known[name]) for name in cards if name in known}
        return {name: found.get(name) or CARD_BANDWIDTH for name in cards}


def _bandwidth(nvml: Any, handle: Any) -> float | None:
    """Memory is read at both edges of its clock."""
    try:
        clock = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM)  # MHz
        return float(2e6 * clock * nvml.nvmlDeviceGetMemoryBusWidth(handle) / 8)
    except pynvml.NVMLError:
        return None


@cache
def main_bandwidth() -> float:
    """Bytes a second that all processors read of main memory: measured once, in tenths of a second,
    by copies, each of which reads and writes.
    """
    count = min(READERS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    pairs = [
        (ctypes.create_string_buffer(BUFFER), ctypes.create_string_buffer(BUFFER))
        for _ in range(count)
    ]
    with ThreadPoolExecutor(count) as readers:
        _copied(readers, pairs)  # the first makes the pages
        times = [_copied(readers, pairs) for _ in range(ROUNDS)]
    return 2 * count * BUFFER / min(times)


def _copied(
    readers: ThreadPoolExecutor, pairs: Sequence[tuple[ctypes.Array[Any], ctypes.Array[Any]]]
) -> float:
    """Seconds. ctypes lets go of the interpreter meanwhile."""
    began = time.perf_counter()
    list(readers.map(lambda pair: ctypes.memmove(pair[0], pair[1], BUFFER), pairs))
    return time.perf_counter() - began


def held_by(
    pids: Collection[int], environment: Mapping[str, str] = os.environ, nvml: Any = pynvml
) -> dict[str, int]:
    """Bytes of each card that these processes hold together, by CUDA's name for it in this process;
    a card of which they hold nothing, or whose driver doesn't say, is left out. May block.
    """
    with _seen(environment, nvml) as cards:
        sizes = {name: _held(nvml, handle, pids) for name, handle in cards.items()}
        return {name: size for name, size in sizes.items() if size}


@contextmanager
def _seen(environment: Mapping[str, str], nvml: Any) -> Iterator[Mapping[str, Any]]:
    """NVML's handles of the cards that CUDA sees, by its names for them; none where there is no
    driver. A card that doesn't answer has none.
    """
    try:
        nvml.nvmlInit()
    except pynvml.NVMLError:
        yield {}
        return
    try:
        handles, cards = _handles(nvml)
        uuids = enumerate(visible(environment.get(VISIBLE), cards))
        yield {f"cuda:{at}": handles[uuid] for at, uuid in uuids if handles[uuid] is not None}
    finally:
        nvml.nvmlShutdown()


def _handles(nvml: Any) -> tuple[dict[str, Any], list[Card]]:
    """NVML's handles of cards and MIG instances by UUID, and the cards in its order."""
    handles: dict[str, Any] = {}
    cards = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = nvml.nvmlDeviceGetUUID(handle)
        except pynvml.NVMLError:
            cards.append(Card(f"lost-{index}"))  # it keeps its number; CUDA can't use it either
            handles[cards[-1].uuid] = None
            continue
        instances = dict(_instances(nvml, handle))
        handles |= {uuid: handle, **instances}
        cards.append(Card(uuid, tuple(instances)))
    return handles, cards


def _instances(nvml: Any, card: Any) -> Iterator[tuple[str, Any]]:
    """A card's MIG instances."""
    try:
        if nvml.nvmlDeviceGetMigMode(card)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(card)
    except pynvml.NVMLError:  # a card without MIG
        return
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, index)
            yield nvml.nvmlDeviceGetUUID(handle), handle
        except pynvml.NVMLError:  # a place without an instance
            continue


def _memory(nvml: Any, handle: Any) -> Device | None:
    try:
        found = nvml.nvmlDeviceGetMemoryInfo(handle)
    except pynvml.NVMLError:
        return None
    bus = _text(lambda card: nvml.nvmlDeviceGetPciInfo(card).busId, handle)
    return Device(
        description=_text(nvml.nvmlDeviceGetName, handle),
        total=found.total,
        free=found.free,
        used=found.used,
        own=_held(nvml, handle, {os.getpid()}),
        bus=bus.lower()[-12:],  # NVML writes eight digits of the domain, Linux four
    )


def _text(ask: Callable[[Any], str | bytes], handle: Any) -> str:
    try:
        said = ask(handle)
    except pynvml.NVMLError:
        return ""
    return said if isinstance(said, str) else said.decode(errors="replace")


def _held(nvml: Any, handle: Any, pids: Collection[int]) -> int | None:
    """Bytes of a card that these processes have; None where the driver doesn't say. A container may
    have other process numbers than the driver sees.
    """
    try:
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:
        return None
    own = [one.usedGpuMemory for one in processes if one.pid in pids]
    return sum(own) if own and None not in own else None


def _warn_of_unlike(nvml: Any, handles: Sequence[Any]) -> None:
    """CUDA's measure of speed is its own, so unlike cards can't be identified then."""
    kinds = {nvml.nvmlDeviceGetName(handle) for handle in handles}
    if len(kinds) > 1:
        log.warning(
            "memory may be counted for the wrong card: CUDA numbers unlike cards by speed",
            cards=sorted(kinds),
            mend=f"{ORDER}={BY_BUS} makes the numbers those of nvidia-smi",
        )


def devices(
    environment: Mapping[str, str] = os.environ,
    nvml: Any = pynvml,
    free: Callable[[Collection[str]], Mapping[str, int]] = ggml.free,
) -> dict[str, Device]:
    """By name, `cuda:0`, `vulkan:1`; as they are now. May block: the first time for a second.
    `free`: how what ggml's are free of is read.
    """
    cards = memory(environment, nvml)
    found = ggml.devices()
    named = names(found, cards)
    others = free([one.name for one in found if named[one.name] not in cards])
    return merged(found, cards, others)


def devices_anew(environment: Mapping[str, str] = os.environ) -> dict[str, Device]:
    """As `devices`, with what is free at this moment of those of which this process may know only
    what was free at the start. May block for a second.
    """
    return devices(environment, free=ggml.free_anew)


@cache
def of_llamacpp() -> Mapping[str, str]:
    """The devices with memory of their own that the installed llama.cpp uses, in its order: its
    names for them, by ours.
    """
    found = ggml.devices()
    known = merged(found, memory(), {})
    libraries = {one.library: name for name, one in known.items() if not one.shared}
    return {libraries[one.name]: one.name for one in found if one.name in libraries}


def names(found: Iterable[GgmlDevice], cards: Mapping[str, Device]) -> Mapping[str, str]:
    """Our names of ggml's devices, by its own. `cards`: what NVIDIA's driver lists."""
    buses = {card.bus: name for name, card in cards.items() if card.bus}
    return {one.name: buses.get(one.bus or "") or own_name(one.name) for one in found}


def own_name(library: str) -> str:
    """`CUDA0` is `cuda:0`."""
    kind, number = re.fullmatch(r"(.*?)(\d*)", library).groups()  # type: ignore[union-attr]
    return f"{kind.lower()}:{number}" if number else kind.lower()


def merged(
    found: Iterable[GgmlDevice], cards: Mapping[str, Device], free: Mapping[str, int]
) -> dict[str, Device]:
    """`cards` as NVIDIA's driver reports them, then the others of `found`. `free`: bytes, by ggml's
    names; of the others it is what the registry said at first.
    """
    found = tuple(found)
    named, known = names(found, cards), dict(cards)
    for one in found:
        own = Device(
            description=one.description,
            total=one.total,
            free=free.get(one.name, one.free),
            shared=one.shared,
        )
        there = known.setdefault(named[one.name], own)
        if there.library is None:  # of one that ggml has twice, as CUDA's and Vulkan's, the first
            known[named[one.name]] = replace(there, library=one.name)
    return known


# torch's builds for AMD's cards call them as CUDA's: `cuda:0` there is `rocm:0` everywhere else.
AMD, CUDA = "rocm", "cuda"


@cache
def torch_is_for_cards() -> bool:
    """Whether the installed torch is; its builds say so in their versions: 2.13.0+cpu."""
    try:
        return not version("torch").endswith("+cpu")
    except PackageNotFoundError:
        return True


def torch_cards(known: Mapping[str, int]) -> Mapping[str, int]:
    """Those of `known` that torch can use, with their bytes, in its order."""
    return {name: size for name, size in known.items() if name.partition(":")[0] in (CUDA, AMD)}


def torch_card(device: str, known: Mapping[str, int]) -> str:
    """The name that the card has which torch calls `device`."""
    kind, _, number = device.partition(":")
    named = f"{AMD}:{number or 0}"
    return named if kind == CUDA and named in known and device not in known else device


def torch_name(card: str) -> str:
    """What torch calls `card`."""
    kind, colon, number = card.partition(":")
    return f"{CUDA}{colon}{number}" if kind == AMD else card
