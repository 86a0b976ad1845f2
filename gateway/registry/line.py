"""One caller in line: what it is told while it waits, and how it learns its answer. It decides nothing."""

from typing import Literal

import anyio
import msgspec

from backends.protocol import Progress
from gateway.errors import GatewayError
from gateway.registry.orders import Ticket


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Where a waiting caller stands. `position` counts from 1 within the model's line."""

    model: str
    position: int
    stage: Literal["queued", "loading"]
    progress: Progress | None = None  # of the load, where the engine has told

    @property
    def percent(self) -> int | None:
        """How far the load is; None while queued."""
        if self.progress is None or self.progress.total <= 0:
            return None
        return min(100, 100 * self.progress.done // self.progress.total)


class Place:
    """Iterates over the news for one ticket, the latest only, until it is answered.

    The iteration ends when the ticket is granted, and raises the error it is refused with.
    """

    def __init__(self, ticket: Ticket, model: str) -> None:
        self.ticket = ticket
        self.model = model
        self.answered = False
        self.scope = anyio.CancelScope()  # of the lease, once granted
        self._error: GatewayError | None = None
        self._news: Waiting | None = None
        self._told: Waiting | None = None
        self._changed = anyio.Event()

    def tell(self, waiting: Waiting) -> None:
        """Something moved."""
        if waiting != self._told:
            self._news = self._told = waiting
            self._changed.set()

    def answer(self, error: GatewayError | None = None) -> None:
        """Granted, or refused with `error`. Exactly once."""
        assert not self.answered, f"ticket {self.ticket.number} was answered twice"
        self.answered, self._error = True, error
        self._changed.set()

    @property
    def granted(self) -> bool:
        """Answered, and not refused."""
        return self.answered and self._error is None

    def __aiter__(self) -> "Place":
        return self

    async def __anext__(self) -> Waiting:
        while self._news is None:
            if self._error is not None:
                raise self._error
            if self.answered:
                raise StopAsyncIteration
            await self._changed.wait()
            self._changed = anyio.Event()
        news, self._news = self._news, None
        return news
