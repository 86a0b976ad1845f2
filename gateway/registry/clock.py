"""The registry's time: seconds that never go back, and waiting for a moment or an event."""

import time
from collections.abc import Callable
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


class Alarm:
    """Rings at the time it is set to, which may be changed at any moment."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._when: float | None = None
        self._changed = anyio.Event()

    def set(self, when: float | None) -> None:
        """Ring then, and not at the time set before; None: don't ring."""
        if when != self._when:
            self._when = when
            self._changed.set()

    async def run(self, ring: Callable[[], None]) -> None:
        """For ever: call `ring` when the time has come. It may set the alarm anew."""
        while True:
            self._changed = anyio.Event()
            await self._clock.wait(self._changed, self._when)
            if self._when is not None and self._clock.now() >= self._when:
                self._when = None
                ring()
