"""The memory ledger: budgets less what is promised to models. It changes no record."""

from collections.abc import Iterable, Mapping

from gateway.registry.memory import gibibytes
from gateway.registry.orders import Bytes
from gateway.registry.record import ModelRecord


class MemoryLedger:
    """Reads the scheduler's `records`. `budgets`: bytes per device; one not named has none."""

    def __init__(self, budgets: Bytes, records: Mapping[str, ModelRecord]) -> None:
        self._budgets = dict(budgets)
        self._records = records

    def free(self, device: str) -> int:
        """Bytes promised to nobody; less than nothing, where a model took more than was thought."""
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

    def fits(self, claim: ModelRecord, turn: ModelRecord | None) -> bool:
        """Whether `claim` may be loaded now, out of room that isn't cleared for the `turn`'s."""
        reserved = turn is not None and turn is not claim
        for device, size in claim.need.items():
            room = free = self.free(device)
            if reserved and turn is not None:
                room = min(free, free + self.coming(device) - turn.need.get(device, 0))
            if size > room:
                return False
        return True

    def missing(self, claim: ModelRecord) -> Bytes:
        """What must be evicted for `claim`, besides what leaves anyway."""
        return {
            device: size - self.free(device) - self.coming(device, surely=True)
            for device, size in claim.need.items()
        }

    def obstacle(self, name: str, need: Bytes) -> str | None:
        """Why `name` could not be loaded though all went that may go; None: it could."""
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
