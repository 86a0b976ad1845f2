"""What a WebSocket that isn't opened says, and the log with it."""

from typing import Any

import msgspec
import pytest
from litestar.types import Receive, Scope, Send
from structlog.testing import capture_logs

from gateway.http.upgrades import Upgrades, remember
from gateway.terms.errors import NotFound

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("opens", [True, False])
async def test_no_error_stays_with_what_it_ended(opens: bool) -> None:
    async def failing(scope: Scope, _receive: Receive, send: Send) -> None:
        if opens:
            await send({"type": "websocket.accept", "subprotocol": None, "headers": []})
        await remember(NotFound("Gone."), scope)
        await send({"type": "websocket.close", "code": 4500, "reason": ""})

    async def send(message: Any) -> None:
        sent.append(message["type"])

    sent: list[str] = []
    scope: Any = {"type": "websocket", "state": {}, "path_template": "/x", "client": None}
    await Upgrades(failing, lambda *_: None)(scope, None, send)  # type: ignore[arg-type]

    assert ("websocket.accept" in sent) is opens
    assert scope["state"] == {}


@pytest.mark.parametrize(
    ("error", "status", "events"),
    [(NotFound("Gone."), 404, []), (ValueError("secret"), 500, ["stream failed"])],
)
async def test_what_is_no_clients_to_read_stands_in_the_log(
    error: Exception, status: int, events: list[str]
) -> None:
    async def failing(scope: Scope, _receive: Receive, send: Send) -> None:
        await remember(error, scope)
        await send({"type": "websocket.close", "code": 4500, "reason": ""})

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope: Any = {"type": "websocket", "state": {}, "path_template": "/x", "client": None}
    with capture_logs() as logged:
        await Upgrades(failing, lambda *_: None)(scope, None, send)  # type: ignore[arg-type]

    assert [one["event"] for one in logged if one["log_level"] == "error"] == events
    assert sent[0]["status"] == status
    assert b"secret" not in sent[1]["body"]
    assert msgspec.json.decode(sent[1]["body"])["error"]["message"]
