"""Connections to MCP servers, as the library's transports: a command that runs below a guardian,
and HTTP to addresses that are allowed.

What a server sends is bounded before it is parsed, and sieved before the session sees it. Knows no
tools.
"""

import asyncio
import logging
import os
import socket
import sys
from asyncio.subprocess import PIPE
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel
import httpx2
import msgspec
import structlog
from anyio import to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCResponse, jsonrpc_message_adapter

from backends.machine import guardian
from config.mcp import McpConfig, words
from gateway.answers.pictures import (
    Address,
    HostLookup,
    address,
    anywhere,
    is_public,
    system_resolver,
)
from gateway.terms.tasks import companions

Message: TypeAlias = SessionMessage | Exception
Streams: TypeAlias = tuple[Any, Any]  # the library's: to read from, to write to
Transport: TypeAlias = AbstractAsyncContextManager[Streams]
SendingStream: TypeAlias = MemoryObjectSendStream[Message]

INHERITED = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
STOPPING = 2.0  # seconds that a command has to end after its input has
BEYOND = 10.0  # seconds that the guardian may take longer
LAST_LINES, LONGEST_LINE = 6, 300  # of what a command says on stderr, for the log
CLOSED = "it closed the connection"
CANCELLED = "notifications/cancelled"  # the method
MOST_UNASKED = 1_000  # messages that answer nothing, between two that do

log = structlog.get_logger(__name__)

# It logs what servers send, with tracebacks.
for _name in ("client", "mcp"):  # its session calls its logger so
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)


class TooMuch(Exception):
    """A server sends more than it may. The message completes "The server …"."""


class CommandEnded(Exception):
    """A command can't be started, or has ended. What it said last is in the log alone."""


@asynccontextmanager
async def commanded(server: McpConfig) -> AsyncIterator[Streams]:
    """A command, and messages as lines over its input and output; it is gone, with all that it
    started, when the context has ended. Raises CommandEnded.
    """
    async with _process(server) as (child, writer):
        assert child.stdout is not None
        assert child.stderr is not None
        last: deque[str] = deque(maxlen=LAST_LINES)
        received, incoming = anyio.create_memory_object_stream[Message](0)
        outgoing, to_send = anyio.create_memory_object_stream[SessionMessage](0)
        with received, incoming, outgoing, to_send:
            async with companions() as tasks:
                tasks.start_soon(_keep_last, child.stderr, last)
                tasks.start_soon(
                    _read_lines, server.name, child.stdout, received, server.max_message, last
                )
                tasks.start_soon(_write_lines, writer, to_send, received)
                yield incoming, outgoing


@asynccontextmanager
async def _process(
    server: McpConfig,
) -> AsyncIterator[tuple[asyncio.subprocess.Process, asyncio.StreamWriter]]:
    """The guardian of the command, and the command's input."""
    control, theirs = socket.socketpair()
    ours, input_ = socket.socketpair()
    with theirs, input_:
        try:
            child = await _guarded(server, theirs, input_)
        except BaseException:
            control.close()
            ours.close()
            raise
    try:
        _, writer = await asyncio.open_connection(sock=ours)
        try:
            yield child, writer
        finally:
            writer.close()
    finally:
        with anyio.CancelScope(shield=True):
            await _ended(child, control)


async def _guarded(
    server: McpConfig, control: socket.socket, input_: socket.socket
) -> asyncio.subprocess.Process:
    given = {name: os.environ[name] for name in INHERITED if name in os.environ}
    try:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(Path(guardian.__file__))),
            *(str(STOPPING), str(input_.fileno()), *words(server)),
            stdin=control.fileno(),
            stdout=PIPE,
            stderr=PIPE,
            limit=server.max_message,
            pass_fds=(input_.fileno(),),
            env={**given, **server.env},
            cwd=server.folder,
            start_new_session=True,
        )
    except OSError as error:
        raise CommandEnded(f"its command can't be started: {error.strerror}") from error


async def _ended(child: asyncio.subprocess.Process, control: socket.socket) -> None:
    """Its guardian sees its end of `control` closed, and ends all that is left."""
    with suppress(OSError):
        control.shutdown(socket.SHUT_WR)
    with anyio.move_on_after(STOPPING + BEYOND):
        for stream in filter(None, (child.stdout, child.stderr)):
            while await stream.read(1 << 16):  # asyncio waits for the ends of pipes, too
                pass
        await child.wait()
    if child.returncode is None:
        with suppress(ProcessLookupError):
            child.kill()
        await child.wait()
    control.close()


async def _keep_last(stream: asyncio.StreamReader, last: deque[str]) -> None:
    """However much it says there is read, so that it never waits for us."""
    rest = b""
    while data := await stream.read(1 << 14):
        *whole, rest = (rest + data).split(b"\n")
        rest = rest[:LONGEST_LINE]
        last.extend(filter(None, map(_readable, whole[-LAST_LINES:])))
    last.extend(filter(None, [_readable(rest)]))


def _readable(line: bytes) -> str:
    text = line[:LONGEST_LINE].decode(errors="replace")
    return "".join(letter if letter.isprintable() else " " for letter in text).strip()


async def _read_lines(
    name: str, stream: asyncio.StreamReader, received: SendingStream, most: int, last: deque[str]
) -> None:
    """Messages until the command's output ends. What is no message is passed over: programs print
    what they shouldn't.
    """
    with received, suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
        while True:
            try:
                line = await stream.readuntil(b"\n")
            except asyncio.IncompleteReadError:
                await anyio.lowlevel.checkpoint()  # its last words may have come with its end
                log.warning("mcp command ended", server=name, output=" | ".join(last))
                await received.send(CommandEnded("its command has ended"))
                return
            except (asyncio.LimitOverrunError, ValueError):
                await received.send(TooMuch(f"sent a message of more than {most:,} bytes"))
                return
            with suppress(ValueError):
                await received.send(SessionMessage(_parsed(line)))


def _parsed(line: bytes) -> Any:
    return jsonrpc_message_adapter.validate_json(line, by_name=False)


async def _write_lines(
    writer: asyncio.StreamWriter,
    to_send: MemoryObjectReceiveStream[SessionMessage],
    received: SendingStream,
) -> None:
    try:
        async for message in to_send:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            writer.write(text.encode() + b"\n")
            await writer.drain()
    except OSError:
        received.close()


class CheckedAddresses(httpx2.AsyncBaseTransport):
    """HTTP to addresses that `judge` allows: a name is resolved once, and the connection goes to an
    address that was checked, as for pictures (`gateway.answers.pictures`).
    """

    def __init__(self, server: McpConfig, resolver: HostLookup = system_resolver) -> None:
        self._judge = anywhere if server.allow_private_addresses else is_public
        self._resolver = resolver
        self._most = server.max_message
        self._patience = server.connect_timeout
        self._events: dict[int | str, _Events] = {}  # streams that answer a request, by its id
        self._inner: httpx2.AsyncHTTPTransport | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Raises httpx2.TransportError and TooMuch."""
        url, host = request.url, request.url.raw_host.decode("ascii")
        sent = _sent(request)
        if sent.method == CANCELLED and (over := self._events.get(sent.named)) is not None:
            over.end()  # whatever the server makes of it
        inner = await self._opened()
        failure: httpx2.TransportError | None = None
        for place in await self._addresses(
            host, url.port or (443 if url.scheme == "https" else 80)
        ):
            request.url = url.copy_with(host=str(place))
            request.extensions = {**request.extensions, "sni_hostname": host}
            try:
                response = await inner.handle_async_request(request)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                failure = error
                continue
            finally:
                request.url = url
            return self._bounded(response, sent)
        raise failure or httpx2.ConnectError("its host is unknown")

    async def _opened(self) -> httpx2.AsyncHTTPTransport:
        if self._inner is None:  # certificates are read beside the event loop: there are many
            trust = await to_thread.run_sync(httpx2.create_ssl_context)
            self._inner = httpx2.AsyncHTTPTransport(verify=trust, trust_env=False)
        return self._inner

    async def _addresses(self, host: str, port: int) -> Sequence[Address]:
        try:
            found = [address(text) for text in await self._resolver(host, port)]
        except (OSError, ValueError, UnicodeError) as error:
            raise httpx2.ConnectError("its host is unknown") from error
        if not all(map(self._judge, found)):
            raise httpx2.ConnectError("its address is private (allow_private_addresses)")
        return found

    def _bounded(self, response: httpx2.Response, sent: "_Sent") -> httpx2.Response:
        """An event of a stream is bounded where events are read."""
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise TooMuch("sends what is compressed")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        kind = response.headers.get("content-type", "")
        if not kind.lower().startswith("text/event-stream"):
            response.stream = _Bounded(response.stream, self._most)
        elif sent.id is not None:
            events = self._events[sent.id] = _Events(response.stream, self._events.pop, sent.id)
            response.stream = events
        return response

    async def aclose(self) -> None:
        """All its connections."""
        if self._inner is not None:
            await self._inner.aclose()


class _Sent(msgspec.Struct):
    """What is known of a message that is sent. `named`: the request that it cancels."""

    method: str = ""
    id: int | str | None = None
    params: Any = None

    @property
    def named(self) -> int | str:
        found = self.params.get("requestId") if isinstance(self.params, dict) else None
        return found if isinstance(found, int | str) else ""


def _sent(request: httpx2.Request) -> _Sent:
    try:
        return msgspec.json.decode(request.content, type=_Sent)
    except (msgspec.DecodeError, httpx2.RequestNotRead):  # none, or no message
        return _Sent()


class _Events(httpx2.AsyncByteStream):
    """A stream that answers a request, until that is cancelled: the library would read it on."""

    def __init__(
        self, inner: httpx2.AsyncByteStream, forget: Callable[[Any, None], object], id: int | str
    ) -> None:
        self._inner = inner
        self._forget = forget
        self._id = id
        self._over = False
        self._waiting: anyio.CancelScope | None = None

    def end(self) -> None:
        """Nobody waits for its answer any more."""
        self._over = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parts = aiter(self._inner)
        while True:
            part = b""
            with anyio.CancelScope() as self._waiting:
                try:
                    part = await anext(parts)
                except StopAsyncIteration:
                    return
            if self._over:
                raise httpx2.SSEError("its request was cancelled")
            yield part

    async def aclose(self) -> None:
        self._forget(self._id, None)
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    """A body of so many bytes at most."""

    def __init__(self, inner: httpx2.AsyncByteStream, most: int) -> None:
        self._inner = inner
        self._left = most
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for chunk in self._inner:
            self._left -= len(chunk)
            if self._left < 0:
                raise TooMuch(f"sent a message of more than {self._most:,} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


def _client(server: McpConfig, headers: dict[str, str] | None = None) -> httpx2.AsyncClient:
    """Who asks waits for an answer as long as it wants: a time-out here would end the session."""
    return httpx2.AsyncClient(
        transport=CheckedAddresses(server),
        timeout=httpx2.Timeout(server.connect_timeout, read=None, pool=None),
        headers={**(headers or {}), "accept-encoding": "identity", **server.headers},
        trust_env=False,
    )


@asynccontextmanager
async def streaming(server: McpConfig) -> AsyncIterator[Streams]:
    """Streamable HTTP: a request for each message."""
    assert server.url is not None
    async with (
        _client(server) as client,
        streamable_http_client(
            server.url, http_client=client, max_sse_event_size=server.max_message
        ) as streams,
    ):
        yield streams


@asynccontextmanager
async def older(server: McpConfig) -> AsyncIterator[Streams]:
    """HTTP with one stream of events for all messages, as servers of before 2025 have it."""
    assert server.url is not None

    def client(
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,  # noqa: ARG001 - the server's own counts
        auth: httpx2.Auth | None = None,  # noqa: ARG001 - as above
    ) -> httpx2.AsyncClient:
        return _client(server, headers)

    async with sse_client(server.url, httpx_client_factory=client) as streams:
        yield streams


@asynccontextmanager
async def sieved(inner: Transport, lost: Callable[[str], None]) -> AsyncIterator[Streams]:
    """`inner`, whose messages are looked at before the session sees them. `lost` is told where the
    connection has ended, and why.
    """
    async with inner as (incoming, outgoing):
        passed, seen = anyio.create_memory_object_stream[Message](0)
        with passed, seen:
            async with companions() as tasks:
                left = False

                def tell(why: str) -> None:
                    if not left:  # what ends because we end it is no loss
                        lost(why)

                tasks.start_soon(_sieve, incoming, passed, tell)
                try:
                    yield seen, outgoing
                finally:
                    left = True


async def _sieve(incoming: Any, passed: SendingStream, lost: Callable[[str], None]) -> None:
    unasked = 0
    with passed, suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
        async for message in incoming:
            if isinstance(message, CommandEnded | TooMuch):
                lost(str(message))
                return
            if isinstance(message, SessionMessage):
                answers = isinstance(message.message, JSONRPCResponse | JSONRPCError)
                unasked = 0 if answers else unasked + 1
                if unasked > MOST_UNASKED:
                    lost(f"sent more than {MOST_UNASKED:,} messages that nobody asked for")
                    return
                _without_output_schemas(message)
            await passed.send(message)
        lost(CLOSED)


def _without_output_schemas(message: SessionMessage) -> None:
    """The session would hold results to them, on the event loop, however long a pattern takes."""
    if isinstance(message.message, JSONRPCResponse):
        tools = message.message.result.get("tools")
        for tool in tools if isinstance(tools, list) else ():
            if isinstance(tool, dict):
                tool.pop("outputSchema", None)
