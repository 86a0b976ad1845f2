"""A server elsewhere, byte by byte: it says what a test tells it to."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias

import msgspec

from config.upstreams import UpstreamConfig

STREAM = "text/event-stream"


class Asked(msgspec.Struct, frozen=True):
    """A request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        return dict(msgspec.json.decode(self.body))


Says: TypeAlias = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


class Far:
    """It listens. `says` may be changed at any time; `asked` holds what came, lists aside."""

    def __init__(self, says: Says) -> None:
        self.says = says
        self.lists: Says = with_status(404, b"{}")
        self.asked: list[Asked] = []
        self.listed = 0
        self.left = asyncio.Event()  # a client closed a connection on which something was asked
        self.url = ""
        self.tasks: set[asyncio.Task[Any]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            self.tasks.discard(task)
            self.left.set()
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not writer.is_closing():
            asked = await _read(reader)
            if asked.path.endswith("/models"):
                self.listed += 1
                await self.lists(asked, writer)
            else:
                self.asked.append(asked)
                await self._say(asked, reader, writer)
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await writer.wait_closed()  # what is written is sent

    async def _say(
        self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Until all is said, or the client leaves."""
        saying = asyncio.ensure_future(self.says(asked, writer))
        leaving = asyncio.ensure_future(_leaves(reader))
        try:
            await asyncio.wait({saying, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not saying.done():
                raise ConnectionError("the client left")
            saying.result()
        finally:
            saying.cancel()
            leaving.cancel()


async def _leaves(reader: asyncio.StreamReader) -> None:
    """Return when the other side has closed. It sends nothing while it is answered."""
    while not reader.at_eof():
        await asyncio.sleep(0.005)


async def _read(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *fields = head.strip().split("\r\n")
    method, path, _ = line.split(" ")
    headers = {name.lower(): value for name, value in (one.split(": ", 1) for one in fields)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(method, path, headers, body)


@asynccontextmanager
async def far(says: Says, tls: ssl.SSLContext | None = None) -> AsyncIterator[Far]:
    """A server on a free port; with `tls` it is encrypted."""
    one = Far(says)
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0, limit=1 << 20, ssl=tls)
    one.url = f"http{'s' if tls else ''}://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    try:
        yield one
    finally:
        server.close()
        tasks = tuple(one.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def config(*fars: Far, **options: Any) -> UpstreamConfig:
    """An upstream of these servers, as replicas."""
    return UpstreamConfig(name="far", urls=tuple(one.url for one in fars), **options)


# ------------------------------------------------------------------------------- what it may say


def head(status: int, kind: str, *more: str) -> bytes:
    lines = (f"HTTP/1.1 {status} Whatever", f"content-type: {kind}", *more)
    return "\r\n".join((*lines, "", "")).encode()


def with_status(
    status: int, body: bytes, *more: str, kind: str = "application/json", close: bool = False
) -> Says:
    """One body."""

    async def says(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(head(status, kind, f"content-length: {len(body)}", *more) + body)
        await writer.drain()
        if close:
            writer.close()

    return says


def piece(data: bytes) -> bytes:
    """A piece of a body in chunked coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(said: Any) -> bytes:
    return b"data: " + msgspec.json.encode(said) + b"\n\n"


def chunk(delta: Any, *, index: int = 0, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": finish, **more}
    return {"id": "x", "object": "chat.completion.chunk", "choices": [choice]}


def text(*words: str) -> tuple[Any, ...]:
    """The chunks of an answer."""
    said = [chunk({"content": word}) for word in words]
    return (chunk({"role": "assistant", "content": ""}), *said, chunk({}, finish="stop"))


DONE = b"data: [DONE]\n\n"


def streams(*chunks: Any, done: bool = True, ends: bool = True) -> Says:
    """A stream of chunks. Not `done`: without [DONE]; not `ends`: the connection is cut instead."""

    async def says(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(head(200, STREAM, "transfer-encoding: chunked"))
        for one in chunks:
            writer.write(piece(one if isinstance(one, bytes) else event(one)))
            await writer.drain()
        if done:
            writer.write(piece(DONE))
        if ends:
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        else:
            await writer.drain()
            writer.close()

    return says


def in_turn(*replies: Says) -> Says:
    """Each request gets the next one, the last one again and again."""
    left = list(replies)

    async def says(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(asked, writer)

    return says


async def silent(_asked: Asked, _writer: asyncio.StreamWriter) -> None:
    """Nothing, until the client leaves."""
    await asyncio.Event().wait()


def then_silent(*chunks: Any) -> Says:
    """Some of a stream, then nothing."""

    async def says(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(head(200, STREAM, "transfer-encoding: chunked"))
        for one in chunks:
            writer.write(piece(event(one)))
        await writer.drain()
        await asyncio.Event().wait()

    return says


def ports(fars: Sequence[Far]) -> set[str]:
    """What an error must not name."""
    return {found[1] for one in fars if (found := re.search(r":(\d+)/", one.url))}
