"""The memory that requests hold, of what their clients sent or kept here before: bounded over all
of them, and shared among keys.

Long bodies are counted as they come, for an announcement holds nothing; what the store has for a
request is counted before it is read there. All is given back when the request is over. Knows bytes;
no routes and no JSON.
"""

from collections.abc import AsyncGenerator, Callable
from functools import partial
from io import BytesIO
from typing import Any

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.datastructures import Headers
from litestar.exceptions import InternalServerException
from litestar.types import ASGIApp, HTTPDisconnectEvent, HTTPReceiveMessage, Receive, Scope, Send

from gateway.http.auth import Authenticator, presented
from gateway.http.request_log import record_of
from gateway.terms.errors import ClientLeft, QueueFull

LONG_BODY = 64 << 10  # bytes; shorter ones are not counted
RETRY = 2.0  # seconds after which a request that found no room may be sent again
_STATE = "held"


class Holdings:
    """All that is held. An owner gets no more than it leaves to others: half of what is free."""

    def __init__(self, total: int, largest: int) -> None:
        """`total`: bytes; but room for one body of `largest` bytes there always is."""
        self._total = max(total, 2 * largest)
        self._held: dict[str, int] = {}

    def take(self, owner: str, size: int) -> None:
        """Raises QueueFull."""
        mine = self._held.get(owner, 0)
        if mine + size > self._total - sum(self._held.values()) - size:
            raise QueueFull(
                "Other requests use too much memory: not enough is left for the "
                f"{size:,} bytes of this one (server.max_held_bytes); try again later.",
                retry_after=RETRY,
            )
        self._held[owner] = mine + size

    def give_back(self, owner: str, size: int) -> None:
        """What was taken."""
        self._held[owner] -= size
        if not self._held[owner]:
            del self._held[owner]


class RequestHolding:
    """What one request holds."""

    def __init__(self, holdings: Holdings, owner: Callable[[], str]) -> None:
        self._holdings = holdings
        self._owner = owner
        self._size = 0

    def take(self, size: int) -> None:
        """Raises QueueFull."""
        self._holdings.take(self._owner(), size)
        self._size += size

    def apart(self) -> "RequestHolding":
        """Nothing yet, of the same owner."""
        return RequestHolding(self._holdings, self._owner)

    def moved(self) -> "RequestHolding":
        """All of it, for what outlives the request."""
        other = RequestHolding(self._holdings, self._owner)
        other._size, self._size = self._size, 0
        return other

    def give_back(self) -> None:
        """All of it; nothing the next time."""
        if self._size:
            self._holdings.give_back(self._owner(), self._size)
        self._size = 0


def held(request: ASGIConnection[Any, Any, Any, Any]) -> RequestHolding:
    """What a request holds, or a connection."""
    found: RequestHolding = request.scope["state"][_STATE]
    return found


def holding(holdings: Holdings, keys: Authenticator, max_body: int) -> Callable[[ASGIApp], ASGIApp]:
    """A middleware for all routes. Bodies of more than `max_body` bytes are refused elsewhere, or
    streamed to where they belong.
    """

    async def counted(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        def owner() -> str:
            """Keys are told apart before they are checked: who has none never gets so far."""
            return "" if keys.is_open else presented(Headers.from_scope(scope)).decode("latin-1")

        mine = RequestHolding(holdings, owner)
        scope["state"][_STATE] = mine
        size = _announced(scope)
        if size is None or LONG_BODY <= size <= max_body:
            receive = _counting(receive, mine, max_body)
        try:
            await app(scope, receive, send)
        finally:
            mine.give_back()

    return lambda app: partial(counted, app)


def _announced(scope: Scope) -> int | None:
    """Bytes of the body; None: the client sends it as it comes."""
    headers = Headers.from_scope(scope)
    if "transfer-encoding" in headers:
        return None
    length = headers.get("content-length", "")
    return int(length) if length.isdecimal() else 0


def _counting(receive: Receive, mine: RequestHolding, max_body: int) -> Receive:
    """`receive`, which takes what comes."""
    seen = 0

    async def counted() -> HTTPReceiveMessage | HTTPDisconnectEvent:
        nonlocal seen
        message: HTTPReceiveMessage = await receive()  # type: ignore[assignment]
        if seen <= max_body and message["type"] == "http.request":
            seen += len(message["body"])
            mine.take(len(message["body"]))
        return message

    return counted


class WholeBody(Request[Any, Any, Any]):
    """A request whose body is read into one buffer: to join a thousand pieces at its end stops the
    event loop.
    """

    __slots__ = ("_whole",)

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Its pieces as they come. Raises ClientLeft."""
        try:
            async for piece in super().stream():
                yield piece
        except InternalServerException as error:  # all that Litestar knows of it
            raise ClientLeft("The client has left before its request was whole.") from error

    async def body(self) -> bytes:
        """All of it; the same at every call."""
        if not hasattr(self, "_whole"):
            buffer = BytesIO()
            async for piece in self.stream():
                buffer.write(piece)
            self._whole = buffer.getvalue()
            record_of(self).sent(self._whole)
        return self._whole
