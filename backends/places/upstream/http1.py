"""HTTP/1.1 for httpx, over httptools' parser in C: the hot path of a relay of streams.

httpx's own transport parses in Python and hands every chunk of a stream through several generators,
some 12 µs each; here all that arrived together is one piece, and connections are kept. Proxies and
HTTP/2 are httpx's own transport's.
"""

import asyncio
import math
import select
import socket
import ssl
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from ipaddress import ip_address
from typing import SupportsIndex, TypeAlias, cast

import httptools
import httpx
import msgspec

from backends.machine.futures import settle
from config.values import fault

FRESH = 30.0  # seconds that addresses are used
FAILED = 1.0  # seconds until a name that has none is looked up again

LookUp: TypeAlias = Callable[[str], tuple[str, ...]]


def look_up(host: str) -> tuple[str, ...]:
    """The addresses of `host`, by the system's order. Blocks. Raises OSError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


class Resolver(msgspec.Struct, eq=False):
    """Resolves names, each on a thread of its own. One per client, on its event loop.

    The event loop's resolver has four threads for all, and a name whose name server doesn't answer
    holds one for up to half a minute: names that can be resolved would wait behind those that
    can't. A client has as many threads as it has names.
    """

    _look_up: LookUp = look_up
    _clock: Callable[[], float] = time.monotonic
    _found: dict[str, asyncio.Future[tuple[str, ...]]] = {}
    _until: dict[str, float] = {}  # when what was found has to be looked up again

    async def addresses(self, host: str) -> tuple[str, ...]:
        """At least one. Raises OSError; without limit in time."""
        if fault(ip_address, host) is None:
            return (host,)
        if self._until.get(host, -math.inf) <= self._clock():
            self._begin(host)
        return await asyncio.shield(self._found[host])  # others wait for it, too

    def _begin(self, host: str) -> None:
        loop = asyncio.get_running_loop()
        self._found[host] = loop.create_future()
        self._until[host] = math.inf

        def run() -> None:
            outcome = self._looked_up(host)
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(self._end, host, outcome)

        # No executor's thread: at its end the process would wait for a name server.
        threading.Thread(target=run, name=f"resolve {host}", daemon=True).start()

    def _looked_up(self, host: str) -> tuple[str, ...] | OSError:
        try:
            return self._look_up(host)
        except OSError as error:
            return socket.gaierror(*error.args)
        except UnicodeError as error:
            return socket.gaierror(0, str(error))

    def _end(self, host: str, outcome: tuple[str, ...] | OSError) -> None:
        self._until[host] = self._clock() + (FAILED if isinstance(outcome, OSError) else FRESH)
        settle(self._found[host], outcome)


class ResolvedFirst(httpx.AsyncBaseTransport):
    """httpx's own transport, which is asked only for names that are known to have addresses: it
    looks names up on the event loop's four threads. It is asked again where a connection was closed
    while it was kept. `proxy`: connections go there.
    """

    def __init__(self, transport: httpx.AsyncBaseTransport, proxy: str | None = None) -> None:
        self._transport = transport
        self._proxy = httpx.URL(proxy).host if proxy else None
        self._resolver = Resolver()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        limit = request.extensions["timeout"]["connect"]
        await resolved(self._resolver, self._proxy or request.url.host, limit)
        is_new = False

        async def note(step: str, _about: object) -> None:
            nonlocal is_new
            is_new |= step == "connection.connect_tcp.started"

        request.extensions["trace"] = note
        try:
            return await self._transport.handle_async_request(request)
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError) as error:
            if is_new or "StreamReset" in str(error):  # HTTP/2: this request, not its connection
                raise
        # As with connections of our own: the request was not read.
        return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._transport.aclose()


async def resolved(resolver: Resolver, host: str, limit: float | None) -> tuple[str, ...]:
    """The addresses of `host` within `limit` seconds. Raises httpx.ConnectError."""
    try:
        async with asyncio.timeout(limit):
            return await resolver.addresses(host)
    except TimeoutError:
        late = socket.gaierror(socket.EAI_AGAIN, "the name servers don't respond")
        raise httpx.ConnectError(str(late)) from late
    except OSError as error:
        raise httpx.ConnectError(str(error)) from error


MAX_HEAD = 64 << 10  # bytes of a response's head
AHEAD = 64 << 10  # bytes, of which twice as many are held before the other side is made to wait
AT_ONCE = 1 << 20  # more than that: all that is held is read

Origin: TypeAlias = tuple[bool, str, int]  # encrypted, host, port


class _Reader(asyncio.StreamReader):
    """Knows whether bytes came that were not read, and gives those before a failure."""

    is_fed = False
    failure: Exception | None = None

    def set_exception(self, exc: Exception) -> None:
        self.failure = exc
        self.feed_eof()

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        self.is_fed = True
        super().feed_data(data)


class _Protocol(asyncio.StreamReaderProtocol):
    """Closes its end with the other one."""

    def eof_received(self) -> bool:
        super().eof_received()
        return False


class Http1Connection:
    """One connection, one response at a time."""

    def __init__(self, reader: _Reader, transport: asyncio.BaseTransport) -> None:
        self.idle_since = 0.0
        self._reader = reader
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self._has_news = _news(transport.get_extra_info("socket").fileno())
        self._begin()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._parts: list[bytes] = []
        self._error: httpx.HTTPError | None = None  # behind these
        self.responded = False  # a byte of the present response came
        self._headed = self._complete = self._stays = False

    def on_message_begin(self) -> None:
        """Or a second response in the bytes of the first one; it is not looked at."""
        self._stays = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """A line of the head, or of trailers, which mean nothing here."""
        if not self._headed:
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if not self._headed:
            self.status = self._parser.get_status_code()
            self._headed = self.status >= 200

    def on_body(self, body: bytes) -> None:
        if not self._complete:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        if self.status < 200:  # 100 Continue and its like come before the response
            self.headers.clear()
        elif not self._complete:
            self._complete = True
            self._stays = bool(self._parser.should_keep_alive())  # it can be asked only here

    async def ask(self, request: bytes) -> None:
        """Send it; return when the response's head is there. Raises httpx.HTTPError; the connection
        is closed then, or where it is cancelled.
        """
        self._begin()
        self._transport.write(request)
        size = 0
        try:
            while not self._headed and size <= MAX_HEAD:
                size += await self._feed()
        except BaseException:
            self.abort()
            raise
        if not self._headed:
            self.abort()
            raise httpx.RemoteProtocolError("a head without end")

    async def read(self) -> bytes | None:
        """Some more of the body, all that is there; None at its end. Raises httpx.HTTPError."""
        while not self._parts:
            if self._complete:
                return None
            await self._feed()
        data = b"".join(self._parts)
        self._parts.clear()
        return data

    async def _feed(self) -> int:
        """Parse what came, or comes next; how many bytes. Raises httpx.HTTPError."""
        if self._error is not None:
            raise self._error
        data, failure = await self._reader.read(AT_ONCE), self._reader.failure
        self._reader.is_fed = False
        if not data and (failure or not (self._headed and self._ends_with_connection)):
            raise httpx.RemoteProtocolError("the connection was closed") from failure
        if not data:
            self._complete = True
            return 0
        self.responded = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._error = httpx.RemoteProtocolError(f"no HTTP: {error}")
        return len(data)

    @property
    def is_silent(self) -> bool:
        """Nothing came since, neither bytes nor its end, nor lies in its socket."""
        return not (self._reader.is_fed or self._reader.at_eof() or self._has_news())

    @property
    def is_reusable(self) -> bool:
        """The response was read to its end, and the other side takes another request."""
        came = self._reader.is_fed or self._reader.at_eof()
        whole = self._complete and not self._parts and self._error is None
        return whole and self._stays and not came

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    @property
    def _ends_with_connection(self) -> bool:
        """The body has no other end."""
        names = {name.lower() for name, _ in self.headers}
        return names.isdisjoint((b"content-length", b"transfer-encoding"))


def _news(socket: int) -> Callable[[], bool]:
    """Whether there is something to be read of a socket, or its end."""
    if sys.platform == "win32":  # which has no `poll`, and a `select` for any socket
        return lambda: bool(select.select([socket], [], [], 0)[0])
    poll = select.poll()
    poll.register(socket, select.POLLIN)
    return lambda: bool(poll.poll(0))


class Http1Transport(httpx.AsyncBaseTransport):
    """Connections by origin, kept while they are idle for less than `idle` seconds."""

    def __init__(
        self,
        trusted: ssl.SSLContext | None,
        *,
        most: int,
        idle: float,
        resolver: Resolver | None = None,
    ) -> None:
        """`trusted`: for https; `most`: idle connections to one origin."""
        self._trusted = trusted
        self._resolver = resolver or Resolver()
        self._most = most
        self._idle = idle
        self._kept: dict[Origin, list[Http1Connection]] = {}

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        origin, head = origin_of(request.url), _head(request)
        parts = [part async for part in cast(httpx.AsyncByteStream, request.stream)]
        message, connection = b"".join((head, *parts)), self._kept_open(origin)
        if connection is not None:
            try:
                await connection.ask(message)
            except httpx.RemoteProtocolError:
                if connection.responded:
                    raise
                connection = None  # it was closed while it was idle: the request was not read
        if connection is None:
            connection = await self._connected(origin, request.extensions["timeout"]["connect"])
            await connection.ask(message)
        return httpx.Response(
            connection.status,
            headers=connection.headers,
            stream=Http1Body(connection, self, origin),
            request=request,
        )

    async def aclose(self) -> None:
        """Close what is idle; answers under way close their own."""
        for kept in self._kept.values():
            for connection in kept:
                connection.abort()
        self._kept.clear()

    def give_back(self, connection: Http1Connection, origin: Origin) -> None:
        """The caller is done with it."""
        kept = self._kept.setdefault(origin, [])
        if connection.is_reusable and len(kept) < self._most:
            connection.idle_since = time.monotonic()
            kept.append(connection)
        else:
            connection.abort()

    def _kept_open(self, origin: Origin) -> Http1Connection | None:
        """One on which nothing came meanwhile: neither its end nor bytes that nobody asked for."""
        kept, oldest = self._kept.get(origin, []), time.monotonic() - self._idle
        while kept:
            connection = kept.pop()  # the one used last is the likeliest to be open still
            if connection.idle_since > oldest and connection.is_silent:
                return connection
            connection.abort()
        return None

    async def _connected(self, origin: Origin, limit: float | None) -> Http1Connection:
        """Raises httpx.HTTPError, whose cause is why."""
        _, host, _ = origin
        addresses = await resolved(self._resolver, host, limit)
        try:
            async with asyncio.timeout(limit):
                for address in addresses[:-1]:
                    with suppress(OSError):
                        return await self._connected_to(address, origin)
                return await self._connected_to(addresses[-1], origin)
        except TimeoutError:
            raise httpx.ConnectTimeout("no connection in time") from None
        except OSError as error:  # ssl.SSLError is one
            raise httpx.ConnectError(str(error)) from error

    async def _connected_to(self, address: str, origin: Origin) -> Http1Connection:
        encrypted, host, port = origin
        trusted, name = (self._trusted, host) if encrypted else (None, None)
        loop = asyncio.get_running_loop()
        reader = _Reader(limit=AHEAD, loop=loop)
        transport, _ = await loop.create_connection(
            lambda: _Protocol(reader, loop=loop),
            *(address, port),
            ssl=trusted,
            server_hostname=name,
        )
        return Http1Connection(reader, transport)


class Http1Body(httpx.AsyncByteStream):
    """A response's, piece by piece as they arrive."""

    def __init__(self, connection: Http1Connection, pool: Http1Transport, origin: Origin) -> None:
        self._connection: Http1Connection | None = connection
        self._pool = pool
        self._origin = origin

    async def __aiter__(self) -> AsyncIterator[bytes]:
        assert self._connection is not None, "it isn't closed"
        while (data := await self._connection.read()) is not None:
            yield data

    async def aclose(self) -> None:
        """Without an await, so that no cancellation can lose the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.give_back(connection, self._origin)


def origin_of(url: httpx.URL) -> Origin:
    """The origin of a URL."""
    encrypted = url.scheme == "https"
    return encrypted, url.host, url.port or (443 if encrypted else 80)


def _head(request: httpx.Request) -> bytes:
    """Raises httpx.LocalProtocolError for a header that would end its line."""
    first = b"%b %b HTTP/1.1" % (request.method.encode(), request.url.raw_path)
    if any(b"\r" in value or b"\n" in value for _, value in request.headers.raw):
        raise httpx.LocalProtocolError("a header of more than one line")
    lines = (b"%b: %b" % header for header in request.headers.raw)
    return b"\r\n".join((first, *lines, b"", b""))
