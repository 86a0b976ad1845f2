"""Carries out what the scheduler decides, and reports the outcomes to it."""

from collections.abc import Callable, Iterable

import anyio
import structlog
from anyio.abc import TaskGroup

from gateway.registry.entry import ModelEntry
from gateway.registry.line import Alarm, Clock, Places, refusal
from gateway.registry.moves import (
    Arrived,
    Broken,
    Gone,
    LoadFailure,
    Moves,
    Outcome,
    Parked,
    Progressed,
)
from gateway.registry.planning import LoadPlanner
from gateway.registry.protocol import CancelLoad, Grant, Load, Order, Refuse, Unload
from gateway.registry.scheduler import Scheduler
from gateway.registry.status import (
    ModelEvent,
    ModelLoaded,
    ModelLoadFailed,
    ModelProgressed,
    ModelUnloaded,
)

log = structlog.get_logger(__name__)


class Orders:
    """Loads and unloads through `Moves`, and answers the waiters, as the scheduler orders.

    `obstacles`: why a model could not fit when it was asked for.
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        planner: LoadPlanner,
        places: Places,
        present: dict[str, ModelEntry],
        clock: Clock,
        changed: Callable[[str], None],
        watch: Callable[[ModelEvent], None],
    ) -> None:
        """`present` is kept: what is in memory. `changed` is called with a model that has another
        state, `watch` with what happened to it.
        """
        self.obstacles: dict[str, str] = {}
        self._scheduler = scheduler
        self._planner = planner
        self._places = places
        self._present = present
        self._clock = clock
        self._changed = changed
        self._watch = watch
        self._alarm = Alarm(clock)
        self._departures: dict[str, anyio.Event] = {}
        self._moved = anyio.Event()

    def begin(self, moves: Moves, tasks: TaskGroup) -> None:
        """From now on `moves` loads and unloads, and time passes."""
        self._moves = moves
        tasks.start_soon(self._alarm.run, self._tick, name="registry alarm")

    async def departed(self, name: str) -> None:
        """Wait until the memory of a model that is to go is free."""
        if self._scheduler.phase(name) != "absent":
            await self._departures.setdefault(name, anyio.Event()).wait()

    def note_change(self) -> None:
        """A place was given up, or a move has ended."""
        self._moved.set()

    async def next_change(self) -> None:
        """Wait for one."""
        self._moved = anyio.Event()
        await self._moved.wait()

    @property
    def _now(self) -> float:
        return self._clock.now()

    def carry_out(self, orders: Iterable[Order], *models: str) -> None:
        """Carry orders out; `models`: whose lines may have moved besides."""
        moved = set(models)
        for order in orders:
            moved.add(self._one(order))
        for name in moved:
            self._report_places(name)
        self._alarm.set(self._scheduler.wakes_at(self._now))

    def _one(self, order: Order) -> str:
        """Carry one order out; the model it is about."""
        match order:
            case Load(model=name):
                self.obstacles.pop(name, None)
                plan = self._planner.planned(name, order.need)
                self._moves.load(order, plan, self._planner.ordered(plan))
                return name
            case CancelLoad(model=name):
                self._moves.cancel(name)
                return name
            case Unload(model=name):
                self._moves.unload(order)
                return name
            case Grant(ticket=number):
                return self._answer(number, None)
            case Refuse(ticket=number):
                return self._answer(number, order)

    def _answer(self, number: int, refused: Refuse | None) -> str:
        place = self._places[number]
        if refused is not None and refused.why == "too_large":
            self.obstacles[place.model] = refused.reason
        place.answer(refusal(place.model, refused) if refused else None)
        return place.model

    def note_outcome(self, outcome: Outcome) -> None:
        """A move reported how it goes, or how it ended."""
        now, name, scheduler = self._now, outcome.name, self._scheduler
        match outcome:
            case Progressed(progress=progress):
                self._report_places(name)
                self._watch(ModelProgressed(name, progress))
                return
            case Broken(reason=reason, rest=rest):
                self.broke(name, reason, rest=rest)
            case Arrived(measured=measured):
                plan = self._moves.residents[name].plan
                if plan.entry.files.elsewhere is None:  # an upstream's model takes no memory here
                    self._present[name] = plan.entry
                held, seconds = self._planner.arrived(plan, measured), measured.load_seconds
                self.carry_out(scheduler.loaded(now, name, held, seconds), name)
                self._watch(ModelLoaded(name, seconds))
            case LoadFailure(seconds=seconds, reason=reason, memory=memory, free=free, moved=moved):
                self._planner.forget_options(name)  # perhaps the cause: the next load has its own
                orders = scheduler.load_failed(
                    now, name, reason, memory=memory, free=free, moved=moved
                )
                self.carry_out(orders, name)
                self._watch(ModelLoadFailed(name, seconds, reason))
            case Parked(seconds=seconds, why=why, held=held):
                self._present.pop(name, None)
                self._planner.was_parked(name, held)
                self.carry_out(scheduler.parked(now, name, held), name)
                self._watch(ModelUnloaded(name, seconds, why))
            case Gone(seconds=seconds, why=why):
                self._present.pop(name, None)
                self._planner.left(name)
                self.carry_out(scheduler.unloaded(now, name), name)
                if (departure := self._departures.pop(name, None)) is not None:
                    departure.set()
                self._watch(
                    ModelUnloaded(name, seconds, why)
                    if why
                    else ModelLoadFailed(name, seconds, None)
                )
        self.note_change()

    def broke(self, name: str, reason: str, *, rest: bool = True) -> None:
        """A model in memory was noticed to be unusable, perhaps not for the first time. `rest`: see
        `Scheduler.broke`.
        """
        record = self._scheduler.residency(name)
        if record is None or (record.phase, record.leaving) == ("draining", "broken"):
            return
        log.warning("the model broke", model=name, reason=reason)
        self.carry_out(self._scheduler.broke(self._now, name, reason, rest=rest), name)

    def _report_places(self, name: str) -> None:
        self._changed(name)
        record, loading = self._scheduler.residency(name), self._moves.loading.get(name)
        if record is not None:
            self._places.report(record, loading.progress if loading else None)

    def _tick(self) -> None:
        self.carry_out(self._scheduler.tick(self._now))
