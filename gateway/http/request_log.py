"""The log's line of each request, from the outermost layer: so a request has both an id and a line
that no route ever saw, and its error has the id that the log has.

What only reads is logged at debug, unless it fails: pages and dashboards ask many times a minute.
So is what was refused for its key, which `auth.Refusals` logs in its own measure.
"""

import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import msgspec
import structlog
from litestar import Request
from litestar.datastructures import Headers
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.auth import READING, Authenticator
from gateway.http.request_record import LONGEST_NAME, RequestRecord
from gateway.terms.errors import ClientLeft, InvalidKey

RECORD = "roundhouse.request"  # in a request's state: its `RequestRecord`
ID_HEADER = "x-request-id"
LONGEST_ID = 64

log = structlog.get_logger()


def record_of(request: Request[Any, Any, Any]) -> RequestRecord:
    """Of the request that is handled."""
    record: RequestRecord = request.scope["state"][RECORD]
    return record


def audit(request: Request[Any, Any, Any], act: str, **what: str | int | None) -> None:
    """Log who is about to do something that others will notice, and that is allowed to them. What
    came of it is in the request's own line.
    """
    told = {
        name: value[:LONGEST_NAME] if isinstance(value, str) else value
        for name, value in what.items()
        if value is not None
    }
    client = request.client.host if request.client else ""
    record = record_of(request)
    log.info("audit", act=act, **told, key=record.key(), client=client, request=record.id)


class RequestLog(msgspec.Struct, frozen=True):
    """An ASGI application around another. `count` is called with method, route and status of each
    request that has a route.
    """

    app: ASGIApp
    keys: Authenticator
    count: Callable[[str, str, int], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self.app(scope, receive, send)
            return
        given = _given_id(Headers(scope["headers"])) or uuid.uuid4().hex
        record = RequestRecord(given, lambda: self._label(scope))
        record.method, record.path = scope["method"], scope["path"]
        # As GET (RFC 9110, 9.3.2); uvicorn, whose scope stays, sends no body. The root has its own,
        # by which Ollama's clients see that a server is there.
        if record.method == "HEAD" and record.path != "/":
            scope = {**scope, "method": "GET"}
            receive, send = _head_alone(send)
        scope["state"][RECORD] = record

        def noted(message: Message) -> Awaitable[None]:  # no coroutine of its own for each chunk
            if message["type"] == "http.response.start":
                record.status = 0 if record.outcome == ClientLeft.code else message["status"]
                named = (ID_HEADER.encode(), record.id.encode())
                message = {**message, "headers": [*message["headers"], named]}
            return send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            record.is_open = False
            self._write(scope, record)
            scope["state"].clear()  # or what is there, which has the scope, would stay with it

    def _write(self, scope: Scope, record: RequestRecord) -> None:
        route = str(scope.get("path_template", ""))
        if route:
            self.count(record.method, route, record.status)
        reads = record.method in READING and record.status < 400
        say = log.debug if reads or record.refused else log.info
        record.tell(say, route=route or record.path[:LONGEST_NAME], client=scope["client"])

    def _label(self, scope: Scope) -> str | None:
        """Of the key that it came with; None where it has none that is known."""
        if self.keys.is_open:
            return None
        try:
            return self.keys.admit(Headers(scope["headers"])).label
        except InvalidKey:
            return None


def _head_alone(send: Send) -> tuple[Receive, Send]:
    """For a request that wants no body: whoever would stream one is told that the client left."""
    begun = anyio.Event()

    async def left() -> Any:
        await begun.wait()
        return {"type": "http.disconnect"}

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            begun.set()

    return left, sent


def _given_id(headers: Headers) -> str:
    """The client's own, where a header can hold it; "" without."""
    given = headers.get(ID_HEADER, "")
    return given if len(given) <= LONGEST_ID and given.isascii() and given.isprintable() else ""
