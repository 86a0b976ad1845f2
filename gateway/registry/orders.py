"""Carries out what the scheduler decides, and reports the outcomes to it."""

from collections.abc import Callable, Iterable, Sequence

import anyio
import msgspec
import structlog
from anyio.abc import TaskGroup

from gateway.registry.entry import ModelEntry
from gateway.registry.line import Alarm, Clock, Places, refusal
from gateway.registry.moves import Broken, Moves
from gateway.registry.names import ModelNames
from gateway.registry.planning import LoadPlanner
from gateway.registry.protocol import Bytes, CancelLoad, Grant, Load, Order, Refuse, Unload
from gateway.registry.scheduler import Scheduler
from gateway.registry.status import (
    ModelEvent,
    ModelLoaded,
    ModelLoadFailed,
    ModelProgressed,
    ModelUnloaded,
)
from gateway.terms.tasks import Signal

log = structlog.get_logger(__name__)


class RegistryParts(msgspec.Struct, kw_only=True):
    """The parts of one registry that know its models, while it runs."""

    names: ModelNames
    planner: LoadPlanner
    scheduler: Scheduler
    places: Places
    moves: Moves
    clock: Clock


class Orders(RegistryParts, kw_only=True):
    """Loads and unloads through `Moves`, and answers the waiters, as the scheduler orders.

    `changed` is called with a model that has another state, `watch` with what happened to it.
    `obstacles`: why a model could not fit when it was asked for.
    """

    changed: Callable[[str], None]
    watch: Callable[[ModelEvent], None]
    obstacles: dict[str, str] = {}
    alarm: Alarm
    _departures: dict[str, anyio.Event] = {}
    ended: Signal = msgspec.field(default_factory=Signal)  # as a place or a move may have ended

    def begin(self, tasks: TaskGroup) -> None:
        """From now on it is told of moves, and time passes."""
        self.moves.notify = self.note
        tasks.start_soon(self.alarm.run, self._tick, name="registry alarm")

    async def departed(self, name: str) -> None:
        """Wait until the memory of a model that is to go is free."""
        if self.scheduler.phase(name) != "absent":
            await self._departures.setdefault(name, anyio.Event()).wait()

    def carry_out(self, orders: Iterable[Order], *models: str) -> None:
        """Carry orders out; `models`: whose lines may have moved besides."""
        moved = set(models)
        for order in orders:
            moved.add(self._one(order))
        for name in moved:
            self._report_places(name)
        self.alarm.set(self.scheduler.wakes_at(self.clock.now()))

    def describe(self, entries: Sequence[ModelEntry]) -> None:
        """The scheduler knows these models as they are planned now, as far as they can be."""
        models = [self.planner.model(entry) for entry in entries if self.planner.known(entry)]
        orders = self.scheduler.described(self.clock.now(), *models)
        self.carry_out(orders, *(entry.name for entry in entries))

    def _one(self, order: Order) -> str:
        """Carry one order out; the model it is about."""
        match order:
            case Load(model=name):
                self.obstacles.pop(name, None)
                plan = self.planner.planned(name, order.need)
                self.moves.load(order, plan, self.planner.ordered(plan))
                return name
            case CancelLoad(model=name):
                self.moves.cancel(name)
                return name
            case Unload(model=name):
                self.moves.unload(order)
                return name
            case Grant(ticket=number):
                return self._answer(number, None)
            case Refuse(ticket=number):
                return self._answer(number, order)

    def _answer(self, number: int, refused: Refuse | None) -> str:
        place = self.places[number]
        if refused is not None and refused.why == "too_large":
            reason = refused.reason + self.planner.hint(place.model)
            refused = msgspec.structs.replace(refused, reason=reason)
            self.obstacles[place.model] = reason
        place.answer(refusal(place.model, refused) if refused else None)
        return place.model

    def note(self, event: ModelEvent | Broken) -> None:
        """A move reported how it goes, or how it ended."""
        if isinstance(event, Broken):
            self._broke(event)
            return
        now, name, scheduler = self.clock.now(), event.model, self.scheduler
        match event:
            case ModelProgressed():
                self._report_places(name)
            case ModelLoaded(seconds=seconds):
                plan = self.moves.residents[name].plan
                if plan.entry.files.elsewhere is None:  # an upstream's model takes no memory here
                    self.names.present[name] = plan.entry
                held = self.planner.arrived(plan)
                self.carry_out(scheduler.loaded(now, name, held, seconds), name)
                self.describe([plan.entry])  # as it lies, and in no other way
            case ModelLoadFailed(reason=str(reason), free=free, moved=moved):
                self.planner.forget_options(name)  # perhaps the cause: the next load has its own
                orders = scheduler.load_failed(now, name, reason, free=free, moved=moved)
                self.carry_out(orders, name)
            case ModelLoadFailed():
                self._left(name, None)
            case ModelUnloaded(parked=parked):
                self._left(name, parked)
        self.watch(event)
        self.ended.give()

    def _left(self, name: str, parked: Bytes | None) -> None:
        self.names.present.pop(name, None)
        self.planner.left(name, parked)
        self.carry_out(self.scheduler.unloaded(self.clock.now(), name, parked), name)
        if parked is None and (departure := self._departures.pop(name, None)) is not None:
            departure.set()

    def _broke(self, found: Broken) -> None:
        """A model in memory was noticed to be unusable, perhaps not for the first time."""
        now, name, reason = self.clock.now(), found.name, found.reason
        record = self.scheduler.residency(name)
        if record is None or (record.phase, record.leaving) == ("draining", "broken"):
            return
        log.warning("the model broke", model=name, reason=reason)
        self.carry_out(self.scheduler.broke(now, name, reason, rest=found.rest), name)

    def _report_places(self, name: str) -> None:
        self.changed(name)
        record, loading = self.scheduler.residency(name), self.moves.loading.get(name)
        if record is not None and record.line:
            self.places.report(record, loading.progress if loading else None)

    def _tick(self) -> None:
        self.carry_out(self.scheduler.tick(self.clock.now()))
