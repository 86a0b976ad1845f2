"""The arithmetic of memory: what a model needs and where, what was measured, told in a sentence.

Pure. Sizes are bytes; in sentences they are GiB (2**30 bytes).
"""

from collections.abc import Mapping, Sequence

from backends.protocol import MemoryNeed
from gateway.registry.orders import Bytes, Evicted

GIB = 2**30
MIB = 2**20
# What lies outside of these parts of the estimate was measured wrong: whatever else the machine did
# meanwhile must neither lock a model out nor let two of them take the same memory.
LEAST, MOST = 0.5, 1.5


def gibibytes(size: int) -> str:
    """`5.1 GiB`; small sizes in MiB, so that a small model isn't 0.0."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.1f} MiB"


def corrected(estimate: MemoryNeed, measured: int | None) -> MemoryNeed:
    """The estimate with the measured total, within `LEAST` to `MOST` of it: what isn't weights or
    cache is the engine's.
    """
    if measured is None:
        return estimate
    total = min(max(measured, int(estimate.total * LEAST)), int(estimate.total * MOST))
    weights = min(estimate.weights, total)
    cache = min(estimate.cache, total - weights)
    return MemoryNeed(weights=weights, cache=cache, engine=total - weights - cache)


def arithmetic(
    need: MemoryNeed, free: int, evicting: Sequence[Evicted] = (), *, measured: bool = False
) -> str:
    """`needs 5.1 GiB: weights 4.4, cache 0.6, engine 0.1; free 3.2; evicting x, idle for 212 s`."""
    unit, name = (GIB, "GiB") if need.total >= GIB else (MIB, "MiB")
    parts = {"weights": need.weights, "cache": need.cache, "engine": need.engine}
    told = ", ".join(f"{part} {size / unit:.1f}" for part, size in parts.items())
    source = " (measured)" if measured else ""
    leaving = [f"{gone.name}, idle for {gone.idle_seconds:.0f} s" for gone in evicting]
    tail = f"; evicting {' and '.join(leaving)}" if leaving else ""
    return f"needs {need.total / unit:.1f} {name}{source}: {told}; free {free / unit:.1f}{tail}"


def shares(need: MemoryNeed, parts: Mapping[str, float]) -> Bytes:
    """`need` over the devices it is spread on, by their parts of the whole (which add up to 1)."""
    return {device: round(need.total * part) for device, part in parts.items()}
