"""How much memory there is, and how much is taken, per device. Reads the system, decides nothing.

Main memory comes from `/proc` and the control group's limit (Linux, proc(5), cgroups(7)). Graphics
memory comes from NVIDIA's management library, asked through ctypes so that no engine has to be
imported for it.
"""

import ctypes
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, TypeVar

from gateway.registry.memory import CPU
from gateway.registry.orders import Bytes

Told = TypeVar("Told")
PROCESSES = 256  # on one card, at most
NOT_TOLD = 2**64 - 1  # NVML_VALUE_NOT_AVAILABLE
KEPT_FREE = 0.05  # of what is free, for the rest of the machine


class Gauge(Protocol):
    """Measures memory. Both methods may block for some milliseconds."""

    def free(self) -> Bytes:
        """Bytes that models may take now, per device."""
        ...

    def used(self) -> Bytes:
        """Bytes that are taken, per device: differences tell what a load took.

        A device that can't be measured is left out.
        """
        ...

    def held(self) -> Bytes:
        """Bytes that this process itself has, per device: also what stays when no model is there,
        as CUDA's context. A device that can't be measured is left out.
        """
        ...


class _CardMemory(ctypes.Structure):
    """nvmlMemory_t of nvml.h."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )

    total: int
    free: int
    used: int


class ProcessMemory(ctypes.Structure):
    """nvmlProcessInfo_t of nvml.h, as nvmlDeviceGetComputeRunningProcesses_v3 fills it."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )

    pid: int
    used: int


class SystemGauge:
    """This machine. Cards are those that CUDA_VISIBLE_DEVICES leaves visible, in its order."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._visible = environment.get("CUDA_VISIBLE_DEVICES")

    def free(self) -> Bytes:
        cards = {name: memory.free for name, memory in self._cards().items()}
        sizes = {CPU: _main_memory_free(), **cards}
        return {name: int(size * (1 - KEPT_FREE)) for name, size in sizes.items()}

    def used(self) -> Bytes:
        return _with_main({name: memory.used for name, memory in self._cards().items()})

    def held(self) -> Bytes:
        return _with_main(self._each_card(own_memory))

    def _cards(self) -> dict[str, _CardMemory]:
        return self._each_card(_memory)

    def _each_card(
        self, ask: Callable[[ctypes.CDLL, ctypes.c_void_p], Told | None]
    ) -> dict[str, Told]:
        """What each card answers, by CUDA's name for it; nothing, where there is no driver."""
        nvml = _driver()
        if nvml is None:
            return {}
        handles = [_handle(nvml, card) for card in visible_cards(self._visible, _count(nvml))]
        told = [ask(nvml, handle) for handle in handles if handle is not None]
        return {f"cuda:{number}": one for number, one in enumerate(told) if one is not None}


def _with_main(cards: Bytes) -> Bytes:
    try:
        return {CPU: _resident_set(), **cards}
    except OSError:  # not Linux
        return cards


def visible_cards(variable: str | None, count: int) -> list[str]:
    """The cards CUDA sees, in its order: numbers or UUIDs. As CUDA does, it stops at a bad number.

    (CUDA C++ Programming Guide, "CUDA Environment Variables".)
    """
    if variable is None:
        return [str(number) for number in range(count)]
    cards = []
    for card in (part.strip() for part in variable.split(",")):
        if not card.startswith("GPU-") and not (card.isdecimal() and int(card) < count):
            break
        cards.append(card)
    return cards


def _main_memory_free() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:  # not Linux: all there is, as nobody tells what is free
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    fields = dict(line.split(":") for line in lines)
    available = int(fields["MemAvailable"].split()[0]) * 1024
    limit, used = _number("/sys/fs/cgroup/memory.max"), _number("/sys/fs/cgroup/memory.current")
    return available if limit is None or used is None else min(available, max(0, limit - used))


def _number(path: str) -> int | None:
    """The number in a control file; None, if it isn't there or says `max`."""
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None


def _resident_set() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _driver() -> ctypes.CDLL | None:
    """NVIDIA's management library, ready to be asked."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return nvml if nvml.nvmlInit_v2() == 0 else None


def _count(nvml: ctypes.CDLL) -> int:
    count = ctypes.c_uint()
    return count.value if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0 else 0


def _handle(nvml: ctypes.CDLL, card: str) -> ctypes.c_void_p | None:
    handle = ctypes.c_void_p()
    if card.startswith("GPU-"):
        status = nvml.nvmlDeviceGetHandleByUUID(card.encode(), ctypes.byref(handle))
    else:
        status = nvml.nvmlDeviceGetHandleByIndex_v2(int(card), ctypes.byref(handle))
    return handle if status == 0 else None


def _memory(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> _CardMemory | None:
    memory = _CardMemory()
    status = nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    return memory if status == 0 else None


def own_memory(nvml: ctypes.CDLL, handle: ctypes.c_void_p) -> int | None:
    """Bytes of a card that this process has; None where the driver doesn't tell. A container may
    have other process numbers than the driver sees.
    """
    processes, count = (ProcessMemory * PROCESSES)(), ctypes.c_uint(PROCESSES)
    ask = nvml.nvmlDeviceGetComputeRunningProcesses_v3
    if ask(handle, ctypes.byref(count), processes) != 0:
        return None
    own = [one.used for one in processes[: count.value] if one.pid == os.getpid()]
    return sum(own) if own and NOT_TOLD not in own else None
