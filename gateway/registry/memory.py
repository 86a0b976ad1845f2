"""The memory ledger's arithmetic: what a model needs on which device, corrected by measurements, as
a sentence.

Pure. Sizes are bytes; in sentences they are GiB (2**30 bytes).
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from backends.catalog import CPU
from backends.protocol import MemoryNeed
from gateway.registry.record import Bytes, Evicted, ModelRecord

GIB = 2**30
MIB = 2**20
# What lies outside of these parts of the estimate was measured wrong: whatever else the machine did
# meanwhile must neither lock a model out nor let two of them take the same memory.
LEAST, MOST = 0.5, 1.5


def gibibytes(size: int) -> str:
    """`5.1 GiB`; small sizes in MiB, so that a small model isn't 0.0."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.1f} MiB"


def placed(devices: Bytes, layers: Mapping[str, int]) -> str:
    """`cuda:0 5.1 GiB with 29 layers, cpu 312.0 MiB with 4 layers`: where a model lies. A device
    that only layers name was not planned on; its memory isn't known.
    """
    parts = {name: f"{name} {gibibytes(size)}" for name, size in devices.items()}
    for name, count in layers.items():
        parts[name] = f"{parts.get(name, name)} with {count} layer{'s' * (count != 1)}"
    return ", ".join(parts.values())


def corrected(estimate: MemoryNeed, measured: int | None) -> MemoryNeed:
    """The estimate with the total that was measured after a load, within `LEAST` to `MOST` of it:
    what isn't weights or cache is the engine's. Snapshots come later.
    """
    if measured is None:
        return estimate
    total = min(max(measured, int(estimate.loaded * LEAST)), int(estimate.loaded * MOST))
    weights = min(estimate.weights, total)
    cache = min(estimate.cache, total - weights)
    engine = total - weights - cache
    return msgspec.structs.replace(estimate, weights=weights, cache=cache, engine=engine)


def arithmetic(
    need: MemoryNeed, free: int, evicting: Sequence[Evicted] = (), *, measured: bool = False
) -> str:
    """`needs 5.1 GiB: weights 4.4, cache 0.6, engine 0.1; free 3.2; evicting x, idle for 212 s`."""
    unit, name = (GIB, "GiB") if need.total >= GIB else (MIB, "MiB")
    parts = {"weights": need.weights, "cache": need.cache, "engine": need.engine}
    if need.snapshots:
        parts["snapshots"] = need.snapshots
    listed = ", ".join(f"{part} {size / unit:.1f}" for part, size in parts.items())
    source = " (measured)" if measured else ""
    leaving = [f"{gone.name}, idle for {gone.idle_seconds:.0f} s" for gone in evicting]
    tail = f"; evicting {' and '.join(leaving)}" if leaving else ""
    return f"needs {need.total / unit:.1f} {name}{source}: {listed}; free {free / unit:.1f}{tail}"


def shares(need: MemoryNeed, parts: Mapping[str, float]) -> Bytes:
    """`need` over the devices it is spread on, by their parts of the whole (which add up to 1).
    Snapshots lie in main memory.
    """
    spread = {device: round(need.loaded * part) for device, part in parts.items()}
    return spread | {CPU: spread.get(CPU, 0) + need.snapshots} if need.snapshots else spread


# --------------------------------------------------------------------------------------------- room
# The memory ledger: budgets less what is promised to models. It changes no record.


class MemoryLedger:
    """Reads the scheduler's `records`. `budgets`: bytes per device; one not named has none."""

    def __init__(self, budgets: Bytes, records: Mapping[str, ModelRecord]) -> None:
        self._budgets = dict(budgets)
        self._records = records

    @property
    def budgets(self) -> Bytes:
        """Bytes for models, per device."""
        return self._budgets

    def apply(self, budgets: Bytes) -> None:
        """From now on these are the budgets."""
        self._budgets = dict(budgets)

    def excess(self) -> Bytes:
        """Bytes per device by which more is promised than there is, besides what leaves anyway."""
        over = {device: -self.free(device) - self.coming(device) for device in self._budgets}
        return {device: size for device, size in over.items() if size > 0}

    def shortfall(self, need: Bytes) -> int:
        """Bytes of `need` that aren't free, over all its devices."""
        return sum(max(0, size - max(0, self.free(device))) for device, size in need.items())

    def free(self, device: str) -> int:
        """Bytes promised to no model; negative, where a model took more than was estimated."""
        return self._budgets.get(device, 0) - held(self._records.values(), device)

    def promised(self) -> Bytes:
        """Bytes promised to models, per device."""
        return {device: held(self._records.values(), device) for device in self._budgets}

    def coming(self, device: str, *, surely: bool = False) -> int:
        """Bytes that become free soon; `surely`: of models that can't be called back."""
        leavers = (
            record
            for record in self._records.values()
            if record.phase == "leaving"
            or (record.phase == "draining" and not (surely and record.leaving == "room"))
        )
        return held(leavers, device)

    def fitting(self, needs: Sequence[Bytes]) -> Bytes:
        """The first of `needs` that is free now; of those that aren't, the one that lacks least."""
        return min(needs, key=self.shortfall)

    def fits(self, need: Bytes, claim: ModelRecord, turn: ModelRecord | None) -> bool:
        """Whether `claim` may be loaded now, out of room that isn't cleared for the `turn`'s."""
        reserved = turn is not None and turn is not claim
        for device, size in need.items():
            room = free = self.free(device)
            if reserved and turn is not None:
                room = min(free, free + self.coming(device) - turn.need.get(device, 0))
            if size > room:
                return False
        return True

    def missing(self, need: Bytes) -> Bytes:
        """What must be evicted for it, besides what leaves anyway."""
        return {
            device: size - self.free(device) - self.coming(device, surely=True)
            for device, size in need.items()
        }

    def obstacle(self, name: str, needs: Sequence[Bytes]) -> str | None:
        """Why `name` could not be loaded even if all evictable models were unloaded, in any of the
        ways that it may lie; None: it could.
        """
        obstacles = [self._obstacle(name, need) for need in needs]
        return None if None in obstacles else obstacles[-1]

    def _obstacle(self, name: str, need: Bytes) -> str | None:
        for device, size in need.items():
            budget, pinned = self._budgets.get(device, 0), self._pinned(device, besides=name)
            if size > budget - pinned:
                taken = f", of which pinned models hold {gibibytes(pinned)}" if pinned else ""
                return (
                    f"{name} needs {gibibytes(size)} on {device}, "
                    f"which has {gibibytes(budget)} for models{taken}"
                )
        return None

    def more(self, claim: ModelRecord) -> Bytes | None:
        """The room to make after memory ran out: more than is free, a quarter more than thought.

        None: there is nothing left to evict.
        """
        wanted = dict(claim.need)
        for device, size in claim.need.items():
            most = self._budgets.get(device, 0) - self._pinned(device, besides=claim.model.name)
            wanted[device] = max(size, min(most, max(size * 5 // 4, self.free(device) + 1)))
        more = any(size > self.free(device) for device, size in wanted.items())
        return wanted if more else None

    def _pinned(self, device: str, *, besides: str) -> int:
        stayers = (
            record
            for name, record in self._records.items()
            if name != besides
            if record.model.pinned and record.phase in ("loading", "loaded")
        )
        return held(stayers, device)


def held(records: Iterable[ModelRecord], device: str) -> int:
    """What `records` hold on `device`, in bytes."""
    return sum(record.held.get(device, 0) for record in records)
