"""How much memory there is, and how much is taken, per device. Reads the system, decides nothing.

Main memory comes from `/proc` and the control group's limit (Linux, proc(5), cgroups(7)). Graphics
memory comes from NVIDIA's management library, asked through ctypes so that no engine has to be
imported for it.
"""

import ctypes
import os
from pathlib import Path
from typing import Protocol

from gateway.registry.memory import CPU
from gateway.registry.orders import Bytes

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


class SystemGauge:
    """This machine."""

    def free(self) -> Bytes:
        sizes = {CPU: _main_memory_free()}
        sizes |= {name: memory.free for name, memory in _cards().items()}
        return {name: int(size * (1 - KEPT_FREE)) for name, size in sizes.items()}

    def used(self) -> Bytes:
        used = {name: memory.used for name, memory in _cards().items()}
        try:
            return {CPU: _resident_set(), **used}
        except OSError:  # not Linux
            return used


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


def _cards() -> dict[str, _CardMemory]:
    """The memory of each NVIDIA card; none, where there is no driver."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return {}
    count, cards = ctypes.c_uint(), {}
    if nvml.nvmlInit_v2() != 0 or nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return {}
    for index in range(count.value):
        handle, memory = ctypes.c_void_p(), _CardMemory()
        if nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) != 0:
            continue
        if nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0:
            cards[f"cuda:{index}"] = memory
    return cards
