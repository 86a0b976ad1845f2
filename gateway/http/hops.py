"""The way of a request through Roundhouses that are each other's upstreams, in a header: each adds
its own id, and refuses what came through it before. Knows headers; no routes and no bodies.
"""

from collections.abc import Callable

from litestar.types import ASGIApp, Receive, Scope, Send

from backends.remote import HOPS, MOST_HOPS
from gateway.errors import LoopDetected

_NAME = HOPS.encode()


def counting_hops(server: str) -> Callable[[ASGIApp], ASGIApp]:
    """A middleware for all routes; `server`: this server's id."""

    def wrap(app: ASGIApp) -> ASGIApp:
        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            given = [value for name, value in scope["headers"] if name == _NAME]
            if given:
                rest = [field for field in scope["headers"] if field[0] != _NAME]
                way = checked(b",".join(given).decode("latin-1"), server)
                scope["headers"] = [*rest, (_NAME, way.encode("latin-1"))]
            await app(scope, receive, send)

        return counted

    return wrap


def checked(given: str, server: str) -> str:
    """The header with this server behind the others. Raises LoopDetected."""
    way = [one.strip() for one in given.split(",")]
    if server in way:
        raise LoopDetected("The request came back here: servers are each other's upstreams.")
    if len(way) >= MOST_HOPS:
        raise LoopDetected(f"The request came through {MOST_HOPS} servers and more.")
    return ", ".join((*way, server))
