"""Host names to addresses, each name on a thread of its own.

The event loop's own resolver has four threads for all names, and one whose name server doesn't
answer holds a thread for up to half a minute: names that can be resolved would wait behind those
that can't. Here a name waits for itself alone; a client has as many threads as it has names.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from typing import TypeAlias

import httpx
import msgspec

FRESH = 30.0  # seconds that addresses are used
FAILED = 1.0  # seconds until a name that has none is looked up again

LookUp: TypeAlias = Callable[[str], tuple[str, ...]]


def look_up(host: str) -> tuple[str, ...]:
    """The addresses of `host`, by the system's order. Blocks. Raises OSError."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


class _Found(msgspec.Struct, frozen=True):
    """The end of a look-up, and until when it counts."""

    addresses: tuple[str, ...]
    error: OSError | None
    until: float

    def usable(self) -> tuple[str, ...]:
        if self.error is not None:
            raise socket.gaierror(*self.error.args)
        return self.addresses


class Resolver:
    """One per client, on its event loop. `look_up` runs on threads."""

    def __init__(
        self, look_up: LookUp = look_up, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look_up = look_up
        self._clock = clock
        self._found: dict[str, _Found] = {}
        self._pending: dict[str, asyncio.Future[_Found]] = {}

    async def addresses(self, host: str) -> tuple[str, ...]:
        """At least one. Raises OSError; without limit in time."""
        if _is_address(host):
            return (host,)
        found = self._found.get(host)
        if found is None or found.until <= self._clock():
            pending = self._pending.get(host) or self._begin(host)
            found = await asyncio.shield(pending)  # others wait for it, too
        return found.usable()

    def _begin(self, host: str) -> asyncio.Future[_Found]:
        loop = asyncio.get_running_loop()
        pending = self._pending[host] = loop.create_future()

        def run() -> None:
            found = self._looked_up(host)
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(self._end, host, found)

        # No executor's thread: at its end the process would wait for a name server.
        threading.Thread(target=run, name=f"resolve {host}", daemon=True).start()
        return pending

    def _looked_up(self, host: str) -> _Found:
        try:
            return _Found(self._look_up(host), None, self._clock() + FRESH)
        except (OSError, UnicodeError) as error:
            refused = error if isinstance(error, OSError) else OSError(0, str(error))
            return _Found((), refused, self._clock() + FAILED)

    def _end(self, host: str, found: _Found) -> None:
        self._found[host] = found
        self._pending.pop(host).set_result(found)


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


class ResolvedFirst(httpx.AsyncBaseTransport):
    """httpx's own transport, which is asked only for names that are known to have addresses: it
    looks names up on the event loop's four threads. `proxy`: connections go there.
    """

    def __init__(self, transport: httpx.AsyncBaseTransport, proxy: str | None = None) -> None:
        self._transport = transport
        self._proxy = httpx.URL(proxy).host if proxy else None
        self._resolver = Resolver()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        limit = request.extensions["timeout"]["connect"]
        await resolved(self._resolver, self._proxy or request.url.host, limit)
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
