"""Something that takes a while, told to one client as it goes: a load, a download. Knows no
dialect.

It runs in the request's own task: when the client leaves, it is cancelled. What others wait for as
well must live elsewhere (`Registry.loading` sees to that for loads).
"""

from collections.abc import Awaitable, Callable

import anyio
import structlog
from litestar.types import Receive, Scope, Send

from gateway.errors import GatewayError, InternalError
from gateway.http.plain import Plain
from gateway.http.sse import EventStream
from gateway.tasks import companions

SEND_TIMED_OUT = "roundhouse.send_timed_out"  # in a request's state: who left was cut off

log = structlog.get_logger()


class ProgressStream:
    """Server-sent events. `run` writes frames; what it raises before the first is an HTTP error."""

    def __init__(
        self,
        run: Callable[[EventStream], Awaitable[None]],
        failed: Callable[[GatewayError], bytes],
        *,
        quiet: float,
    ) -> None:
        self._run = run
        self._failed = failed
        self._quiet = quiet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises GatewayError as long as nothing has been sent."""
        async with companions() as tasks:
            tasks.start_soon(cancel_when_left, receive, tasks.cancel_scope)
            events = EventStream(send, {}, self._quiet)
            tasks.start_soon(events.send_comments)
            try:
                await self._run(events)
                await events.begin()
                await events.end(b"")
            except Exception as error:
                if not events.began:
                    raise
                await events.end(self._failed(told(error)))


class WholeErrand:
    """One body when it is done."""

    def __init__(self, run: Callable[[], Awaitable[bytes]]) -> None:
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises GatewayError."""
        async with companions() as tasks:
            tasks.start_soon(cancel_when_left, receive, tasks.cancel_scope)
            body = Plain(await self._run())
            await body(scope, receive, send)


def told(error: Exception) -> GatewayError:
    """What a client may know of `error`; the log knows all."""
    if isinstance(error, GatewayError):
        return error
    log.error("stream failed", exc_info=error)
    return InternalError("The server made a mistake; its log tells more.")


async def cancel_when_left(receive: Receive, scope: anyio.CancelScope) -> None:
    """Cancel `scope` when the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
