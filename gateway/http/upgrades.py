"""Refuses a WebSocket before it is opened, by an HTTP answer to the request for it, whose status
and body clients read as they do everywhere. Knows ASGI; no messages.
"""

import uuid
from collections.abc import Callable
from typing import Any

import structlog
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from gateway.dialects.dialect import body
from gateway.dialects.openai import envelope
from gateway.http.errors import headers, refusal
from gateway.http.request_log import ID_HEADER
from gateway.http.sse import Plain, client_error
from gateway.terms.errors import GatewayError, InternalError, NotFound

log = structlog.get_logger()

_ERROR = "roundhouse.error"  # in the state of a connection: what ended it


async def remember(error: Exception, scope: Scope) -> None:
    """A hook of Litestar's, which of an error on a WebSocket only tells that it is closed."""
    scope["state"][_ERROR] = error


class Upgrades:
    """An ASGI application around another: a socket that nobody opens is answered by HTTP. Else the
    server would say 403, whatever it was. `note` is called with reason, client and route of the
    wrong keys.
    """

    def __init__(self, app: ASGIApp, note: Callable[[str, str, str], None]) -> None:
        self._app = app
        self._note = note

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.WEBSOCKET:
            await self._app(scope, receive, send)
            return
        decided = False

        async def answered(message: Message) -> None:
            nonlocal decided
            is_refused = message["type"] == "websocket.close" and not decided
            decided = True
            if is_refused:
                error = _why_closed(scope)
                if (reason := refusal(error)) is not None:
                    client = scope["client"][0] if scope["client"] else ""
                    self._note(reason, client, f"WEBSOCKET {scope['path_template']}")
                await _refuse(error, scope, receive, send)
            else:
                await send(message)

        try:
            await self._app(scope, receive, answered)
        finally:
            scope["state"].clear()  # or an error, whose frames have the scope, would stay with it


def _why_closed(scope: Scope) -> GatewayError:
    """There is no such route, or what was raised; the log has what is no client's to read."""
    error = scope["state"].get(_ERROR)
    if not scope.get("path_template"):
        return NotFound(f"Unknown request URL: WEBSOCKET {scope['path'][:200]}.")
    return client_error(error or InternalError("The socket was closed before it was open."))


async def _refuse(error: GatewayError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer the request for a socket, which is not opened."""
    given = {"connection": "close", ID_HEADER: uuid.uuid4().hex, **headers(error)}
    log.debug(
        "request",
        request=given[ID_HEADER],
        method="WEBSOCKET",
        route=str(scope.get("path_template", "")),
        status=error.status_hint,
        outcome=error.code or error.type,
    )

    async def answered(message: Any) -> None:
        message["type"] = f"websocket.{message['type']}"
        await send(message)

    answer = Plain(body(envelope(error)), status=error.status_hint, headers=given)
    await answer(scope, receive, answered)
