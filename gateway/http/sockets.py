"""The WebSockets that are open: how many a key may have, and that they end when the server stops.
Knows no messages.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gateway.terms.errors import QueueFull, ShuttingDown

RETRY = 5.0  # seconds
CLOSED, POLICY, RESTARTS = 1000, 1008, 1012  # RFC 6455, 7.4.1; IANA's registry


class Sockets:
    """All that are open."""

    def __init__(self, most: Callable[[], int]) -> None:
        """`most`: of one key at a time."""
        self._most = most
        self._open: dict[Callable[[], None], str] = {}  # what drains each, and its owner
        self._draining = False

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def opened(self, drain: Callable[[], None], owner: str) -> Iterator[None]:
        """As long as the context lasts. `drain`: what runs may finish, nothing else begins, and
        then it closes. Raises QueueFull, ShuttingDown.
        """
        if self._draining:
            raise ShuttingDown("The server is stopping.")
        if Counter(self._open.values())[owner] >= (most := self._most()):
            text = f"{most} sockets of this key are open already (server.max_sockets)."
            raise QueueFull(text, retry_after=RETRY)
        self._open[drain] = owner
        try:
            yield
        finally:
            del self._open[drain]

    def drain(self) -> None:
        """The server stops."""
        self._draining = True
        for drain in self._open:
            drain()
