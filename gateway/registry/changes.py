"""Whose state may have changed, for watchers that ask when they can."""

from collections.abc import Iterator
from contextlib import contextmanager

import anyio


class Changes:
    """Names, not news: however slow its reader is, it holds each model once at most."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._ended = False
        self._news = anyio.Event()

    def note(self, name: str) -> None:
        """The state of a model may have changed, or the model come or gone."""
        self._names.add(name)
        self._news.set()

    def end(self) -> None:
        """There will be no more; what was noted is still read."""
        self._ended = True
        self._news.set()

    async def read(self) -> frozenset[str]:
        """Whoever was noted since the last call; waits until there is one. Empty: the end."""
        while not (self._names or self._ended):
            self._news = anyio.Event()
            await self._news.wait()
        names, self._names = frozenset(self._names), set()
        return names


class Watchers:
    """Everyone who watches the models' states."""

    def __init__(self) -> None:
        self._all: set[Changes] = set()
        self._ended = False

    def __len__(self) -> int:
        return len(self._all)

    @contextmanager
    def watching(self) -> Iterator[Changes]:
        """For as long as the context lasts, whose state changes, until the server stops."""
        changes = Changes()
        if self._ended:
            changes.end()
        self._all.add(changes)
        try:
            yield changes
        finally:
            self._all.discard(changes)

    def note(self, name: str) -> None:
        """See `Changes.note`."""
        for changes in self._all:
            changes.note(name)

    def end(self) -> None:
        """The server stops: nobody is to be kept by a stream that has no end of its own."""
        self._ended = True
        for changes in self._all:
            changes.end()
