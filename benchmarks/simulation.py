"""Requests for models that don't all fit, on a virtual clock: our scheduler, FIFO, the best order.

No engine, no event loop, no randomness of its own: a `Case` fixes when each request comes and how
long its answer takes, so that every policy answers the same crowd. Times are seconds.
"""

import heapq
import itertools
from collections.abc import Callable, Mapping
from functools import cache, partial

import msgspec

from config.settings import SwapConfig
from gateway.registry.protocol import Grant, Load, Model, Order, Ticket, Unload
from gateway.registry.scheduler import Scheduler

DEVICE = "cpu"


class Request(msgspec.Struct, frozen=True):
    """One answer wanted."""

    model: str
    arrives: float
    answer: float  # how long it takes once the model is there


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One machine and one crowd, in order of arrival. Every model takes 1 of `room` units."""

    loads: Mapping[str, float]  # load time of each model
    room: int
    slots: int  # answers at once per model
    requests: tuple[Request, ...]
    unload: float = 0.2


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a crowd."""

    waits: tuple[float, ...]  # from arrival to the start of the answer
    loads: int
    ended: float  # when the last answer was there

    @property
    def swaps(self) -> int:
        """Loads beyond the first."""
        return max(0, self.loads - 1)

    @property
    def mean_wait(self) -> float:
        return sum(self.waits) / len(self.waits)

    @property
    def p95_wait(self) -> float:
        return sorted(self.waits)[int(0.95 * (len(self.waits) - 1))]

    @property
    def throughput(self) -> float:
        """Answers per second."""
        return len(self.waits) / self.ended


# ------------------------------------------------------------------------------------ ours


class Simulation:
    """The gateway's scheduler with a calendar in place of engines and clients."""

    def __init__(self, case: Case, rules: SwapConfig) -> None:
        self._case = case
        self._scheduler = Scheduler({DEVICE: case.room}, rules)
        self._calendar: list[tuple[float, int, Callable[[float], list[Order]]]] = []
        self._order = itertools.count()
        self._waits: dict[int, float] = {}
        self._loads = 0
        self._now = 0.0
        self._ended = 0.0

    def run(self) -> Outcome:
        """Let everybody come and be answered."""
        for number, request in enumerate(self._case.requests):
            self._at(request.arrives, partial(self._arrive, number, request))
        while (event := self._next()) is not None:
            for order in event(self._now):
                self._follow(self._now, order)
        waits = tuple(self._waits[number] for number in range(len(self._case.requests)))
        return Outcome(waits=waits, loads=self._loads, ended=self._ended)

    def _at(self, time: float, event: Callable[[float], list[Order]]) -> None:
        heapq.heappush(self._calendar, (time, next(self._order), event))

    def _next(self) -> Callable[[float], list[Order]] | None:
        """What happens next, by the calendar or because the scheduler asked to be woken."""
        wake = self._scheduler.wakes_at(self._now)
        if wake is not None and (not self._calendar or wake < self._calendar[0][0]):
            self._now = wake
            return self._scheduler.tick
        if not self._calendar:
            return None
        self._now, _, event = heapq.heappop(self._calendar)
        return event

    def _arrive(self, number: int, request: Request, now: float) -> list[Order]:
        model = Model(
            name=request.model,
            need={DEVICE: 1},
            load_seconds=self._case.loads[request.model],
            slots=self._case.slots,
        )
        return self._scheduler.requested(now, Ticket(number=number, arrived=now), model)

    def _follow(self, now: float, order: Order) -> None:
        scheduler = self._scheduler
        match order:
            case Load(model=name):
                self._loads += 1
                seconds = self._case.loads[name]
                held = {DEVICE: 1}
                self._at(now + seconds, lambda then: scheduler.loaded(then, name, held, seconds))
            case Unload(model=name):
                self._at(now + self._case.unload, lambda then: scheduler.unloaded(then, name))
            case Grant(ticket=number):
                request = self._case.requests[number]
                self._waits[number] = now - request.arrives
                self._ended = max(self._ended, now + request.answer)
                name, ends = request.model, now + request.answer
                self._at(ends, lambda then: scheduler.released(then, name, number))
            case _:
                raise AssertionError(f"nobody leaves and nothing fails here: {order}")


def scheduled(case: Case, rules: SwapConfig) -> Outcome:
    """Our scheduler."""
    return Simulation(case, rules).run()


# ------------------------------------------------------------------------------------ FIFO


def first_in_first_out(case: Case) -> Outcome:
    """One line for all: a request starts when those before it have started and its model is there.

    Answers of one model still run together, and the model used longest ago goes. This is what a
    gateway without a scheduler does.
    """
    running: dict[
        str, list[float]
    ] = {}  # resident model, used longest ago first: when its answers end
    waits, clock, loads, ended = [], 0.0, 0, 0.0
    for request in case.requests:
        clock = max(clock, request.arrives)
        if request.model not in running:
            loads += 1
            if len(running) == case.room:
                victim = next(iter(running))
                clock = max([clock, *running.pop(victim)]) + case.unload
            clock += case.loads[request.model]
            running[request.model] = []
        ends = running[request.model] = running.pop(request.model)
        if len(ends) == case.slots:
            clock = max(clock, heapq.heappop(ends))
        heapq.heappush(ends, clock + request.answer)
        waits.append(clock - request.arrives)
        ended = max(ended, clock + request.answer)
    return Outcome(waits=tuple(waits), loads=loads, ended=ended)


# ------------------------------------------------------------------------------------ the best


def best_order(case: Case) -> Outcome:
    """The order with the smallest mean wait, found by trying all. It knows the future; we don't.

    For one model at a time (`room` 1) with slots for everybody. A model that was loaded answers who
    is there and, as they come, the next k of its own requests, for every possible k; then it drains
    and any other model is loaded, be it before its first request comes. No other order is better:
    draining later than at the last answer begun helps nobody.
    """
    assert case.room == 1, "the search is for one model at a time"
    queues = {
        name: tuple(n for n, request in enumerate(case.requests) if request.model == name)
        for name in case.loads
    }

    @cache
    def from_here(done: tuple[tuple[str, int], ...], last: str, free: float) -> _Plan:
        """The best plan with so many of each model's requests done, and memory free at `free`."""
        counts = dict(done)
        best: _Plan | None = None
        for name, queue in queues.items():
            if name == last or counts[name] == len(queue):
                continue
            for plan in stays(counts, name, free + case.loads[name]):
                if best is None or plan.cost < best.cost:
                    best = plan
        return best or _Plan(0.0, (), 0, 0.0)

    def stays(counts: dict[str, int], name: str, loaded: float) -> list["_Plan"]:
        """One plan for each number of its own requests that the model answers before it goes."""
        plans, waits, ends, free = [], [], loaded, loaded
        first, queue = counts[name], queues[name]
        for position in range(first, len(queue)):
            request = case.requests[queue[position]]
            start = max(loaded, request.arrives)
            waits.append((queue[position], start - request.arrives))
            ends = max(ends, start + request.answer)
            upcoming = position + 1 < len(queue)
            if upcoming and case.requests[queue[position + 1]].arrives <= loaded:
                continue  # it is there already: not to answer it would help nobody
            free = ends + case.unload
            rest = from_here(tuple({**counts, name: position + 1}.items()), name, free)
            cost = sum(wait for _, wait in waits) + rest.cost
            plans.append(_Plan(cost, (*waits, *rest.waits), rest.loads + 1, max(ends, rest.ended)))
        return plans

    plan = from_here(tuple((name, 0) for name in queues), "", 0.0)
    waits = tuple(wait for _, wait in sorted(plan.waits))
    return Outcome(waits=waits, loads=plan.loads, ended=plan.ended)


class _Plan(msgspec.Struct, frozen=True):
    """The rest of a schedule: what its waits add up to, each request's wait, the loads, the end."""

    cost: float
    waits: tuple[tuple[int, float], ...]
    loads: int
    ended: float
