"""Stop strings in a text that comes in pieces."""

from collections.abc import Sequence

import msgspec


class StopFound(msgspec.Struct, frozen=True):
    """The text before a stop string, and which one it was."""

    before: str
    stop: str


class StopScanner:
    """Holds back text only while it may still become a stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, stops), default=0)
        self._first = frozenset(stop[0] for stop in stops)
        self.held = ""  # the text that may still become a stop string

    def feed(self, text: str) -> str | StopFound:
        """The text that can be handed on now, or where it stops."""
        window = self.held + text
        if found := self._first_stop(window):
            return found
        keep = self._held_length(window)
        self.held = window[len(window) - keep :]
        return window[: len(window) - keep]

    def flush(self) -> str:
        """Text held back that turned out to be only text."""
        held, self.held = self.held, ""
        return held

    def _first_stop(self, window: str) -> StopFound | None:
        hits = [(at, stop) for stop in self._stops if (at := window.find(stop)) >= 0]
        if not hits:
            return None
        at, stop = min(hits, key=lambda hit: (hit[0], -len(hit[1])))
        return StopFound(window[:at], stop)

    def _held_length(self, window: str) -> int:
        tail = window[-(self._longest - 1) :] if self._longest > 1 else ""
        for start in range(len(tail)):
            if tail[start] not in self._first:
                continue
            begun = tail[start:]
            if any(stop.startswith(begun) for stop in self._stops):
                return len(tail) - start
        return 0
