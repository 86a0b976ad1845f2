"""Keeps up what runs as long as the server: a watcher that fails is logged, counted, begun again.

What is supervised ends neither others nor the server. What must not fail unseen isn't: its error
goes up, and ends the process. Knows no watcher.
"""

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import structlog

REST, LONGEST_REST = 1.0, 60.0  # seconds after the first failure, and after many in a row

log = structlog.get_logger(__name__)


class Supervisor:
    """One per server. `failures`: how often each kind of watcher has failed."""

    def __init__(self, rest: float = REST) -> None:
        """`rest`: seconds after a first failure."""
        self.failures: Counter[str] = Counter()
        self._rest = rest

    async def attempt(
        self, watcher: str, work: Callable[..., Awaitable[object]], *arguments: Any
    ) -> bool:
        """`work` once; whether it went well."""
        self.failures[watcher] += 0  # a series that begins with a failure has never increased
        try:
            await work(*arguments)
        except Exception:  # whatever it is, nobody else ends by it
            self.failures[watcher] += 1
            log.exception("a watcher failed", watcher=watcher)
            return False
        return True

    async def keep(
        self, watcher: str, work: Callable[..., Awaitable[object]], *arguments: Any
    ) -> None:
        """`work` until it returns. Where it fails it is begun again, later each time in a row."""
        rest, began = self._rest, time.monotonic()
        while not await self.attempt(watcher, work, *arguments):
            if time.monotonic() - began > LONGEST_REST:
                rest = self._rest
            await anyio.sleep(rest)
            rest, began = min(2 * rest, LONGEST_REST), time.monotonic()
