"""Streams that outlive their connection: one of each conversation, which the key that began it can
read again from any place, until a while after its end.

What is kept is what was sent, byte for byte, so that a client who counts what it got knows where it
was. Knows no dialect.

Answers that run in the background: no request owns them, and their owner's key may read along.

A run collects the events of its stream, so that a reader can come at any time, leave, and go on
from any event. Knows no dialect.

Generations that are polled and aborted by other requests, as KoboldCpp has it.

A generation is found by its owner and by the key that the client gave it. Its text is kept for a
while when it is over, because clients poll it after they aborted it.
"""

import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol, TypeAlias

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

from gateway.answers.answer import Answer
from gateway.errors import GatewayError, InvalidRequest, ModelUnavailable, QueueFull
from gateway.events import Usage
from gateway.http.sse import cancel_when_left, client_error
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
            text = f"{self._most} background responses are already running"
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


HEADER = "x-conversation-id"
LONGEST = 256  # characters of a conversation's name
MOST_RUNNING = 64  # more get a 429
MOST_BYTES = 4 << 20  # of one stream; what is older is let go
MOST_STREAM_BYTES = 64 << 20  # bytes of all streams that are over; the oldest goes

Name: TypeAlias = tuple[str, str]  # owner, conversation


def checked_name(name: str, param: str) -> str:
    """A conversation's name as a client wrote it. Raises InvalidRequest."""
    if not name:
        raise InvalidRequest(f"{param}: This parameter is required.", param=param)
    if len(name) > LONGEST or not name.isprintable():
        raise InvalidRequest(f"{param}: Expected at most {LONGEST} characters.", param=param)
    return name


class KeptStream:
    """One stream. `began_at` and `ended_at` are Unix time; 0: not yet."""

    def __init__(self, name: Name, most_bytes: int = MOST_BYTES) -> None:
        self.name = name
        self.began_at, self.ended_at = time.time(), 0.0
        self.scope = anyio.CancelScope()
        self.start: HTTPResponseStartEvent | None = None  # status and headers
        self.size = 0  # bytes that were ever sent
        self.kept = 0  # of them, those that are still here
        self._most_bytes = most_bytes
        self._error: Exception | None = None
        self._parts: deque[bytes] = deque()  # whole events each
        self._lost_events = 0
        self._changed = Signal()

    async def collect(self, app: ASGIApp) -> None:
        """All that `app` sends. Raises nothing but cancellation."""
        try:
            with self.scope:
                await collected(app, self._take)
        except Exception as error:  # noqa: BLE001 - whoever waits for the beginning is to know
            self._error = error
        finally:
            self.ended_at = time.time()
            self._changed.give()

    async def _take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.start = message
        elif message["type"] == "http.response.body" and (part := message["body"]):
            self._parts.append(part)
            self.size += len(part)
            self.kept += len(part)
            while self.kept > self._most_bytes:
                lost = self._parts.popleft()
                self.kept -= len(lost)
                self._lost_events += _events(lost)
        self._changed.give()

    async def begun(self) -> HTTPResponseStartEvent:
        """Status and headers, once they are there. Raises what the stream failed with before."""
        while self.start is None:
            if self.ended_at:
                raise self._error or InvalidRequest("The stream was cancelled before it began.")
            await self._changed.wait()
        return self.start

    def place_of(self, event: int) -> int:
        """Where event number `event` begins, comments left out. Raises InvalidRequest where it is
        gone, and where there is none yet.
        """
        if event < self._lost_events:
            raise _lost("from_event")
        left, place = event - self._lost_events, self.size - self.kept
        for part in self._parts:
            for one in _split(part):
                if not left and not one.startswith(b":"):
                    return place
                place += len(one)
                left -= not one.startswith(b":")
        if left:
            raise InvalidRequest("from_event: No such event.", param="from_event")
        return place

    def check(self, place: int) -> None:
        """Raises InvalidRequest where what stands at `place` is gone, or nothing ever stood."""
        if place < self.size - self.kept:
            raise _lost("from")
        if place > self.size:
            raise InvalidRequest("from: No such position.", param="from")

    async def read(self, place: int) -> AsyncIterator[bytes]:
        """What was sent from byte `place` on, as it comes. Ends where it is lost."""
        while place >= self.size - self.kept:
            if place < self.size:
                found = self._from(place)
                place = self.size
                yield found
            elif self.ended_at:
                return
            else:
                await self._changed.wait()

    def _from(self, place: int) -> bytes:
        left, found = self.size - place, list[bytes]()
        for part in reversed(self._parts):
            found.append(part[-left:] if len(part) > left else part)
            left -= len(found[-1])
            if not left:
                break
        return b"".join(reversed(found))


def _split(part: bytes) -> Iterator[bytes]:
    """The events and comments in whole frames."""
    for one in part.split(b"\n\n")[:-1]:
        yield one + b"\n\n"


def _events(part: bytes) -> int:
    return sum(not one.startswith(b":") for one in _split(part))


def _lost(param: str) -> InvalidRequest:
    return InvalidRequest(f"{param}: That part of the stream is gone.", param=param)


class KeptStreamResponse:
    """A stream on its way to one client, from byte `place` on. The stream goes on without it."""

    def __init__(self, stream: KeptStream, place: int = 0) -> None:
        self._stream = stream
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises GatewayError as long as nothing has been sent."""
        async with companions() as tasks:
            tasks.start_soon(cancel_when_left, receive, tasks.cancel_scope)
            try:
                start = await self._stream.begun()
                await send({**start, "headers": [*start["headers"]]})  # others may add to it
            except GatewayError:
                raise
            except Exception as error:
                raise client_error(error) from error
            async for frames in self._stream.read(self._place):
                await send({"type": "http.response.body", "body": frames, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


class KeptStreams:
    """All of them; they end with its context."""

    def __init__(self, seconds: Callable[[], float], most_kept: int = MOST_STREAM_BYTES) -> None:
        """`seconds`: how long one is kept after its end."""
        self._seconds = seconds
        self._most_kept = most_kept
        self._all: dict[Name, KeptStream] = {}  # the oldest first
        self._tasks: TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Streams may begin in this context, and are cancelled at its end."""
        async with companions() as tasks:
            self._tasks = tasks
            yield

    def begin(self, owner: str, conversation: str, app: ASGIApp) -> KeptStream:
        """What `app` sends is the conversation's stream, in place of any before. Raises
        QueueFull.
        """
        assert self._tasks is not None, "the server runs"
        self.stop(owner, conversation)
        if sum(not one.ended_at for one in self._all.values()) >= MOST_RUNNING:
            text = f"{MOST_RUNNING} streams that can be taken up again run already"
            raise QueueFull(text, retry_after=RETRY)
        stream = self._all[owner, conversation] = KeptStream((owner, conversation))
        self._tasks.start_soon(self._carry_out, stream, app)
        return stream

    async def _carry_out(self, stream: KeptStream, app: ASGIApp) -> None:
        await stream.collect(app)
        if stream.start is None:  # it never began: there is nothing to read again
            self._forget(stream)
            return
        self._make_room()
        await anyio.sleep(self._seconds())
        self._forget(stream)

    def of(self, owner: str, conversation: str) -> KeptStream | None:
        """The stream of that conversation, if it is this owner's. Raises ModelUnavailable as long
        as it has not begun.
        """
        stream = self._all.get((owner, conversation))
        if stream is not None and stream.start is None:
            raise ModelUnavailable("The stream has not begun.", retry_after=1)
        return stream

    def named(self, owner: str, conversations: Sequence[str]) -> list[KeptStream]:
        """The owner's streams of these conversations, or of one's variants (`name::variant`)."""
        wanted = frozenset(conversations)
        return [
            stream
            for (whose, name), stream in self._all.items()
            if whose == owner and (name in wanted or name.partition("::")[0] in wanted)
        ]

    def stop(self, owner: str, conversation: str) -> None:
        """End it and forget it; harmless where there is none."""
        stream = self._all.pop((owner, conversation), None)
        if stream is not None:
            stream.scope.cancel()

    def _forget(self, stream: KeptStream) -> None:
        if self._all.get(stream.name) is stream:
            del self._all[stream.name]

    def _make_room(self) -> None:
        over = [one for one in self._all.values() if one.ended_at]
        while sum(one.kept for one in over) > self._most_kept:
            self._forget(over.pop(0))


MOST_TEXTS = 64  # texts that are over
MOST_CHARACTERS = 4 << 20  # of all that are kept together

NOTHING = Usage(prompt_tokens=0, completion_tokens=0)


class PolledReply(Protocol):
    """The part of a dialect's reply that is used here."""

    @property
    def stop_reason(self) -> int: ...

    def texts(self) -> Sequence[str]: ...

    def closing(self, usage: Usage) -> bytes: ...

    def whole(self, usage: Usage) -> bytes: ...


class PolledAnswer:
    """One that runs. `answer`: None until one has begun."""

    def __init__(self, owner: str, key: str, reply: PolledReply) -> None:
        self.name: Name = (owner, key)
        self.reply = reply
        self.answer: Answer | None = None
        self.scope = anyio.CancelScope()

    def usage(self) -> Usage:
        """Usage so far."""
        return self.answer.usage() if self.answer is not None else NOTHING


class Last(msgspec.Struct, frozen=True):
    """An owner's newest generation that is over."""

    usage: Usage = NOTHING
    stop_reason: int = -1


class Generations:
    """All that run, and the newest that are over."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._running: list[PolledAnswer] = []
        self._over: OrderedDict[Name, Sequence[str]] = OrderedDict()
        self._last: dict[str, Last] = {}
        self._counts: Counter[str] = Counter()

    @contextmanager
    def running(self, generation: PolledAnswer) -> Iterator[None]:
        """It can be found in this context; then only its text."""
        self._running.append(generation)
        try:
            yield
        finally:
            self._running.remove(generation)
            self._end(generation)

    def texts(self, owner: str, key: str) -> Sequence[str]:
        """What the generation said, or says: of several of one name the newest; without a key of
        the only one, because among several it would be ambiguous. Empty where there is none.
        """
        running = self._named(owner, key)
        if running and (key or len(running) == 1):
            return running[-1].reply.texts()
        return () if running else self._over.get((owner, key), ())

    def abort(self, owner: str, key: str) -> bool:
        """End those of the name; without a key the only one. Whether there was any."""
        running = self._named(owner, key)
        if not key and len(running) != 1:
            return False
        for generation in running:
            generation.scope.cancel()
        return bool(running)

    def last(self, owner: str) -> Last:
        """The owner's newest that is over."""
        return self._last.get(owner, Last())

    def uptime(self) -> float:
        """Seconds since there could be any."""
        return time.monotonic() - self._began

    def count(self, owner: str) -> int:
        """How many of the owner's are over."""
        return self._counts[owner]

    def _named(self, owner: str, key: str) -> list[PolledAnswer]:
        return [one for one in self._running if one.name == (owner, key)]

    def _end(self, generation: PolledAnswer) -> None:
        owner, _ = generation.name
        self._counts[owner] += 1
        self._last[owner] = Last(generation.usage(), generation.reply.stop_reason)
        self._over.pop(generation.name, None)
        self._over[generation.name] = generation.reply.texts()
        while len(self._over) > MOST_TEXTS or self._characters() > MOST_CHARACTERS:
            self._over.popitem(last=False)

    def _characters(self) -> int:
        return sum(len(text) for texts in self._over.values() for text in texts)


class Abortable:
    """An exchange that `Generations.abort` ends: what was said until then is the whole answer."""

    def __init__(
        self,
        exchange: ASGIApp,
        generations: Generations,
        generation: PolledAnswer,
        *,
        stream: bool,
        begun: Callable[[bytes], ASGIApp],
    ) -> None:
        """`begun`: a response of the bytes, for an answer of which nothing was sent yet."""
        self._exchange = exchange
        self._generations = generations
        self._generation = generation
        self._stream = stream
        self._begun = begun

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises as the exchange does."""
        sent: list[Message] = []

        async def noting(message: Message) -> None:
            sent[:] = [message]
            await send(message)

        with self._generations.running(self._generation):
            with self._generation.scope:
                await self._exchange(scope, receive, noting)
            if self._generation.scope.cancelled_caught:
                await self._end(sent, scope, receive, send)

    async def _end(
        self, sent: Sequence[Message], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """The rest of the answer."""
        reply, usage = self._generation.reply, self._generation.usage()
        body = reply.closing(usage) if self._stream else reply.whole(usage)
        if not sent:
            await self._begun(body)(scope, receive, send)
        elif sent[0].get("more_body", True):
            await send({"type": "http.response.body", "body": body, "more_body": False})
