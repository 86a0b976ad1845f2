"""The memory ledger: budgets less what is promised to models. It changes no record. Pure."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from backends.contract.catalog import CPU
from config.settings import TURN
from config.values import gibibytes
from gateway.registry.nodes import SEPARATOR
from gateway.registry.protocol import Bytes, Model
from gateway.registry.record import ModelRecord, Records


def main_devices(need: Bytes) -> set[str]:
    """What a model computes on: its cards; without any, main memory."""
    cards = {device for device in need if device.rpartition(SEPARATOR)[2] != CPU}
    return cards or set(need)


class MemoryLedger:
    """Reads the scheduler's `records`. `budgets`: bytes per device; one not named has none."""

    def __init__(self, budgets: Bytes, records: Records) -> None:
        self.budgets = dict(budgets)
        self._records = records
        # Bytes of main memory that conversations have: given up for loads, and not for parking.
        self.kept: Callable[[], int] = lambda: 0

    def excess(self) -> Bytes:
        """Bytes per device by which more is promised than there is, besides what leaves anyway."""
        free = {device: self.free(device) + self.coming(device) for device in self.budgets}
        return {device: -size for device, size in free.items() if size < 0}

    def shortfall(self, need: Bytes) -> int:
        """Bytes of `need` that aren't free, over all its devices."""
        return sum(max(0, size - max(0, self.free(device))) for device, size in need.items())

    def free(self, device: str) -> int:
        """Bytes promised to no model; negative, where a model took more than was estimated."""
        return self.budgets.get(device, 0) - self._records.promised[device]

    def promised(self) -> Bytes:
        """Bytes promised to models, per device."""
        return {device: self._records.promised[device] for device in self.budgets}

    def coming(self, device: str, *, surely: bool = False) -> int:
        """Bytes that become free soon; `surely`: of models that can't be called back."""
        leavers = (
            record
            for record in self._records.among("leaving", "draining")
            if not (surely and record.phase == "draining" and record.leaving == "room")
        )
        return sum(
            record.held.get(device, 0) - (record.parking or {}).get(device, 0) for record in leavers
        )

    def may_park(self, record: ModelRecord, claim: ModelRecord | None) -> bool:
        """Whether a model that leaves may keep its process: there is room for what it holds then,
        and what it leaves for has room all the same.
        """
        for device, size in (record.model.parks or {}).items():
            need = claim.need.get(device, 0) if claim is not None else 0
            free = self.free(device) - (self.kept() if device == CPU else 0)
            more = size - record.held.get(device, 0)
            if more > free or free + self.coming(device) - size < need:
                return False
        return record.model.parks is not None

    def fitting(self, needs: Sequence[Bytes]) -> Bytes:
        """The first of `needs` that is free now; of those that aren't, the one that lacks least."""
        return min(needs, key=self.shortfall)

    def spares(self, need: Bytes, claim: ModelRecord, turn: ModelRecord) -> bool:
        """Whether `need`, which is free for `claim`, is no room that is cleared for `turn`."""
        for device, size in need.items():
            reserved = max(0, turn.need.get(device, 0) - self.coming(device))
            if size > self.free(device) + claim.held.get(device, 0) - reserved:
                return False
        return True

    def possible(self, needs: Iterable[Bytes], model: Model, own: Bytes) -> Iterator[Bytes]:
        """Those of `needs` that are free, whoever it is reserved for; `own`: what it holds itself.
        Few are of hundreds, so this is the check that most need.
        """
        budgets, promised = self.budgets, self._records.promised
        for need in needs:
            for device, size in need.items():
                free = budgets.get(device, 0) - promised.get(device, 0)
                if size > free + own.get(device, 0):
                    break
            else:
                if self.beside(need, model) is None:
                    yield need

    def beside(self, need: Bytes, model: Model) -> ModelRecord | None:
        """The one that has a device of `need` and that `model` must not lie beside."""
        if not model.apart:
            return None
        devices = main_devices(need)
        alike = (one for one in self._records.values() if one.model.apart == model.apart)
        others = (one for one in alike if one.model.name != model.name)
        beside = (one for one in others if not devices.isdisjoint(main_devices(one.held)))
        return next(beside, None)

    def has_room(self, model: Model) -> bool:
        """Whether it could be loaded at once, and nothing else had to go."""
        return any(True for _ in self.possible((model.need, *model.others), model, {}))

    def within_reach(self, device: str, group: Iterable[ModelRecord]) -> int:
        """Bytes that the models of `group` could have together, if no other leaves for them besides
        those that leave anyway. A parked one has some itself.
        """
        own = sum(record.held.get(device, 0) for record in group)
        return self.free(device) + self.coming(device, surely=True) + own

    def attainable(self, name: str, devices: Iterable[str]) -> Bytes:
        """What `name` could have of each of `devices`, if all models went that may."""
        return {
            device: max(0, self.budgets.get(device, 0) - self._pinned(device, besides=name))
            for device in devices
        }

    def obstacle(self, name: str, needs: Sequence[Bytes]) -> str | None:
        """Why `name` could not be loaded even if all evictable models were unloaded, in any of the
        ways that it may lie; None: it could.
        """
        last: str | None = None
        for need in needs:
            if (last := self._obstacle(name, need)) is None:
                break
        return last

    def _obstacle(self, name: str, need: Bytes) -> str | None:
        record = self._records.get(name)
        other = None if record is None else self.beside(need, record.model)
        if other is not None and other.phase in ("loading", "loaded", "parked"):
            where = " and ".join(sorted(main_devices(need)))
            return f"{name} has no device of its own: {other.model.name} lies on {where}"
        for device, size in need.items():
            budget, pinned = self.budgets.get(device, 0), self._pinned(device, besides=name)
            if size > budget - pinned and device.startswith(TURN):
                return f"{name} can't have its turn: a pinned model has {device!r}"
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
            most = self.budgets.get(device, 0) - self._pinned(device, besides=claim.model.name)
            wanted[device] = max(size, min(most, max(size * 5 // 4, self.free(device) + 1)))
        more = any(size > self.free(device) for device, size in wanted.items())
        return wanted if more else None

    def _pinned(self, device: str, *, besides: str) -> int:
        stayers = (
            record
            for record in self._records.among("pinned")
            if record.model.name != besides and record.phase in ("loading", "loaded")
        )
        return sum(record.held.get(device, 0) for record in stayers)
