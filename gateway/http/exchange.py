"""One answer on its way to one client, as an ASGI response: a stream, or one body when all is
there.

It runs in the request's own task and owns the pipeline's context: when the client leaves, its scope
is cancelled, the jobs leave the device and the lease is given back, in that order, before the call
returns.
"""

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec
from litestar.types import ASGIApp, Receive, Scope, Send

from backends.contract.remote import HOPS, MOST_HOPS
from gateway.answers.answer import Answer
from gateway.answers.call import Call, OnWait
from gateway.answers.encoding import Encoded, is_long
from gateway.dialects.dialect import RATE_HEADERS, RateHeaders, Reply
from gateway.http.books import Asking
from gateway.http.sse import (
    SEND_TIMED_OUT,
    SSE,
    EventStream,
    Framing,
    Plain,
    client_error,
    sentence,
    while_connected,
)
from gateway.registry import Waiting
from gateway.terms.errors import GatewayError, LoopDetected
from gateway.terms.request import ChatRequest, TextRequest, Unapplied

Wanted = TypeVar("Wanted")
Generated = TypeVar("Generated", bound=ChatRequest | TextRequest)

MOST_NAMES, MOST_CHARACTERS = 32, 64  # of unapplied fields; together about 2 kB of headers
_UNSAFE = re.compile(r"[^A-Za-z0-9_.$\[\]-]", re.ASCII)


class LoadingText(Protocol):
    """A dialect's reports of the wait in the stream itself. `began`: the stream is opened."""

    @property
    def began(self) -> bool: ...

    def frames(self, model: str, text: str) -> bytes: ...


Done: TypeAlias = Answer | Encoded


def _header(field: str) -> str:
    return f"x-roundhouse-{field.replace('_', '-')}"


class Said(msgspec.Struct, frozen=True, kw_only=True, rename=_header):
    """The headers of every answer; one that says nothing is left out. Times are seconds."""

    model: str
    backend: str
    queue_time: str
    load_time: str
    ignored: str
    relaxed: str
    parted: str  # where the prompt parts from that of the turn before: the rest is computed again
    truncated: str  # how many texts were too long, and lost their ends


HEADERS = Said.__struct_encode_fields__
REMARKS = {name: _header(name) for name in ("ignored", "relaxed", "parted")}  # that the log has


def about(done: Done) -> dict[str, str]:
    """The headers of an answer."""
    ignored = [field.name for field in done.unapplied if not field.partly]
    relaxed = [field.name for field in done.unapplied if field.partly]
    turn = done.turn if isinstance(done, Answer) else None
    said = Said(
        model=done.model,
        backend=done.backend,
        queue_time=f"{done.queued_seconds:.3f}",
        load_time=f"{done.load_seconds:.3f}",
        ignored=names_line(ignored) if ignored else "",
        relaxed=names_line(relaxed) if relaxed else "",
        parted=turn.parting.sentence if turn is not None and turn.parting is not None else "",
        truncated=str(done.cut or "") if isinstance(done, Encoded) else "",
    )
    return {name: value for name, value in msgspec.to_builtins(said).items() if value}


def answered(asking: Asking[Any], done: Done) -> Mapping[str, str]:
    """Enter in the books who answers; the headers that say so."""
    said = about(done)
    remarks = {name: said[header] for name, header in REMARKS.items() if header in said}
    asking.record.answered_by(done, remarks, asking.books.gaps(done.model))
    return said


class Exchange(msgspec.Struct, Generic[Generated], frozen=True):
    """`open_answer` enters the pipeline with the call; `reply_to` makes the dialect's reply once it
    is known who answers; `failed` is the last event of a stream that broke.
    """

    asking: Asking[Generated]
    open_answer: Callable[[Call[Generated]], AbstractAsyncContextManager[Answer]]
    reply_to: Callable[[Answer], Reply]
    failed: Callable[[GatewayError], bytes]
    framing: Framing = SSE
    rates: RateHeaders = RATE_HEADERS
    loading: LoadingText | None = None  # what a stream says while its model is waited for
    headers: Mapping[str, str] = {}
    keep: Callable[[], Awaitable[None]] | None = None  # before the end is sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises GatewayError as long as nothing has been sent."""
        async with while_connected(receive):
            if not self.asking.call.request.answering.streamed:
                body = await self._whole(scope)
                await body(scope, receive, send)
                return
            events = EventStream(
                send,
                self.headers,
                self.asking.quiet,
                framing=self.framing,
                report_wait=self._report_wait if self.loading is not None else None,
            )
            await events.carried(partial(self._streamed, scope), self._failed)

    def _report_wait(self, news: Waiting) -> bytes:
        assert self.loading is not None, "it is asked only where the wait is reported"
        return self.loading.frames(news.model, f"{sentence(news)}\n")

    def _failed(self, error: Exception) -> bytes:
        known = client_error(error, self.asking.record.id)
        return self.failed(self.asking.readable(known))

    @asynccontextmanager
    async def _answered(
        self, scope: Scope, on_wait: OnWait
    ) -> AsyncIterator[tuple[Answer, Mapping[str, str]]]:
        """The answer and its headers; in the books, and kept at its end."""
        with self.asking.kept(lambda: SEND_TIMED_OUT in scope["state"]):
            async with self.open_answer(self.asking.traced(on_wait)) as answer:
                yield answer, answered(self.asking, answer)
            if self.keep is not None:
                await self.keep()

    async def _streamed(self, scope: Scope, events: EventStream) -> bytes:
        """All but the last frames."""
        record = self.asking.record

        def waits(news: Waiting) -> None:
            record.waits(news)
            events.wait(news)

        async with self._answered(scope, waits) as (answer, said):
            events.says = record.reads_so_far
            reply = self.reply_to(answer)
            headers = {**said, **self.asking.left(self.rates)}
            if events.began:  # who answers is said in the stream, since they were sent before
                await events.write(self.framing.introduction(headers))
            await events.begin(headers)
            if self.loading is None or not self.loading.began:
                await events.write(reply.opening())
            async for delta in answer.deltas():
                record.delta()
                if frames := reply.delta(delta):
                    await events.write(frames)
            return reply.closing(answer.usage())

    async def _whole(self, scope: Scope) -> Plain:
        record = self.asking.record
        async with self._answered(scope, record.waits) as (answer, said):
            reply = self.reply_to(answer)
            async for delta in answer.deltas():
                record.delta()
                reply.add(delta)
            headers = {**self.headers, **said, **self.asking.left(self.rates)}
            body = reply.whole(answer.usage())
        return Plain(body, headers=headers)


def ignoring(unapplied: Sequence[Unapplied]) -> Mapping[str, str]:
    """The header that names fields which are not applied; none where there are none."""
    names = [field.name for field in unapplied]
    return {"x-roundhouse-ignored": names_line(names)} if names else {}


def names_line(names: Sequence[str]) -> str:
    """`names` for a header or a comment: `a, b`, or `a, b and more`.

    They are a client's own words, so what could end a line or a name is replaced, and neither one
    name nor all of them are longer than headers may be.
    """
    distinct = tuple(dict.fromkeys(names))
    line = ", ".join(_UNSAFE.sub("?", name[:MOST_CHARACTERS]) for name in distinct[:MOST_NAMES])
    return f"{line} and more" if len(distinct) > MOST_NAMES else line


class EncodingResponse(msgspec.Struct, Generic[Wanted], frozen=True):
    """`encode` carries the call out; `body_of` makes the body."""

    asking: Asking[Wanted]
    encode: Callable[[Call[Wanted]], Awaitable[Encoded]]
    body_of: Callable[[Encoded], bytes]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises GatewayError."""
        asking = self.asking
        async with while_connected(receive):
            with asking.kept():
                encoded = await self.encode(asking.traced(asking.record.waits))
                said = answered(asking, encoded)
                body = await asking.threads.run(
                    lambda _wanted: self.body_of(encoded), is_long=is_long(encoded.vectors)
                )
            response = Plain(body, headers={**said, **asking.left()})
            await response(scope, receive, send)


_NAME = HOPS.encode()


def counting_hops(server: str) -> Callable[[ASGIApp], ASGIApp]:
    """A middleware for all routes; `server`: this server's id.

    The way of a request through Roundhouses that are each other's upstreams stands in a header:
    each adds its own id, and refuses what came through it before.
    """

    async def counted(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        given = [value for name, value in scope["headers"] if name == _NAME]
        if given:
            rest = [field for field in scope["headers"] if field[0] != _NAME]
            way = checked(b",".join(given).decode("latin-1"), server)
            scope["headers"] = [*rest, (_NAME, way.encode("latin-1"))]
        await app(scope, receive, send)

    return lambda app: partial(counted, app)


def checked(given: str, server: str) -> str:
    """The header with this server behind the others. Raises LoopDetected."""
    way = [one.strip() for one in given.split(",")]
    if server in way:
        raise LoopDetected("The request came back here: servers are each other's upstreams.")
    if len(way) >= MOST_HOPS:
        raise LoopDetected(f"The request came through {MOST_HOPS} servers and more.")
    return ", ".join((*way, server))
