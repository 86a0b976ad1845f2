"""The WebSockets that are open: how many a key may have, and that they end when the server stops.
Knows no messages.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from gateway.terms.errors import QueueFull, ShuttingDown

RETRY = 5.0  # seconds
CLOSED, POLICY, RESTARTS = 1000, 1008, 1012  # RFC 6455, 7.4.1; IANA's registry


class Open(Protocol):
    """A socket that is open."""

    def drain(self) -> None:
        """What runs may finish, nothing else begins, and then it closes."""
        ...


class Sockets:
    """All that are open."""

    def __init__(self, most: Callable[[], int]) -> None:
        """`most`: of one key at a time."""
        self._most = most
        self._open: dict[Open, str] = {}
        self._draining = False

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def opened(self, socket: Open, owner: str) -> Iterator[None]:
        """As long as the context lasts. Raises QueueFull, ShuttingDown."""
        if self._draining:
            raise ShuttingDown("The server is stopping.")
        if Counter(self._open.values())[owner] >= (most := self._most()):
            text = f"{most} sockets of this key are open already (server.max_sockets)."
            raise QueueFull(text, retry_after=RETRY)
        self._open[socket] = owner
        try:
            yield
        finally:
            del self._open[socket]

    def drain(self) -> None:
        """The server stops."""
        self._draining = True
        for socket in self._open:
            socket.drain()
