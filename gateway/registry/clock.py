"""The registry's time: seconds that never go back, and waiting for a moment or an event."""

import time
from typing import Protocol

import anyio


class Clock(Protocol):
    """Replaced in tests by a clock that is moved by hand."""

    def now(self) -> float: ...

    async def wait(self, event: anyio.Event, until: float | None) -> None:
        """Return when `event` is set or the time has come; `until` None: only when it is set."""
        ...


class LoopClock:
    """The machine's monotonic clock; an engine's report asks for the time outside of any task."""

    def now(self) -> float:
        return time.monotonic()

    async def wait(self, event: anyio.Event, until: float | None) -> None:
        seconds = None if until is None else max(0.0, until - self.now())
        with anyio.move_on_after(seconds):
            await event.wait()
