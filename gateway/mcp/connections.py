"""Connections to MCP servers, as the library's transports: a command that runs below a guardian,
and HTTP to addresses that are allowed.

What a server sends is bounded before it is parsed, and sieved before the session sees it. Knows no
tools.
"""

import asyncio
import errno
import logging
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from ipaddress import ip_address
from typing import Any, TypeAlias

import anyio
import anyio.lowlevel
import httpx2
import mcp_types as types
import msgspec
import structlog
from anyio import to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.dispatcher import CallOptions
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.message import SessionMessage
from mcp.shared.transport_context import TransportContext
from mcp_types import jsonrpc_message_adapter

from backends.machine.command import Command, Process
from config.mcp import McpConfig, words
from config.product import VERSION
from gateway.answers.pictures import (
    Address,
    anywhere,
    is_public,
    system_resolver,
)
from gateway.mcp.mending import mended
from gateway.terms.tasks import companions

Message: TypeAlias = SessionMessage | Exception
Streams: TypeAlias = tuple[Any, Any]  # the library's: to read from, to write to
Transport: TypeAlias = AbstractAsyncContextManager[Streams]
SendingStream: TypeAlias = MemoryObjectSendStream[Message]

INHERITED = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
STOPPING = 2.0  # seconds that a command has to end after its input has
CLOSED = "it closed the connection"
CANCELLED = "notifications/cancelled"
MOST_UNASKED = 1_000  # messages that answer nothing, between two that do
PROGRESS = 0.01  # how much of one a report of progress is: long calls send many
ENDLESS, LONGEST_END = 16, 256  # times the longest message, that is read to its end; bytes kept

# Errors that are made here: their code, and in their data the status of HTTP, and whether the
# server has forgotten the session.
FAILED, STATUS, FORGOTTEN = -31_999, "httpStatus", "forgotten"
# Codes of errors that the server may answer where it doesn't know a session; by others it has read
# the request.
OF_A_SESSION = {types.INVALID_REQUEST, -32_000, -32_001}
MEANINGS = {
    401: "it wants a token (headers.Authorization; OAuth is not supported)",
    403: "it refuses this token (headers.Authorization), or this server's address",
    404: "nothing is at this URL",
    405: "nothing at this URL takes messages",
    429: "it gets too many requests",
    503: "it is overloaded, or not there",
}
# The ends of an answer that tell what it answers: libraries write its id at one of them.
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'
_ID = rb'"id"\s*:\s*(\d{1,15})\s*'
_ANSWERED = re.compile(
    rb"\A\s*\{\s*(?:%(version)s\s*,\s*)?"
    rb'(?:%(id)s,\s*"(?:result|error)"|"(?:result|error)".*%(id)s(?:,\s*%(version)s\s*)?\}\s*\Z)'
    % {b"version": _VERSION, b"id": _ID},
    re.DOTALL,
)

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
    process = await _started(server)
    received, incoming = anyio.create_memory_object_stream[Message](0)
    outgoing, to_send = anyio.create_memory_object_stream[SessionMessage](0)
    try:
        with received, incoming, outgoing, to_send:
            async with companions() as tasks:
                tasks.start_soon(_read_lines, process, server.max_message, received)
                tasks.start_soon(_write_lines, process, to_send, received)
                yield incoming, outgoing
    finally:
        with anyio.CancelScope(shield=True):
            await process.stop()


async def _started(server: McpConfig) -> Process:
    given = {name: os.environ[name] for name in INHERITED if name in os.environ}
    command = Command(
        name=server.name,
        words=words(server),
        environment={**given, **server.env},
        folder=server.folder,
        stop_timeout=STOPPING,
        logged=False,
        talks=True,
        longest_line=server.max_message,
    )
    try:
        return await Process.start(command)
    except OSError as error:
        raise CommandEnded(f"its command can't be started: {error.strerror}") from error


async def _read_lines(process: Process, most: int, received: SendingStream) -> None:
    """Messages until the command's output ends. What is no message is passed over: programs print
    what they shouldn't.
    """
    with received, suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
        while True:
            line, size = await _line(process.said, most)
            if not line:
                await process.ended.wait()
                name, output = process.command.name, process.last_words()
                log.warning("mcp command ended", server=name, output=output)
                await received.send(CommandEnded(_why_ended(process)))
                return
            if size > most:
                found = _ANSWERED.search(line) if line.endswith(b"\n") else None
                if found is None:
                    await received.send(TooMuch(_too_long(most)))
                    return
                line = _failure(int(found[1] or found[2]), f"the server {_too_long(most)}")
            with suppress(ValueError):
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                await received.send(SessionMessage(message))


def _why_ended(process: Process) -> str:
    if process.refusal == os.strerror(errno.ENOENT):
        return f"its command was not found: {process.command.words[0]}"
    if process.refusal:
        return f"its command can't be started: {process.refusal}"
    return "its command has ended"


async def _line(stream: asyncio.StreamReader, most: int) -> tuple[bytes, int]:
    """The next line, and how long it is. Of one that is longer than `most` its two ends, at once
    where it doesn't end.
    """
    line, size = b"", 0
    while not line.endswith(b"\n") and size <= ENDLESS * most:
        try:
            part = await stream.readuntil(b"\n")
        except asyncio.LimitOverrunError as error:
            part = await stream.readexactly(error.consumed)
        except asyncio.IncompleteReadError as error:
            return b"", size + len(error.partial)
        line, size = line + part, size + len(part)
        if size > most:
            line = line[:LONGEST_END] + line[LONGEST_END:][-LONGEST_END:]
    return line, size


def _too_long(most: int) -> str:
    return f"sent a message of more than {most:,} bytes"


def _failure(id: int | str, message: str, status: int = 0, *, forgotten: bool = False) -> bytes:
    """What stands for an answer that can't be had; only the request that waits for it fails."""
    data = {STATUS: status, FORGOTTEN: forgotten}
    error = {"code": FAILED, "message": message, "data": data}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": id, "error": error})


async def _write_lines(
    process: Process,
    to_send: MemoryObjectReceiveStream[SessionMessage],
    received: SendingStream,
) -> None:
    assert process.talk is not None, "it talks"
    try:
        async for message in to_send:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.talk.write(text.encode() + b"\n")
            await process.talk.drain()
    except OSError:
        received.close()


class CheckedAddresses(httpx2.AsyncBaseTransport):
    """HTTP to addresses that `judge` allows: a name is resolved once, and the connection goes to an
    address that was checked, as for pictures (`gateway.answers.pictures`).
    """

    def __init__(self, server: McpConfig, *, answers: bool) -> None:
        """`answers`: requests are answered by what answers their POST."""
        self._answers = answers
        self._judge = anywhere if server.allow_private_addresses else is_public
        self._most = server.max_message
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
            return await self._heard(response, sent, request)
        raise failure or httpx2.ConnectError("its host is unknown")

    async def _opened(self) -> httpx2.AsyncHTTPTransport:
        if self._inner is None:  # certificates are read beside the event loop: there are many
            trust = await to_thread.run_sync(httpx2.create_ssl_context)
            self._inner = httpx2.AsyncHTTPTransport(verify=trust, trust_env=False)
        return self._inner

    async def _addresses(self, host: str, port: int) -> Sequence[Address]:
        try:
            found = [ip_address(text) for text in await system_resolver(host, port)]
        except (OSError, ValueError, UnicodeError) as error:
            raise httpx2.ConnectError("its host is unknown") from error
        if not all(map(self._judge, found)):
            raise httpx2.ConnectError("its address is private (allow_private_addresses)")
        return found

    async def _heard(
        self, response: httpx2.Response, sent: "_Sent", request: httpx2.Request
    ) -> httpx2.Response:
        """What the library reads. An event of a stream is bounded where events are read; all else
        is read here, and where it is no answer to what was sent, one that says so stands for it.
        """
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise TooMuch("sends what is compressed")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        status, kind = response.status_code, response.headers.get("content-type", "").lower()
        if status < 300 and kind.startswith("text/event-stream"):
            if sent.id is not None:
                forget = partial(self._events.pop, sent.id, None)
                response.stream = self._events[sent.id] = _Events(response.stream, forget)
            return response
        body = await _body(response.stream, self._most)
        if sent.id is None or not self._answers or status == 202 or 300 <= status < 400:
            return httpx2.Response(status, headers=response.headers, content=body)
        in_session = "mcp-session-id" in request.headers
        said = _answer(body, status, kind, sent.id, self._most, in_session=in_session)
        headers = {**response.headers, "content-type": "application/json"}
        return httpx2.Response(200, headers=headers, content=said)

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


class _Error(msgspec.Struct):
    """JSON-RPC's."""

    code: int
    message: str
    data: Any = None


def _sent(request: httpx2.Request) -> _Sent:
    try:
        return msgspec.json.decode(request.content, type=_Sent)
    except (msgspec.DecodeError, httpx2.RequestNotRead):  # none, or no message
        return _Sent()


class _Events(httpx2.AsyncByteStream):
    """A stream that answers a request, until that is cancelled: the library would read it on."""

    def __init__(self, inner: httpx2.AsyncByteStream, forget: Callable[[], object]) -> None:
        self._inner = inner
        self._forget = forget
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
        self._forget()
        await self._inner.aclose()


async def _body(stream: httpx2.AsyncByteStream, most: int) -> bytes | None:
    """None where it is longer."""
    body = bytearray()
    try:
        async for chunk in stream:
            body += chunk
            if len(body) > most:
                return None
    finally:
        await stream.aclose()
    return bytes(body)


def _answer(
    body: bytes | None, status: int, kind: str, id: int | str, most: int, *, in_session: bool
) -> bytes:
    """The answer to request `id`: the server's, or why there is none."""
    if body is None:
        return _failure(id, f"the server {_too_long(most)}", status)
    if status < 400 and not kind.startswith("application/json"):
        what = kind.partition(";")[0] or "nothing"
        return _failure(id, f"the server answered with {what:.64}, not with a message", status)
    try:
        said = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        error = msgspec.json.decode(said["error"], type=_Error) if status >= 400 else None
    except (msgspec.DecodeError, RecursionError, KeyError):
        said, error = {}, None
    if status >= 400:
        return _refusal(id, status, error, in_session=in_session)
    return msgspec.json.encode({**said, "id": id}) if said else body  # whatever it calls it


def _refusal(id: int | str, status: int, error: "_Error | None", *, in_session: bool) -> bytes:
    """`error`: what the server says itself."""
    unread = error is None or error.code in OF_A_SESSION
    forgotten = in_session and (status in (401, 404) or (status == 400 and unread))
    if error is None or forgotten:
        said = f"the server answered {status}: it doesn't know the session"
        return _failure(id, said if forgotten else meaning(status), status, forgotten=forgotten)
    data = error.data if isinstance(error.data, dict) else {}
    marked = msgspec.structs.replace(error, data={**data, STATUS: status})
    return msgspec.json.encode({"jsonrpc": "2.0", "id": id, "error": marked})


def meaning(status: int) -> str:
    """Why a request failed, by its status."""
    meant = f": {MEANINGS[status]}" if status in MEANINGS else ""
    return f"the server answered {status}{meant}"


def _client(
    server: McpConfig,
    headers: dict[str, str] | None = None,
    *,
    answers: bool = False,
    **_: object,  # the library's own time-outs
) -> httpx2.AsyncClient:
    """Who asks waits for an answer as long as it wants: a time-out here would end the session."""
    ours = {"accept-encoding": "identity", "user-agent": f"roundhouse/{VERSION}"}
    return httpx2.AsyncClient(
        transport=CheckedAddresses(server, answers=answers),
        timeout=httpx2.Timeout(server.patience, read=None, pool=None),
        headers={**(headers or {}), **ours, **server.headers},
        trust_env=False,
    )


@asynccontextmanager
async def streaming(server: McpConfig) -> AsyncIterator[Streams]:
    """Streamable HTTP: a request for each message."""
    assert server.url is not None
    async with (
        _client(server, answers=True) as client,
        streamable_http_client(
            server.url, http_client=client, max_sse_event_size=server.max_message
        ) as streams,
    ):
        yield streams


@asynccontextmanager
async def older(server: McpConfig) -> AsyncIterator[Streams]:
    """HTTP with one stream of events for all messages, as servers of before 2025 have it."""
    assert server.url is not None
    async with sse_client(server.url, httpx_client_factory=partial(_client, server)) as streams:
        yield streams


@asynccontextmanager
async def sieved(inner: Transport, lost: Callable[[str], None]) -> AsyncIterator["Sieve"]:
    """`inner`, whose messages are looked at before the session sees them. `lost` is told where the
    connection has ended, and why.
    """
    async with inner as (incoming, outgoing):
        passed, seen = anyio.create_memory_object_stream[Message](0)
        with passed, seen:
            async with companions() as tasks:
                sieve = Sieve(seen, outgoing)
                tasks.start_soon(sieve.pass_on, incoming, passed, lost)
                yield sieve


class Sieve(JSONRPCDispatcher[TransportContext]):
    """The library's, which reads answers that are mended, and bounds what nobody asked for."""

    _unasked = 0.0  # messages since a request was last answered, or given up

    async def send_raw_request(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        opts: CallOptions | None = None,
        **more: Any,
    ) -> dict[str, Any]:
        """As the library's."""
        try:
            result = await super().send_raw_request(method, params, opts, **more)
        finally:
            self._unasked = 0.0
        return mended(method, result)

    async def pass_on(
        self, incoming: Any, passed: SendingStream, lost: Callable[[str], None]
    ) -> None:
        """What comes, to the session."""
        with passed, suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            async for message in incoming:
                if isinstance(message, CommandEnded | TooMuch):
                    lost(str(message))
                    return
                if isinstance(message, SessionMessage):
                    method = getattr(message.message, "method", "")
                    is_progress = method == "notifications/progress"
                    self._unasked += PROGRESS if is_progress else 1.0
                    if self._unasked > MOST_UNASKED:
                        lost(f"sent more than {MOST_UNASKED:,} messages that nobody asked for")
                        return
                    if is_progress:
                        continue
                await passed.send(message)
            lost(CLOSED)
