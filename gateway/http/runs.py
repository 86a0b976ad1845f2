"""Answers that run in the background: no request owns them, and their owner's key may read along.

A run collects the events of its stream, so that a reader can come at any time, leave, and go on
from any event. Knows no dialect.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup
from litestar.types import ASGIApp, HTTPDisconnectEvent, Message, Scope, Send

from gateway.errors import QueueFull
from gateway.tasks import Signal, companions

MOST = 256  # runs at a time; more get a 429
RETRY = 5.0  # seconds after which one may be tried again


class Run:
    """One answer. `document` gives its present state."""

    def __init__(self, owner: str, document: Callable[[], bytes]) -> None:
        self.owner = owner
        self.document = document
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()
        self._events: list[bytes] = []
        self._changed = Signal()

    def take(self, frames: bytes) -> None:
        """Some more events. Comments are for connections, and this is none."""
        self._events += [
            one + b"\n\n" for one in frames.split(b"\n\n") if one and not one.startswith(b":")
        ]
        self._changed.give()

    def end(self) -> None:
        """There will be no more."""
        self.ended.set()
        self._changed.give()

    def events(self) -> bytes:
        """All of them."""
        return b"".join(self._events)

    async def read(self, start: int) -> AsyncIterator[bytes]:
        """The events from number `start` on, as they come."""
        while True:
            if frames := b"".join(self._events[start:]):
                start = len(self._events)
                yield frames
            elif self.ended.is_set():
                return
            else:
                await self._changed.wait()

    async def collect(self, app: ASGIApp) -> None:
        """All that `app` sends. Raises what it raises."""

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body":
                self.take(message["body"])

        await collected(app, send)


async def collected(app: ASGIApp, send: Send) -> None:
    """`app` answers a request that no connection stands behind. Raises what it raises."""

    async def receive() -> HTTPDisconnectEvent:
        await anyio.sleep_forever()
        return {"type": "http.disconnect"}

    scope: Scope = {"type": "http", "state": {}}  # type: ignore[assignment]
    await app(scope, receive, send)


class Runs:
    """All of them; they end with its context."""

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._all: dict[str, Run] = {}
        self._tasks: TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Runs may begin in this context, and are cancelled at its end."""
        async with companions() as tasks:
            self._tasks = tasks
            yield

    @asynccontextmanager
    async def beginning(self, name: str, run: Run) -> AsyncIterator[None]:
        """`run` has its place, which is given back where the body fails; else it is `begin`'s.
        Raises QueueFull.
        """
        if len(self._all) >= self._most:
            text = f"{self._most} responses run in the background already"
            raise QueueFull(text, retry_after=RETRY)
        self._all[name] = run
        try:
            yield
        except BaseException:
            del self._all[name]
            raise

    def begin(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """The run of that name is `work`, which raises nothing."""
        assert self._tasks is not None, "the server runs"
        run = self._all[name]

        async def carry_out() -> None:
            try:
                await work()
            finally:
                del self._all[name]
                run.end()

        self._tasks.start_soon(carry_out)

    def of(self, owner: str, name: str) -> Run | None:
        """The run, if it is this owner's and not over."""
        run = self._all.get(name)
        return run if run is not None and run.owner == owner else None
