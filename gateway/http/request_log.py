"""The id of each request and its line in the log, from the outermost layer: so a request has both
that no route ever saw, and its error has the id that the log has.

A line says who asked which route for what, and what became of it; never what was written. What only
reads is logged at debug, unless it fails: pages and dashboards ask many times a minute. So is what
was refused for its key, which `auth.Refusals` logs in its own measure, and what is no route.
"""

import uuid
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Any

import structlog
from litestar import Request
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from gateway.access import Access
from gateway.errors import InvalidKey
from gateway.http.auth import READING, Authenticator

LINE = "roundhouse.request"  # in a request's state: its `RequestLine`
ID_HEADER = "x-request-id"
LONGEST_ID = 64
LONGEST_NAME = 200  # letters of what a client calls a model

log = structlog.get_logger()


class RequestLine:
    """What the log will say of one request, gathered while it is handled."""

    def __init__(self, request_id: str, label: Callable[[], str | None] = lambda: None) -> None:
        """`label`: of the key that it came with, where nobody has said it before."""
        self.id = request_id
        self._label = label
        self.began = perf_counter()
        self.status = 0  # until the answer begins
        self.outcome = ""  # an error's code; "": what the status says
        self.refused = False  # by `auth`
        self.is_open = True  # it will be written
        self._fields: dict[str, Any] = {}

    def add(self, fields: Mapping[str, Any]) -> None:
        """More to be said; nothing where it is written already."""
        self._fields.update(fields)

    def sent_by(self, access: Access) -> None:
        """Whoever admitted it knows its key."""
        self._label = lambda: access.label

    def key(self) -> str | None:
        """The label of the key; None: it has none that is known."""
        return self._label()

    def asks_for(self, model: str) -> None:
        """The model that the client named, "" for none."""
        if model:
            self._fields["asked"] = model[:LONGEST_NAME]

    def apart(self) -> "RequestLine":
        """For what goes on when this request is over: it has the same id, and logs for itself."""
        line = RequestLine(self.id)
        line.is_open = False
        return line

    def fields(self) -> Mapping[str, Any]:
        """All of it, but for what the connection knows."""
        gone = "left" if not self.status else "ok" if self.status < 400 else "error"
        seconds = round(perf_counter() - self.began, 3)
        return {
            "status": self.status or None,
            "outcome": self.outcome or gone,
            "seconds": seconds,
            **self._fields,
        }


def line_of(request: Request[Any, Any, Any]) -> RequestLine:
    """Of the request that is handled."""
    line: RequestLine = request.scope["state"][LINE]
    return line


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
    line = line_of(request)
    log.info("audit", act=act, **told, key=line.key(), client=client, request=line.id)


class RequestLog:
    """An ASGI application around another."""

    def __init__(
        self, app: ASGIApp, keys: Authenticator, count: Callable[[str, str, int], None]
    ) -> None:
        """`count` is called with method, route and status of each request that has a route."""
        self._app = app
        self._keys = keys
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        headers = scope["headers"]
        given = _given_id(headers) or uuid.uuid4().hex
        line = RequestLine(given, lambda: self._label(scope))
        scope["state"][LINE] = line

        def noted(message: Message) -> Awaitable[None]:  # no coroutine of its own for each chunk
            if message["type"] == "http.response.start":
                line.status = message["status"]
                named = (ID_HEADER.encode(), line.id.encode())
                message = {**message, "headers": [*message["headers"], named]}
            return send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            line.is_open = False
            self._write(scope, line)

    def _write(self, scope: Scope, line: RequestLine) -> None:
        method, route = str(scope.get("method", "")), str(scope.get("path_template", ""))
        if route:
            self._count(method, route, line.status)
        reads = method in READING and line.status < 400
        say = log.debug if reads or line.refused or not route else log.info
        client = scope["client"]
        say(
            "request",
            request=line.id,
            method=method,
            route=route or scope["path"][:LONGEST_NAME],
            key=line.key(),
            client=client[0] if client else "",
            **line.fields(),
        )

    def _label(self, scope: Scope) -> str | None:
        """Of the key that it came with; None where it has none that is known."""
        if self._keys.is_open:
            return None
        sent = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            return self._keys.admit(sent).label
        except InvalidKey:
            return None


def _given_id(headers: Any) -> str:
    """The client's own, where a header can hold it; "" without."""
    for name, value in headers:
        if name == ID_HEADER.encode():
            given: str = value.decode("latin-1")
            usable = 0 < len(given) <= LONGEST_ID and given.isascii() and given.isprintable()
            return given if usable else ""
    return ""
