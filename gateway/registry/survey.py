"""Read-only views of the registry's memory ledger: memory per model and device, the effect of a
load now, and what was measured.
"""

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import msgspec
from anyio import to_thread

from backends.catalog import Cards
from gateway.registry.gauges import Gauge
from gateway.registry.library import ModelEntry
from gateway.registry.line import Clock
from gateway.registry.loading import LoadPlan, LoadPlanner
from gateway.registry.moves import Moves
from gateway.registry.record import Bytes, ModelRecord
from gateway.registry.scheduler import Scheduler
from gateway.registry.turns import candidate, choose_victims, cost

Verdict: TypeAlias = Literal["loaded", "fits", "fits_after", "too_large", "remote", "unknown"]


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes by use. `projector`: the image encoder; `engine`: the other buffers."""

    weights: int
    cache: int
    projector: int
    engine: int


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a load now. `unload`: models that would be unloaded first; `why`: it can't be
    had.
    """

    verdict: Verdict
    unload: tuple[str, ...] = ()
    why: str | None = None


class ModelCost(msgspec.Struct, frozen=True, kw_only=True):
    """What a model takes, or would. Seconds are durations up to now."""

    devices: Bytes
    parts: Parts
    measured: bool  # by an earlier load, else estimated
    load_seconds: float | None  # of the last load with these options; None: there was none
    loading_for: float | None
    loaded_for: float | None
    slots: int
    pinned: bool
    ttl: float


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What one model holds on one device, in bytes; the parts add up to it."""

    model: str
    device: str
    size: int
    parts: Parts


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """What a model that is waited for will take of one device."""

    model: str
    device: str
    size: int


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """All devices with a budget for models, and each model's part of it."""

    budgets: Bytes
    held: tuple[Held, ...]
    claimed: tuple[Claimed, ...]


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes per device as the machine reports them; a device that can't be measured is left out."""

    total: Bytes
    available: Bytes
    process: Bytes


class Survey:
    """Of one registry, while that runs."""

    def __init__(
        self,
        scheduler: Scheduler,
        planner: LoadPlanner,
        moves: Moves,
        gauge: Gauge,
        clock: Clock,
    ) -> None:
        self._scheduler = scheduler
        self._planner = planner
        self._moves = moves
        self._gauge = gauge
        self._clock = clock

    async def measured(self) -> Measured:
        """The devices as they are now."""
        return await to_thread.run_sync(self._measure)

    def _measure(self) -> Measured:
        gauge = self._gauge
        return Measured(total=gauge.total(), available=gauge.available(), process=gauge.held())

    def ledger(self) -> Ledger:
        """Memory held per model, and what is claimed."""
        records = self._scheduler.records()
        claims = [record for record in records if record.is_claim]
        return Ledger(
            budgets=dict(self._scheduler.room.budgets),
            held=tuple(one for record in records for one in self._held(record)),
            claimed=tuple(
                Claimed(model=record.model.name, device=device, size=size)
                for record in claims
                for device, size in record.need.items()
            ),
        )

    def _held(self, record: ModelRecord) -> Iterator[Held]:
        name = record.model.name
        plan = self._planner.planned(name) if record.held else None
        for device, size in record.held.items():
            parts = scaled(_parts(plan), size) if plan else scaled(NO_PARTS, size)
            yield Held(model=name, device=device, size=size, parts=parts)

    def cost(self, entry: ModelEntry) -> ModelCost | None:
        """What a model takes; None where that can't be estimated, or others have its memory."""
        plan = self._planner.known(entry)
        if plan is None or entry.files.remote is not None:
            return None
        resident, loading = (
            self._moves.residents.get(entry.name),
            self._moves.loading.get(entry.name),
        )
        now, model = self._clock.now(), self._planner.model(entry)
        return ModelCost(
            devices=self._devices(entry.name, plan),
            parts=_parts(plan),
            measured=plan.measured,
            load_seconds=self._planner.last_load(plan),
            loading_for=now - loading.started if loading else None,
            loaded_for=now - resident.arrived if resident else None,
            slots=model.slots,
            pinned=model.pinned,
            ttl=model.ttl,
        )

    def _devices(self, name: str, plan: LoadPlan) -> Bytes:
        """Where it lies, or would."""
        record = self._scheduler.residency(name)
        return (record.held if record else None) or self._scheduler.room.fitting(plan.needs)

    def fit(self, entry: ModelEntry) -> Fit:
        """The effect of a load of `entry` now."""
        if entry.files.remote is not None:
            return Fit(verdict="remote")
        if self._scheduler.phase(entry.name) in ("loading", "loaded"):
            return Fit(verdict="loaded")
        plan = self._planner.known(entry)
        return Fit(verdict="unknown") if plan is None else self.room_for(entry.name, plan.needs)

    def room_for(self, name: str, needs: Sequence[Bytes]) -> Fit:
        """Whether one of `needs` would be found for a model called `name`, and which models would
        be evicted. Models in use count among those that go: they would, as their answers end.
        """
        room = self._scheduler.room
        if (obstacle := room.obstacle(name, needs)) is not None:
            return Fit(verdict="too_large", why=obstacle)
        missing = [
            {device: size - room.free(device) - room.coming(device) for device, size in one.items()}
            for one in needs
        ]
        if any(all(size <= 0 for size in one.values()) for one in missing):
            return Fit(verdict="fits")
        now = self._clock.now()
        goers = [candidate(one, now) for one in self._scheduler.records() if _may_go(one, name)]
        chosen = [names for one in missing if (names := choose_victims(goers, one)) is not None]
        if not chosen:  # what loads or is claimed may stand in its way, too
            return Fit(verdict="fits_after", unload=tuple(one.name for one in goers))
        return Fit(verdict="fits_after", unload=min(chosen, key=lambda names: cost(goers, names)))

    def fitting(self, needs: Sequence[Bytes]) -> Bytes:
        """See `MemoryLedger.fitting`."""
        return self._scheduler.room.fitting(needs)

    @property
    def cards(self) -> Cards:
        """This machine's, with their bytes."""
        return self._planner.cards


def _may_go(record: ModelRecord, name: str) -> bool:
    others = record.model.name != name and not record.model.pinned
    return others and record.phase in ("loading", "loaded")


NO_PARTS = Parts(weights=0, cache=0, projector=0, engine=0)


def _parts(plan: LoadPlan) -> Parts:
    """Projectors lie with the weights, as their file is read with them; snapshots are the
    engine's.
    """
    projector = 0
    if plan.entry.files.projector is not None:
        projector = min(plan.need.weights, _size(plan))
    return Parts(
        weights=plan.need.weights - projector,
        cache=plan.need.cache,
        projector=projector,
        engine=plan.need.engine + plan.need.snapshots,
    )


def _size(plan: LoadPlan) -> int:
    path = plan.entry.files.projector
    try:
        return path.stat().st_size if path is not None else 0
    except OSError:  # gone meanwhile
        return 0


def scaled(parts: Parts, size: int) -> Parts:
    """`parts` in the same proportions, adding up to `size`; all of it is the engine's where they
    are nothing.
    """
    total = parts.weights + parts.cache + parts.projector + parts.engine
    if total <= 0:
        return msgspec.structs.replace(NO_PARTS, engine=size)
    weights, cache = size * parts.weights // total, size * parts.cache // total
    projector = size * parts.projector // total
    rest = size - weights - cache - projector
    return Parts(weights=weights, cache=cache, projector=projector, engine=rest)
