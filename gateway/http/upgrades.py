"""Refuses a WebSocket before it is opened, by an HTTP answer to the request for it, whose status
and body clients read as they do everywhere. Knows ASGI; no messages.
"""

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from gateway.dialects.dialect import body
from gateway.dialects.openai import envelope
from gateway.http.errors import headers, refusal
from gateway.http.request_log import ID_HEADER
from gateway.http.sse import Plain
from gateway.terms.errors import GatewayError, InternalError, NotFound

log = structlog.get_logger()


def refusing(note: Callable[[str, str, str], None]) -> Callable[[ASGIApp], ASGIApp]:
    """A middleware for all routes: what those around a socket's route raise before it is open is
    answered by HTTP. `note` is called with reason, client and route of the wrong keys.
    """

    async def guarded(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await app(scope, receive, send)
        except GatewayError as error:
            if scope["type"] != ScopeType.WEBSOCKET:
                raise
            if (reason := refusal(error)) is not None:
                client = scope["client"]
                note(reason, client[0] if client else "", f"WEBSOCKET {scope['path_template']}")
            await refuse(error, scope, receive, send)

    return lambda app: partial(guarded, app)


class Upgrades:
    """An ASGI application around another: a socket that nobody opens is a 404, or a 500. Else the
    server would say 403, whatever it was.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

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
                await refuse(_why_closed(scope), scope, receive, send)
            else:
                await send(message)

        await self._app(scope, receive, answered)


def _why_closed(scope: Scope) -> GatewayError:
    """There is no such route, or it failed, which Litestar has logged."""
    if not scope.get("path_template"):
        return NotFound(f"Unknown request URL: WEBSOCKET {scope['path'][:200]}.")
    return InternalError("Internal server error; see the server's log.")


async def refuse(error: GatewayError, scope: Scope, receive: Receive, send: Send) -> None:
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
