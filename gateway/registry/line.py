"""One waiter in line: what is reported to it while it waits, and how it gets its answer."""

import itertools
import time
from collections.abc import Callable
from typing import Literal

import anyio
import msgspec

from backends.contract.protocol import Progress
from config.values import alike
from gateway.registry.protocol import Refuse, Ticket, Wish
from gateway.registry.record import ModelRecord
from gateway.terms.errors import (
    GatewayError,
    ModelNotFound,
    ModelUnavailable,
    QueueFull,
    ShuttingDown,
)
from gateway.terms.tasks import Signal

# The registry's time: seconds that never go back, and waiting for a moment or an event.


class Clock:
    """The machine's monotonic clock; an engine's report asks for the time outside of any task."""

    def now(self) -> float:
        return time.monotonic()

    async def wait(self, event: anyio.Event, until: float | None) -> None:
        """Return when `event` is set or the time has come; `until` None: only when it is set."""
        seconds = None if until is None else max(0.0, until - self.now())
        with anyio.move_on_after(seconds):
            await event.wait()


class Alarm:
    """Rings at the time it is set to, which may be changed at any moment."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._when: float | None = None
        self._changed = anyio.Event()

    def set(self, when: float | None) -> None:
        """Ring then, and not at the time set before; None: don't ring."""
        if when != self._when:
            self._when = when
            self._changed.set()

    async def run(self, ring: Callable[[], None]) -> None:
        """For ever: call `ring` when the time has come. It may set the alarm anew."""
        while True:
            self._changed = anyio.Event()
            await self._clock.wait(self._changed, self._when)
            if self._when is not None and self._clock.now() >= self._when:
                self._when = None
                ring()


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Where a waiting caller stands. `position` counts from 1 within the model's line."""

    model: str
    position: int
    stage: Literal["queued", "loading"]
    progress: Progress | None = None  # of the load, where the engine reports it

    @property
    def percent(self) -> int | None:
        """How far the load is; None while queued."""
        if self.progress is None or self.progress.total <= 0:
            return None
        return min(100, 100 * self.progress.done // self.progress.total)


class Place:
    """Iterates over the reports for one ticket, the latest only, until it is answered.

    The iteration ends when the ticket is granted, and raises the error it is refused with.
    """

    def __init__(self, ticket: Ticket, model: str) -> None:
        self.ticket = ticket
        self.model = model
        self.answered = False
        self.scope = anyio.CancelScope()  # of the lease, once granted
        self._error: GatewayError | None = None
        self._news: Waiting | None = None
        self._last: Waiting | None = None
        self._changed = Signal()

    def report(self, waiting: Waiting) -> None:
        """Report a change of the place."""
        if waiting != self._last:
            self._news = self._last = waiting
            self._changed.give()

    def nudge(self) -> None:
        """Report again where it stands: something else has changed that its owner looks at."""
        self._news = self._last
        self._changed.give()

    def answer(self, error: GatewayError | None = None) -> None:
        """Granted, or refused with `error`. Exactly once."""
        assert not self.answered, f"ticket {self.ticket.number} was answered twice"
        self.answered, self._error = True, error
        self._changed.give()

    def raise_refusal(self) -> None:
        """Raises the error it was refused with, if it was."""
        if self._error is not None:
            raise self._error

    @property
    def is_lease(self) -> bool:
        """It was granted, and is to be given back."""
        return self.answered and self._error is None and self.ticket.holds

    def __aiter__(self) -> "Place":
        return self

    async def __anext__(self) -> Waiting:
        while self._news is None:
            if self._error is not None:
                raise self._error
            if self.answered:
                raise StopAsyncIteration
            await self._changed.wait()
        news, self._news = self._news, None
        return news


class Places(dict[int, Place]):
    """All waiters and holders of leases, by ticket number."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)

    def take(self, model: str, now: float, wish: Wish) -> Place:
        """A new place, with the next ticket."""
        ticket = alike(Ticket, wish)(number=next(self._numbers), arrived=now)
        place = self[ticket.number] = Place(ticket, model)
        return place

    def report(self, record: ModelRecord, progress: Progress | None) -> None:
        """Report to all waiters in this model's line where they stand."""
        for position, ticket in enumerate(record.in_turn(), start=1):
            self[ticket.number].report(
                Waiting(
                    model=record.model.name,
                    position=position,
                    stage="loading" if record.phase == "loading" else "queued",
                    progress=progress,
                )
            )

    def abort(self, model: str | None = None) -> int:
        """Cut off the answers of a model, or of all; how many there were."""
        leases = [place for place in self.values() if place.is_lease]
        doomed = [place for place in leases if model in (None, place.model)]
        for place in doomed:
            place.scope.cancel()
        return len(doomed)


def refusal(model: str, order: Refuse) -> GatewayError:
    """The error for one refused ticket."""
    match order.why:
        case "queue_full":
            return QueueFull(order.reason, retry_after=order.retry_after)
        case "closing":
            return ShuttingDown(order.reason)
        case "removed":
            return ModelNotFound(order.reason, param="model")
        case "failed":
            text = f"{model} could not be loaded: {order.reason}"
        case "broken":
            text = f"{model} rests for a moment, its engine failed: {order.reason}"
        case _:
            text = order.reason
    return ModelUnavailable(text, param="model", retry_after=order.retry_after)
