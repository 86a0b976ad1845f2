"""Read-only views of the registry: the present state of every model, the memory of each on each
device, the effect of a load now, and what was measured.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
from anyio import to_thread
from msgspec.structs import replace

from backends.contract.catalog import CPU, Cards
from backends.contract.protocol import Progress
from backends.contract.remote import RemoteStanding
from backends.machine.devices import main_bandwidth
from config.values import alike
from gateway.registry.entry import ModelEntry
from gateway.registry.eviction import choose_victims, cost
from gateway.registry.folders import Unusable
from gateway.registry.gauges import Gauge
from gateway.registry.memory import by_use
from gateway.registry.nodes import without_turns
from gateway.registry.orders import Orders, RegistryParts
from gateway.registry.planning import LoadPlan
from gateway.registry.protocol import Bytes
from gateway.registry.record import NEVER, ModelRecord
from gateway.registry.status import ModelStatus, State, slots_of

NEAREST: tuple[State, ...] = ("loaded", "loading", "draining", "unloaded", "failed")


def together(model: ModelEntry, replicas: Sequence[ModelStatus]) -> ModelStatus:
    """A model as its replicas are: in the state of the one that is nearest to an answer."""
    best = min(replicas, key=lambda one: NEAREST.index(one.state))
    idle = [one.idle_seconds for one in replicas if one.idle_seconds is not None]
    in_use = sum(one.in_use for one in replicas)
    there = (one for one in replicas if one.state in ("loading", "loaded", "draining"))
    return replace(
        best,
        id=model.name,
        aliases=model.aliases,
        entry=model,
        in_use=in_use,
        waiting=sum(one.waiting for one in replicas),
        idle_seconds=min(idle, default=None) if not in_use else None,
        devices={device: size for one in there for device, size in one.devices.items()},
    )


def in_order(statuses: Iterable[ModelStatus], default: str | None) -> tuple[ModelStatus, ...]:
    """The order of every list, since clients take the first for the one that answers: what is
    loaded, most recently used first; then the default; then as they came; then what writes no text;
    what is unusable last.

    `default`: its id or one of its aliases.
    """
    return tuple(sorted(statuses, key=lambda status: _rank(status, default)))


def _rank(status: ModelStatus, default: str | None) -> tuple[int, float, bool]:
    """A draining model still answers, but takes no new requests. Clients that take the first of the
    list want to chat.
    """
    states = {"loaded": 0, "draining": 1} if status.info is not None else {}
    state = states.get(status.state, 2) if status.task == "generate" else 3
    if status.entry is None:
        state = 4
    is_default = default is not None and default in (status.id, *status.aliases)
    return state, status.idle_seconds or 0.0, not is_default


def unusable_status(model: Unusable) -> ModelStatus:
    """A model whose files can't be used."""
    return ModelStatus(
        id=model.name,
        state="failed",
        aliases=model.aliases,
        why_failed=model.reason,
        unusable=model.path,
    )


def _recorded(status: ModelStatus, record: ModelRecord, now: float) -> ModelStatus:
    """`status` with what the scheduler knows."""
    idle = record.phase == "loaded" and not record.users
    expires = record.expires_at() if idle else NEVER
    return replace(
        status,
        state=_state(record),
        why_failed=record.failure.reason if record.failure else None,
        in_use=len(record.users),
        waiting=len(record.line),
        devices=without_turns(record.held) or status.devices,
        idle_seconds=now - record.idle_since if idle else None,
        remaining_seconds=max(0.0, expires - now) if expires < NEVER else None,
    )


def as_reported(status: ModelStatus, there: RemoteStanding) -> ModelStatus:
    """`status` of a model as the Roundhouse that runs it reports it. Requests in line here will be
    in line there too; draining here, and failures to reach it, are this server's to report.
    """
    ours = status.state == "draining" or (status.state, there.state) == ("failed", "unloaded")
    state: State = status.state if ours else there.state
    far = None if there.percent is None else Progress("load", there.percent, 100)
    return replace(
        status,
        state=state,
        progress=(status.progress or far) if state == "loading" else None,
        why_failed=status.why_failed if ours else there.why_failed,
        in_use=max(status.in_use, there.in_use),
        waiting=status.waiting + there.waiting,
        arithmetic=there.memory,
        missing=there.missing,
        info=status.info if state in ("loaded", "draining") else None,
    )


def _state(record: ModelRecord) -> State:
    match record.phase:
        case "parked":
            return "unloaded"
        case "absent":
            return "failed" if record.failure else "unloaded"
        case "leaving":
            return "draining"
        case phase:
            return phase


Verdict: TypeAlias = Literal["loaded", "fits", "fits_after", "too_large", "remote", "unknown"]


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes by use. `projector`: the image encoder; `engine`: the other buffers."""

    weights: int
    cache: int
    projector: int
    engine: int


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a load now. `unload`: the models that would be unloaded first; `why`: the
    reason why it isn't possible.
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


class DeviceShare(msgspec.Struct, frozen=True, kw_only=True):
    """What a load would take of one device, in bytes. `own`: what the model holds of it now;
    `others`: what other models do.
    """

    device: str
    needs: int
    budget: int
    own: int
    others: int


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """What a load with other options would be. `fit`: if it were loaded now; `note` and `reasons`:
    what would give way to make it fit, and why; `speed`: as a part of what it has where nothing
    does.
    """

    devices: tuple[DeviceShare, ...]
    parts: Parts
    measured: bool
    fit: Fit
    context_length: int | None
    trained_context: int | None
    note: str
    reasons: tuple[str, ...]
    speed: float
    load_seconds: float


class Portion(msgspec.Struct, frozen=True, kw_only=True):
    """A model's bytes of one device."""

    model: str
    device: str
    size: int


class Claimed(Portion, frozen=True, kw_only=True):
    """What a model that is waited for will take."""


class HeldMemory(Portion, frozen=True, kw_only=True):
    """What a model in memory holds; the parts add up to it."""

    parts: Parts


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """All devices with a budget for models, and each model's part of it. `kept`: what
    conversations have of main memory, which is given up for models.
    """

    budgets: Bytes
    held: tuple[HeldMemory, ...]
    claimed: tuple[Claimed, ...]
    kept: int = 0


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes per device as the machine reports them; a device that can't be measured is left out."""

    total: Bytes
    available: Bytes
    process: Bytes


class Overview(RegistryParts, kw_only=True):
    """Of one registry, while that runs. It changes nothing. `kept`: bytes that conversations have
    of main memory.
    """

    orders: Orders
    gauge: Gauge
    kept: Callable[[], int]

    def statuses(self, only: Collection[str] | None = None) -> tuple[ModelStatus, ...]:
        """See `Registry.statuses`."""
        library, known = self.names.library, self.names.entries()
        broken = (unusable_status(model) for model in library.unusable() if model.name not in known)
        usable = (
            self.status(entry)
            for name, entry in known.items()
            if only is None
            or any(one in only for one in (name, entry.base.name, *entry.base.replicas))
        )
        broken = (status for status in broken if only is None or status.id in only)
        return in_order((*usable, *broken), library.default_name())

    def status(self, entry: ModelEntry) -> ModelStatus:
        """One model; a preset is in the state of what is loaded for it."""
        if entry.of is not None:
            status = self.status(entry.of)
            return replace(status, id=entry.name, aliases=entry.aliases, entry=entry)
        if entry.replicas:
            each = [self.status(one) for one in self.names.loaded(entry) if one is not entry]
            return together(entry, each) if each else ModelStatus(id=entry.name, state="unloaded")
        plan, room = self.planner.known(entry), self.scheduler.room
        need = room.fitting(plan.needs) if plan else {}
        free = sum(room.free(device) for device in need)
        status = self._here(entry, plan, free)
        if (remote := entry.files.elsewhere) is not None:
            standing = self.names.library.fleet.standing(remote)
            return status if standing is None else as_reported(status, standing)
        if plan is not None:
            there = status.state in ("loading", "loaded")
            status = replace(status, missing=0 if there else room.shortfall(need))
        obstacle = self.orders.obstacles.get(entry.name)
        if obstacle is None or status.state != "unloaded":
            return status
        return replace(status, state="failed", why_failed=obstacle)

    def _here(self, entry: ModelEntry, plan: LoadPlan | None, free: int) -> ModelStatus:
        """What this server knows of one model, put together; `free`: bytes on its devices."""
        record = self.scheduler.residency(entry.name)
        loading = self.moves.loading.get(entry.name)
        resident = self.moves.residents.get(entry.name)
        status = ModelStatus(
            id=entry.name,
            state="unloaded",
            aliases=entry.aliases,
            progress=loading.progress if loading else None,
            files=entry.files,
            entry=entry,
            info=resident.container.info if resident else None,
            slots=slots_of(resident.container, entry) if resident else None,
        )
        if plan is not None:
            evicted = record.evicted if record else ()
            sentence = "" if entry.files.elsewhere else plan.arithmetic(free, evicted)
            devices = {} if entry.files.elsewhere else without_turns(plan.needs[0])
            status = replace(
                status, need=plan.need, devices=devices, arithmetic=sentence, options=plan.loads
            )
        if (share := entry.files.node) is not None:
            held = resident.held_there if resident else {}
            sentence = f"needs {by_use(share.need)}"
            status = replace(status, need=share.need, devices=held, arithmetic=sentence)
        return status if record is None else _recorded(status, record, self.clock.now())

    async def measured(self) -> Measured:
        """The devices as they are now."""
        return await to_thread.run_sync(self._measure)

    def _measure(self) -> Measured:
        gauge = self.gauge
        return Measured(total=gauge.total(), available=gauge.available(), process=gauge.held())

    def ledger(self) -> Ledger:
        """Memory held per model, and what is claimed."""
        records = self.scheduler.records()
        claims = [record for record in records if record.is_claim]
        return Ledger(
            budgets=without_turns(self.scheduler.room.budgets),
            held=tuple(held for record in records for held in self._held(record)),
            claimed=tuple(
                Claimed(model=record.model.name, device=device, size=size)
                for record in claims
                for device, size in without_turns(record.need).items()
            ),
            kept=self.kept(),
        )

    def _held(self, record: ModelRecord) -> Iterator[HeldMemory]:
        name = record.model.name
        for device, size in without_turns(record.held).items():
            parts = scaled(_parts(self.planner.planned(name, record.held)), size)
            yield HeldMemory(model=name, device=device, size=size, parts=parts)

    def cost(self, entry: ModelEntry) -> ModelCost | None:
        """What a model takes; None where that can't be estimated, or others have its memory."""
        entry, *_ = self.names.loaded(entry)
        plan = self.planner.known(entry)
        if plan is None or entry.files.elsewhere is not None:
            return None
        moves, now = self.moves, self.clock.now()
        last = self.planner.history.get(plan.entry.files, plan.loads)
        resident, loading = moves.residents.get(entry.name), moves.loading.get(entry.name)
        return alike(ModelCost, self.planner.facts(plan))(
            devices=self._devices(entry.name, plan),
            parts=_parts(plan),
            measured=plan.measured,
            load_seconds=last.load_seconds if last else None,
            loading_for=now - loading.started if loading else None,
            loaded_for=now - resident.arrived if resident else None,
        )

    def _devices(self, name: str, plan: LoadPlan) -> Bytes:
        """Where it lies, or would."""
        record = self.scheduler.residency(name)
        lies = without_turns(record.held) if record else None
        return lies or without_turns(self.scheduler.room.fitting(plan.needs))

    def fit(self, entry: ModelEntry) -> Fit:
        """The effect of a load of `entry` now."""
        entry, *_ = self.names.loaded(entry)
        if entry.files.elsewhere is not None:
            return Fit(verdict="remote")
        if self.scheduler.phase(entry.name) in ("loading", "loaded"):
            return Fit(verdict="loaded")
        plan = self.planner.known(entry)
        return Fit(verdict="unknown") if plan is None else self.room_for(entry.name, plan.needs)

    def proposal(self, entry: ModelEntry, changes: Mapping[str, Any]) -> Proposal:
        """The effect of a load with `changes` over the model's options; nothing is changed. Raises
        InvalidRequest, naming the option at fault, and ModelUnavailable where it can't be
        estimated.
        """
        entry = entry.base
        plan = self.planner.proposed(entry, changes)
        room, record = self.scheduler.room, self.scheduler.residency(entry.name)
        held = record.held if record else {}
        needs = room.fitting(plan.needs)
        fitted = plan.fitted
        wished = getattr(plan.loads, "context_length", None)
        return alike(Proposal, plan)(
            devices=tuple(
                DeviceShare(
                    device=device,
                    needs=needs.get(device, 0),
                    budget=budget,
                    own=held.get(device, 0),
                    others=budget - room.free(device) - held.get(device, 0),
                )
                for device, budget in without_turns(room.budgets).items()
            ),
            parts=_parts(plan),
            fit=self.room_for(entry.name, plan.needs),
            context_length=wished or entry.files.context_length or None,
            trained_context=entry.files.context_length or None,
            reasons=fitted.reasons if fitted else (),
        )

    def room_for(self, name: str, needs: Sequence[Bytes]) -> Fit:
        """Whether one of `needs` would be found for a model called `name`, and which models would
        be evicted. Models in use count among those that go: they would, as their answers end.
        """
        room, record = self.scheduler.room, self.scheduler.residency(name)
        own = record.held if record else {}
        if (obstacle := room.obstacle(name, needs)) is not None:
            return Fit(verdict="too_large", why=obstacle)
        missing = [
            {
                device: size - room.free(device) - room.coming(device) - own.get(device, 0)
                for device, size in need.items()
            }
            for need in needs
        ]
        if any(all(size <= 0 for size in lack.values()) for lack in missing):
            return Fit(verdict="fits")
        now = self.clock.now()
        goers = tuple(record for record in self.scheduler.records() if _may_go(record, name))
        ways = (choose_victims(goers, lack, now) for lack in missing)
        chosen = (victims for victims in ways if victims is not None)
        # What loads or is claimed may stand in its way, too: then all go.
        victims = min(chosen, key=lambda victims: cost(victims, now), default=goers)
        return Fit(verdict="fits_after", unload=tuple(one.model.name for one in victims))

    def fitting(self, needs: Sequence[Bytes]) -> Bytes:
        """See `MemoryLedger.fitting`."""
        return self.scheduler.room.fitting(needs)

    @property
    def cards(self) -> Cards:
        """This machine's, with their bytes."""
        return self.planner.cards

    async def read_speeds(self) -> Mapping[str, float]:
        """Bytes a second that each device is read with, as far as it is known."""
        known = {**self.planner.bandwidths, **self.planner.history.bandwidths}
        return {CPU: await to_thread.run_sync(main_bandwidth), **known}


def _may_go(record: ModelRecord, name: str) -> bool:
    others = record.model.name != name and not record.model.pinned
    return others and record.phase in ("loading", "loaded")


def _parts(plan: LoadPlan) -> Parts:
    """Projectors lie with the weights, as their file is read with them."""
    need = plan.need
    projector = min(need.weights, _size(plan.entry.files.projector))
    return alike(Parts, need)(weights=need.weights - projector, projector=projector)


def _size(path: Path | None) -> int:
    try:
        return path.stat().st_size if path is not None else 0
    except OSError:  # gone meanwhile
        return 0


def scaled(parts: Parts, size: int) -> Parts:
    """`parts` in the same proportions, adding up to `size`; all of it is the engine's where they
    are nothing.
    """
    sizes: dict[str, int] = msgspec.structs.asdict(parts)
    total = sum(sizes.values()) or 1
    shares = {use: size * part // total for use, part in sizes.items() if use != "engine"}
    return Parts(**shares, engine=size - sum(shares.values()))
