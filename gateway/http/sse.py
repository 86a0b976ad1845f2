"""Bodies and streams on an ASGI connection: status, headers, keep-alive comments, errors, end.
Plain ASGI, which spares Litestar's own serialising. Knows of dialects only the `Framing`:
server-sent events, or lines of JSON.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import structlog
from litestar.connection import ASGIConnection
from litestar.types import Receive, Scope, Send

from gateway.registry import Waiting
from gateway.terms.errors import ClientLeft, GatewayError, InternalError
from gateway.terms.tasks import companions

log = structlog.get_logger()

JSON = b"application/json"


class Plain(msgspec.Struct, frozen=True):
    """An ASGI response."""

    body: bytes
    status: int = 200
    media_type: bytes = JSON
    headers: Mapping[str, str] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [
            (b"content-type", self.media_type),
            (b"content-length", str(len(self.body)).encode()),
            *encoded(self.headers),
        ]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": False})


def encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    """As ASGI wants them. What no header can hold is replaced: a model's name comes from a file's,
    or from another server.
    """
    lines: list[tuple[bytes, bytes]] = []
    for name, value in headers.items():
        if not value.isprintable():  # RFC 9110, section 5.5
            value = "".join(c if c.isprintable() else "?" for c in value)  # noqa: PLW2901
        lines.append((name.lower().encode(), value.encode("latin-1", "replace")))
    return lines


PATIENCE = 1.0  # seconds a waiting request stays without an answer, and then between two comments
HEADERS = {
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # nginx would collect the events
}


class Framing(msgspec.Struct, frozen=True):
    """A stream's form beside its answer.

    `silence` keeps a connection alive; `remark` frames a sentence that is no part of the answer,
    for people who read along. Both may come before, between and behind all frames of the answer.
    `introduce` frames the headers of an answer that was begun without them; None: as a remark.
    `end` stands behind the last frame, be it an error's.
    """

    media_type: str
    silence: bytes
    remark: Callable[[str], bytes]
    introduce: Callable[[Mapping[str, str]], bytes] | None = None
    end: bytes = b""

    def introduction(self, headers: Mapping[str, str]) -> bytes:
        """`headers`, in a stream that began before they were known."""
        if self.introduce is not None:
            return self.introduce(headers)
        return self.remark(", ".join(f"{name}={value}" for name, value in headers.items()))


def comment(text: str) -> bytes:
    """A comment of server-sent events: one line, which clients pass over, whatever `text` names."""
    return f": {' '.join(text.splitlines())}\n\n".encode()


SSE = Framing("text/event-stream; charset=utf-8", comment("still here"), comment)
# Without comments, which are for connections.
BARE = msgspec.structs.replace(SSE, silence=b"", remark=lambda _text: b"")
# Lines of JSON have no comments, but a line may begin with white space.
NDJSON = Framing("application/x-ndjson", b" ", lambda _text: b" ")


class EventStream(msgspec.Struct):
    """One stream. `began`: the status is on the wire, errors can only be events from here on.

    One task writes it, another sends comments (`with_comments`), never both at a time: a comment is
    begun only while the writer sends nothing. `quiet`: seconds of silence before a comment, also
    before the answer begins: proxies give up, and until then an error has a status of its own;
    `patience`: between checks for one. `report_wait`: frames for reports of the wait, the first at
    once; None: they are comments.
    """

    send: Send
    headers: Mapping[str, str]
    quiet: float
    framing: Framing = SSE
    report_wait: Callable[[Waiting], bytes] | None = None
    patience: float = PATIENCE
    began: bool = False
    says: Callable[[], str] = str  # what a comment in a silence says
    _due: anyio.Event = msgspec.field(default_factory=anyio.Event)  # the first comment
    _ended: bool = False
    _one_sends: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    _last: float = msgspec.field(default_factory=time.monotonic)
    _news: Waiting | None = None

    async def begin(self, headers: Mapping[str, str] = {}) -> None:
        """Send status 200, unless that has happened. The wait is over: no more reports of it."""
        async with self._one_sends:
            self._news = None
            if not self.began:
                await self._start(headers)

    async def write(self, frames: bytes, *, more: bool = True) -> None:
        """Send some more of it, in a stream that begins with it if it has not before."""
        async with self._one_sends:
            self._last, self._news = time.monotonic(), None
            if not self.began:
                await self._start({})
            await self.send({"type": "http.response.body", "body": frames, "more_body": more})

    async def end(self, frames: bytes) -> None:
        self._ended = True
        await self.write(frames, more=False)

    def wait(self, news: Waiting) -> None:
        """Report the wait at the next comment. A `Call.on_wait`."""
        self._news = news
        if self.report_wait is not None:
            self._due.set()

    @asynccontextmanager
    async def with_comments(self) -> AsyncIterator[None]:
        """In this context a comment is sent when the wait has changed, or after a silence."""
        async with companions() as tasks:
            tasks.start_soon(self._send_comments)
            try:
                yield
            finally:
                self._ended = True  # one that is due now begins nothing after an error is raised

    async def carried(
        self,
        run: Callable[["EventStream"], Awaitable[bytes]],
        failed: Callable[[Exception], bytes],
    ) -> None:
        """`run` writes it, and gives its last frames; of one that broke `failed` does. Raises what
        it broke with before it began.
        """
        async with self.with_comments():
            try:
                await self.end(await run(self) + self.framing.end)
            except Exception as error:
                if not self.began:
                    raise
                await self.end(failed(error) + self.framing.end)

    async def _send_comments(self) -> None:
        with anyio.move_on_after(self.patience):
            await self._due.wait()
        while True:
            if not (self._ended or self._one_sends.locked()):
                async with self._one_sends:
                    await self._fill_silence()
            await anyio.sleep(self.patience)

    async def _fill_silence(self) -> None:
        news, self._news = self._news, None
        if news is None and time.monotonic() - self._last < self.quiet:
            return
        if news is not None:
            report = self.report_wait
            frames = report(news) if report else self.framing.remark(sentence(news))
        else:
            said = self.says()
            frames = self.framing.remark(said) if said else self.framing.silence
        if not self.began:
            await self._start({})
        self._last = time.monotonic()
        await self.send({"type": "http.response.body", "body": frames, "more_body": True})

    async def _start(self, headers: Mapping[str, str]) -> None:
        self.began = True
        kind = {"content-type": self.framing.media_type}
        lines = encoded({**kind, **HEADERS, **self.headers, **headers})
        await self.send({"type": "http.response.start", "status": 200, "headers": lines})


def sentence(news: Waiting) -> str:
    """The sentence that a waiting client gets."""
    if news.stage == "loading":
        percent = "" if news.percent is None else f" {news.percent} %"
        return f"loading {news.model}{percent}, position {news.position}"
    return f"queued for {news.model}, position {news.position}"


# Progress of a long operation, streamed to one client: a load, a download. Knows no dialect.
#
# It runs in the request's own task: when the client leaves, it is cancelled. What others wait for
# as well must live elsewhere (`Registry.loading` sees to that for loads).


SEND_TIMED_OUT = "roundhouse.send_timed_out"  # in a request's state: the client was cut off


class ProgressStream(msgspec.Struct, frozen=True):
    """`run` writes frames, and gives the last; what it raises before the first is an HTTP error."""

    run: Callable[[EventStream], Awaitable[bytes]]
    failed: Callable[[GatewayError], bytes]
    quiet: float
    framing: Framing = SSE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises GatewayError as long as nothing has been sent."""
        async with while_connected(receive):
            events = EventStream(send, {}, self.quiet, framing=self.framing)
            await events.carried(self.run, lambda error: self.failed(client_error(error)))


def client_error(error: Exception, request: str = "") -> GatewayError:
    """`error` as the client may see it; the log has the whole, with the request's id."""
    if isinstance(error, GatewayError):
        return error
    log.error("stream failed", request=request or None, exc_info=error)
    return InternalError("Internal server error; see the server's log.")


@asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[None]:
    """The body is cancelled when the client leaves."""
    async with companions() as tasks:
        tasks.start_soon(_cancel_when_left, receive, tasks.cancel_scope)
        yield


@asynccontextmanager
async def attended(request: ASGIConnection[Any, Any, Any, Any]) -> AsyncIterator[None]:
    """The body of a handler is cancelled when its client leaves. Raises ClientLeft."""
    is_done = False
    async with while_connected(request.receive):
        yield
        is_done = True
    if not is_done:
        raise ClientLeft("The client has left before its answer was there.")


async def _cancel_when_left(receive: Receive, scope: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
