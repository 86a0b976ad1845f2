"""Server-sent events on an ASGI connection: when to begin, how to say nothing, how to end. Knows no
dialect.
"""

import time
from collections.abc import Mapping

import anyio
from litestar.types import Send

from gateway.http.plain import encoded
from gateway.registry import Waiting

PATIENCE = 1.0  # seconds a waiting request stays without an answer, and then between two comments
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # nginx would collect the events
}


class EventStream:
    """One stream. `began`: the status is on the wire, errors can only be events from here on."""

    def __init__(self, send: Send, headers: Mapping[str, str], quiet: float) -> None:
        self.began = False
        self._send = send
        self._headers = headers
        self._quiet = quiet
        self._ended = False
        self._last = time.monotonic()
        self._news: Waiting | None = None

    async def begin(self, headers: Mapping[str, str] = {}) -> None:
        """Send status 200, unless that has happened."""
        if self.began:
            return
        self.began = True
        lines = encoded({**HEADERS, **self._headers, **headers})
        await self._send({"type": "http.response.start", "status": 200, "headers": lines})

    async def write(self, frames: bytes) -> None:
        self._last = time.monotonic()
        await self._send({"type": "http.response.body", "body": frames, "more_body": True})

    async def end(self, frames: bytes) -> None:
        self._ended = True
        await self._send({"type": "http.response.body", "body": frames, "more_body": False})

    def wait(self, news: Waiting) -> None:
        """Something to tell at the next comment. A `pipeline.OnWait`."""
        self._news = news

    async def keep_alive(self) -> None:
        """For ever: a comment when there is news to wait with, or after a silence."""
        while not self._ended:
            await anyio.sleep(PATIENCE)
            news, self._news = self._news, None
            if news is not None:
                await self.begin()
                await self.write(f": {sentence(news)}\n\n".encode())
            elif self.began and time.monotonic() - self._last >= self._quiet:
                await self.write(b": still here\n\n")


def sentence(news: Waiting) -> str:
    """What a waiting client is told."""
    if news.stage == "loading":
        percent = "" if news.percent is None else f" {news.percent} %"
        return f"loading {news.model}{percent}, position {news.position}"
    return f"queued for {news.model}, position {news.position}"
