"""The present state of every model, put together from the registry's parts."""

from collections.abc import Collection, Iterable

from msgspec.structs import replace

from backends.protocol import Progress
from backends.remote import RemoteStanding
from gateway.registry.library import ModelEntry
from gateway.registry.line import Clock
from gateway.registry.loading import LoadPlan, LoadPlanner
from gateway.registry.memory import arithmetic
from gateway.registry.moves import Loading, Moves, Resident
from gateway.registry.names import ModelNames
from gateway.registry.orders import Orders
from gateway.registry.record import NEVER, ModelRecord
from gateway.registry.scheduler import Scheduler
from gateway.registry.sources import Unusable
from gateway.registry.status import ModelStatus, State, slots_of


class Overview:
    """Of one registry. It changes nothing."""

    def __init__(
        self,
        *,
        names: ModelNames,
        planner: LoadPlanner,
        scheduler: Scheduler,
        moves: Moves,
        orders: Orders,
        clock: Clock,
    ) -> None:
        self._names = names
        self._planner = planner
        self._scheduler = scheduler
        self._moves = moves
        self._orders = orders
        self._clock = clock

    def statuses(self, only: Collection[str] | None = None) -> tuple[ModelStatus, ...]:
        """See `Registry.statuses`."""
        library, known = self._names.library, self._names.entries()
        broken = (unusable_status(one) for one in library.unusable() if one.name not in known)
        usable = (
            self.status(entry) for name, entry in known.items() if only is None or name in only
        )
        broken = (one for one in broken if only is None or one.id in only)
        return in_order((*usable, *broken), library.default_name())

    def status(self, entry: ModelEntry) -> ModelStatus:
        """One model."""
        plan, room = self._planner.known(entry), self._scheduler.room
        need = room.fitting(plan.needs) if plan else {}
        free = sum(room.free(device) for device in need)
        status = status_of(
            entry,
            plan,
            free=free,
            record=self._scheduler.residency(entry.name),
            loading=self._moves.loading.get(entry.name),
            resident=self._moves.residents.get(entry.name),
            now=self._clock.now(),
        )
        if (remote := entry.files.remote) is not None:
            standing = self._names.library.fleet.standing(remote)
            return status if standing is None else as_reported(status, standing)
        if plan is not None:
            there = status.state in ("loading", "loaded")
            status = replace(status, missing=0 if there else room.shortfall(need))
        obstacle = self._orders.obstacles.get(entry.name)
        if obstacle is None or status.state != "unloaded":
            return status
        return replace(status, state="failed", why_failed=obstacle)


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


def status_of(
    entry: ModelEntry,
    plan: LoadPlan | None,
    *,
    free: int,
    record: ModelRecord | None,
    loading: Loading | None,
    resident: Resident | None,
    now: float,
) -> ModelStatus:
    """What is known of one model, put together; `free`: bytes on its devices."""
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
        sentence = arithmetic(plan.need, free, evicted, measured=plan.measured)
        sentence = "" if entry.files.remote else sentence
        status = replace(status, need=plan.need, arithmetic=sentence, options=plan.options)
    return status if record is None else _recorded(status, record, now)


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
        case "absent":
            return "failed" if record.failure else "unloaded"
        case "leaving":
            return "draining"
        case phase:
            return phase
