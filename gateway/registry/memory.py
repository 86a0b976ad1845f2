"""The memory that a model needs: on which device, and as a sentence.

Pure. Sizes are bytes; in sentences they are GiB (2**30 bytes).
"""

from collections.abc import Mapping, Sequence

from backends.contract.protocol import MemoryNeed
from config.values import GIB, MIB, UNITS, gibibytes
from gateway.registry.protocol import Bytes, Evicted


def placed(devices: Bytes, layers: Mapping[str, int]) -> str:
    """`cuda:0 5.1 GiB with 29 layers, cpu 312.0 MiB with 4 layers`: where a model lies. A device
    that only layers name was not planned on; its memory isn't known.
    """
    parts = {
        name: f"{name} {gibibytes(size)}" if size > UNITS else name
        for name, size in devices.items()
    }
    for name, count in layers.items():
        parts[name] = f"{parts.get(name, name)} with {count} layer{'s' * (count != 1)}"
    return ", ".join(parts.values())


def arithmetic(
    need: MemoryNeed,
    free: int,
    evicting: Sequence[Evicted] = (),
    *,
    measured: bool = False,
    note: str = "",
) -> str:
    """`needs 5.1 GiB: weights 4.4, cache 0.6, engine 0.1; free 3.2; evicting x, idle for 212 s`.
    `note`: what gave way for it to fit.
    """
    leaving = [f"{gone.name}, idle for {gone.idle_seconds:.0f} s" for gone in evicting]
    tail = f"; evicting {' and '.join(leaving)}" if leaving else ""
    tail += f"; {note}" if note else ""
    if need.total <= UNITS:
        return tail.removeprefix("; ")
    unit, _ = _unit(need)
    return f"needs {by_use(need, measured=measured)}; free {free / unit:.1f}{tail}"


def by_use(need: MemoryNeed, *, measured: bool = False) -> str:
    """`5.1 GiB: weights 4.4, cache 0.6, engine 0.1`, and what may come later; `-` for nothing."""
    if need.total <= UNITS:
        return "-"
    unit, name = _unit(need)
    parts = {"weights": need.weights, "cache": need.cache, "engine": need.engine}
    listed = ", ".join(f"{part} {size / unit:.1f}" for part, size in parts.items())
    source = " (measured)" if measured else ""
    later = f", up to {need.snapshots / unit:.1f} more for snapshots" if need.snapshots else ""
    return f"{need.total / unit:.1f} {name}{source}: {listed}{later}"


def _unit(need: MemoryNeed) -> tuple[int, str]:
    return (GIB, "GiB") if need.total >= GIB else (MIB, "MiB")


def covered(need: Bytes, room: Bytes) -> bool:
    """Whether `room` has that much on every device."""
    return all(size <= room.get(device, 0) for device, size in need.items())


def shares(need: MemoryNeed, parts: Mapping[str, float]) -> Bytes:
    """`need` over the devices it is spread on, by their parts of the whole (which add up to 1)."""
    return {device: round(need.total * part) for device, part in parts.items()}
