"""Answers that outlive their connection: the key that began one finds it by its name, reads it from
any place and ends it.

Three kinds have a store each: responses in the background, whose events are read by number; chat
streams, kept byte for byte, so that a client who counts what it got knows where it was; KoboldAI's
generations, which run in their own request while others poll their texts. Knows no dialect.
"""

import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Generic, TypeVar

import anyio
import msgspec
from anyio.abc import TaskGroup
from litestar.types import (
    ASGIApp,
    HTTPDisconnectEvent,
    HTTPResponseStartEvent,
    Message,
    Receive,
    Scope,
    Send,
)
from msgspec.structs import replace

from backends.machine.supervision import Supervisor
from gateway.http.sse import Plain, client_error, while_connected
from gateway.terms.errors import GatewayError, InvalidRequest, QueueFull
from gateway.terms.events import NO_USAGE, Usage
from gateway.terms.tasks import Signal, companions

MOST_BYTES = 4 << 20  # of one stream; what is older is let go
RETRY = 5.0  # seconds after which a refused one may be tried again


class DetachedAnswer:
    """One answer: its scope, what it sent until now, its end. `began_at` and `ended_at` are Unix
    time; 0: not yet.
    """

    def __init__(self, owner: str, name: str, most_bytes: int = MOST_BYTES) -> None:
        self.owner, self.name = owner, name
        self.began_at, self.ended_at = time.time(), 0.0
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()
        self.in_task = False  # else it ends with the request that began it
        self.start: HTTPResponseStartEvent | None = None  # status and headers
        self.error: Exception | None = None  # that it failed with, if it did
        self.size = 0  # bytes that were ever sent
        self.kept = 0  # of them, those that are still here
        self.events = 0  # ever sent; comments are none
        self._lost_events = 0
        self._most_bytes = most_bytes
        self._frames: deque[bytes] = deque()  # an event or a comment each
        self._changed = Signal()

    async def collect(self, app: ASGIApp) -> None:
        """All that `app` sends to a request without a connection. Raises nothing but a
        cancellation from outside; see `error`.
        """

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.start = message
                self._changed.give()
            elif message["type"] == "http.response.body":
                self.take(message["body"])

        scope: Scope = {"type": "http", "state": {}}  # type: ignore[assignment]
        try:
            with self.scope:
                await app(scope, receive_nothing, send)
        except Exception as error:  # noqa: BLE001 - those who wait for the answer are told
            self.error = error

    def take(self, part: bytes) -> None:
        """Some more of it: whole events and comments."""
        frames = _frames_of(part)
        self._frames.extend(frames)
        self.size += len(part)
        self.kept += len(part)
        self.events += sum(map(_is_event, frames))
        while self.kept > self._most_bytes:
            lost = self._frames.popleft()
            self.kept -= len(lost)
            self._lost_events += _is_event(lost)
        self._changed.give()

    def end(self) -> None:
        """There will be no more."""
        self.ended_at = time.time()
        self.ended.set()
        self._changed.give()

    async def begun(self) -> HTTPResponseStartEvent:
        """Status and headers, once they are there. Raises what the answer failed with before."""
        while self.start is None:
            if self.ended.is_set():
                raise self.error or InvalidRequest("The stream was cancelled before it began.")
            await self._changed.wait()
        return self.start

    async def place_once_there(self, event: int) -> int:
        """As `place_of`, once that event is sent or can't come any more: then the end."""
        while self.events < event and not self.ended.is_set():
            await self._changed.wait()
        return self.place_of(min(event, self.events))

    def place_of(self, event: int) -> int:
        """Where event number `event` begins, comments left out. Raises InvalidRequest where it is
        gone, and where there is none yet.
        """
        if event < self._lost_events:
            raise _lost("from_event")
        if event > self.events:
            raise InvalidRequest.at("from_event", "No such event.")
        left, place = event - self._lost_events, self.size - self.kept
        for frame in self._frames:
            if not left and _is_event(frame):
                return place
            place += len(frame)
            left -= _is_event(frame)
        return place

    def check(self, place: int) -> None:
        """Raises InvalidRequest where what stands at `place` is gone, or nothing ever stood."""
        if place < self.size - self.kept:
            raise _lost("from")
        if place > self.size:
            raise InvalidRequest.at("from", "No such position.")

    async def read(self, place: int = 0) -> AsyncIterator[bytes]:
        """What was sent from byte `place` on, as it comes. Ends where it is lost."""
        while place >= self.size - self.kept:
            if place < self.size:
                rest = self.sent(place)
                place = self.size
                yield rest
            elif self.ended.is_set():
                return
            else:
                await self._changed.wait()

    def sent(self, place: int = 0) -> bytes:
        """What was sent from byte `place` on until now."""
        left, rest = self.size - place, list[bytes]()
        for frame in reversed(self._frames):
            if left <= 0:
                break
            rest.append(frame[-left:])
            left -= len(frame)
        return b"".join(reversed(rest))


async def receive_nothing() -> HTTPDisconnectEvent:
    """What an app without a connection receives: nobody there leaves."""
    await anyio.sleep_forever()
    return {"type": "http.disconnect"}


def _frames_of(part: bytes) -> list[bytes]:
    """Its events and comments; of a body that is no stream, all of it."""
    *frames, rest = part.split(b"\n\n")
    return [*(frame + b"\n\n" for frame in frames), *filter(None, [rest])]


def _is_event(frame: bytes) -> bool:
    return frame.endswith(b"\n\n") and not frame.startswith(b":")


def _lost(param: str) -> InvalidRequest:
    return InvalidRequest.at(param, "That part of the stream is gone.")


class BackgroundAnswer(DetachedAnswer):
    """All events of an answer, which is stored at its end. `document` gives its present state."""

    def __init__(self, owner: str, name: str, document: Callable[[], bytes]) -> None:
        super().__init__(owner, name, most_bytes=sys.maxsize)
        self.document = document


class Polled(msgspec.Struct, frozen=True):
    """What a polled answer says. `stop_reason`: as its dialect numbers them."""

    texts: Sequence[str] = ()
    usage: Usage = NO_USAGE
    stop_reason: int = -1


class PolledAnswer(DetachedAnswer):
    """An answer that others read as texts. `state` gives what it says now."""

    def __init__(self, owner: str, name: str, state: Callable[[], Polled]) -> None:
        super().__init__(owner, name)
        self.state = state

    def end(self) -> None:
        """What it says now remains; what makes it say so is let go."""
        last = self.state()
        self.state = lambda: last
        self.kept = sum(map(len, last.texts))
        super().end()


class Bounds(msgspec.Struct, frozen=True):
    """How many of a kind run, and how much of those that are over is kept: the oldest goes."""

    kind: str
    running: int  # more get a 429
    over: int = 0
    over_bytes: int = 0  # of all together; characters, of texts


BACKGROUND = Bounds("background responses", 256)
STREAMS = Bounds("resumable streams", 64, over=1024, over_bytes=64 << 20)
POLLED = Bounds("generations", sys.maxsize, over=64, over_bytes=4 << 20)

Detached = TypeVar("Detached", bound=DetachedAnswer)


class DetachedAnswers(Generic[Detached]):
    """All answers of a kind that run, and the newest that are over."""

    def __init__(self, bounds: Bounds, seconds: Callable[[], float] = lambda: 0.0) -> None:
        """`seconds`: how long an answer is kept after the end of its task."""
        self._bounds = bounds
        self._seconds = seconds
        self._all: list[Detached] = []  # in the order in which they began or, if they have, ended
        self._tasks: TaskGroup | None = None

    @asynccontextmanager
    async def running(self, supervisor: Supervisor) -> AsyncIterator[None]:
        """Tasks may begin in this context, and are cancelled at its end."""
        async with companions() as tasks:
            self._tasks, self._supervisor = tasks, supervisor
            yield

    @contextmanager
    def admitted(self, answer: Detached) -> Iterator[None]:
        """The answer can be found; it is over at the end of the context, unless a task carries it
        on (`begin`). Raises QueueFull.
        """
        most = self._bounds.running
        if sum(not other.ended.is_set() for other in self._all) >= most:
            text = f"{most} {self._bounds.kind} are already running"
            raise QueueFull(text, retry_after=RETRY)
        self._all.append(answer)
        try:
            yield
        finally:
            if not answer.in_task:
                self._end(answer)

    def begin(self, answer: Detached, work: Callable[[], Awaitable[None]]) -> None:
        """An admitted answer goes on in a task: `work`, which raises nothing."""
        assert self._tasks is not None, "the server runs"
        answer.in_task = True
        self._tasks.start_soon(self._carry_out, answer, work)

    def collect(self, answer: Detached, app: ASGIApp) -> None:
        """What `app` sends is the answer, in place of any before of its name. Raises QueueFull."""
        self.stop(answer.owner, answer.name)
        with self.admitted(answer):
            self.begin(answer, partial(answer.collect, app))

    async def _carry_out(self, answer: Detached, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await self._supervisor.attempt(self._bounds.kind, work)
        finally:
            self._end(answer)
        if answer in self._all:
            await anyio.sleep(self._seconds())
            self._forget(answer)

    def of(self, owner: str) -> list[Detached]:
        """All of this owner's."""
        return [answer for answer in self._all if answer.owner == owner]

    def named(self, owner: str, name: str) -> list[Detached]:
        """Those of the name, if they are this owner's; the newest last."""
        return [answer for answer in self.of(owner) if answer.name == name]

    def find(self, owner: str, name: str) -> Detached | None:
        """The newest of the name, if there is any."""
        return next(reversed(self.named(owner, name)), None)

    def stop(self, owner: str, name: str) -> None:
        """End and forget those of the name; harmless where there is none."""
        for answer in self.named(owner, name):
            self._forget(answer)
            answer.scope.cancel()

    def _forget(self, answer: Detached) -> None:
        if answer in self._all:
            self._all.remove(answer)

    def _end(self, answer: Detached) -> None:
        """It is kept in place of any before of its name, unless it is forgotten or said nothing."""
        answer.end()
        if answer not in self._all:
            return
        for other in self.named(answer.owner, answer.name):
            if other.ended.is_set():
                self._forget(other)
        if answer.kept:
            self._all.append(answer)
        self._make_room()

    def _make_room(self) -> None:
        over = [answer for answer in self._all if answer.ended.is_set()]
        most, most_bytes = self._bounds.over, self._bounds.over_bytes
        while len(over) > most or sum(answer.kept for answer in over) > most_bytes:
            self._forget(over.pop(0))


class PolledAnswers(DetachedAnswers[PolledAnswer]):
    """Those that are polled, by a name that several may have; and figures of each owner's."""

    def __init__(self) -> None:
        super().__init__(POLLED)
        self._last: dict[str, Polled] = {}
        self.counts: Counter[str] = Counter()  # how many of an owner's are over

    def texts(self, owner: str, name: str) -> Sequence[str]:
        """What the newest of the name says or, if none runs, said; of those that run without a
        name the only one, because among several it would be ambiguous. Empty where there is none.
        """
        running = self._running(owner, name)
        if len(running) > 1 and not name:
            return ()
        said = running or self.named(owner, name)
        return said[-1].state().texts if said else ()

    def abort(self, owner: str, name: str) -> bool:
        """End those of the name; without a name the only one. Whether there was any."""
        running = self._running(owner, name)
        if len(running) > 1 and not name:
            return False
        for answer in running:
            answer.scope.cancel()
        return bool(running)

    def last(self, owner: str) -> Polled:
        """The owner's newest that is over, without its texts."""
        return self._last.get(owner, Polled())

    def _running(self, owner: str, name: str) -> list[PolledAnswer]:
        return [answer for answer in self.named(owner, name) if not answer.ended.is_set()]

    def _end(self, answer: PolledAnswer) -> None:
        super()._end(answer)
        self.counts[answer.owner] += 1
        self._last[answer.owner] = replace(answer.state(), texts=())


class DetachedResponse(msgspec.Struct, frozen=True):
    """An answer on its way to one client, from byte `place` on. The answer goes on without it."""

    answer: DetachedAnswer
    place: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises GatewayError as long as nothing has been sent."""
        async with while_connected(receive):
            try:
                start = await self.answer.begun()
                await send({**start, "headers": [*start["headers"]]})  # others may add to it
            except GatewayError:
                raise
            except Exception as error:
                raise client_error(error) from error
            async for frames in self.answer.read(self.place):
                await send({"type": "http.response.body", "body": frames, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class Abortable(msgspec.Struct, frozen=True):
    """An answer of a request's own, which `PolledAnswers.abort` ends: what it said until then is
    the whole. `rest`: all that it has still to send then.
    """

    exchange: ASGIApp
    answers: PolledAnswers
    answer: PolledAnswer
    rest: Callable[[], bytes]
    media_type: bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises as the exchange does."""
        last: Message | None = None

        async def noting(message: Message) -> None:
            nonlocal last
            last = message
            await send(message)

        with self.answers.admitted(self.answer):
            with self.answer.scope as aborted:
                await self.exchange(scope, receive, noting)
            if not aborted.cancelled_caught:
                return
            if last is None:
                await Plain(self.rest(), media_type=self.media_type)(scope, receive, send)
            elif last.get("more_body", True):
                body = self.rest()
                await send({"type": "http.response.body", "body": body, "more_body": False})
