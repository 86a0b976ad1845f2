"""The events of the stream, numbered, the last ones kept: who reads slowly, or comes again, goes on
where he was, or learns that this is gone.
"""

import secrets
from collections import deque
from collections.abc import Sequence
from hashlib import sha256

import anyio
import msgspec

from gateway.access import Access
from gateway.http.console.news import News

MOST = 4096  # events


class Event(msgspec.Struct, frozen=True):
    """Something that happened, with its number."""

    number: int
    news: News


class Feed:
    """One per server. What nobody has read for a while is not written either."""

    def __init__(self, most: int = MOST) -> None:
        self._epoch = secrets.token_hex(4)  # of this server: another one counts from 1 as well
        self._events: deque[Event] = deque(maxlen=most)
        self._first = 1  # what came before it is gone
        self.last = 0
        self.ended = False
        self.readers = 0
        self._more = anyio.Event()

    def add(self, news: News) -> None:
        """It happened now."""
        self.last += 1
        self._events.append(Event(self.last, news))
        self._first = self._events[0].number
        self._wake()

    def interrupt(self) -> None:
        """What happens from now on is not written: who comes again begins anew."""
        self._events.clear()
        self.last += 1
        self._first = self.last + 1

    def end(self) -> None:
        """The server stops."""
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        self._more.set()
        self._more = anyio.Event()

    def since(self, number: int) -> Sequence[Event] | None:
        """The events behind `number`; None where some of them are gone."""
        if not self._first - 1 <= number <= self.last:
            return None
        skipped = number - self._first + 1
        return tuple(self._events)[skipped:]

    async def wait(self, number: int) -> None:
        """Until there is something behind `number`, or the end."""
        while self.last <= number and not self.ended:
            await self._more.wait()

    # ---------------------------------------------------------------------------- ids

    def id(self, number: int, access: Access) -> str:
        """What a client sends to go on behind event `number`; of no use with another key."""
        return f"{self._epoch}-{self._whose(access)}-{number}"

    def number(self, id: str, access: Access) -> int | None:
        """What `id` says; None for what is no id of this server for this key."""
        head, _, number = id.rpartition("-")
        good = number.isascii() and number.isdigit() and len(number) <= 18
        return int(number) if good and head == f"{self._epoch}-{self._whose(access)}" else None

    def _whose(self, access: Access) -> str:
        rights = f"{self._epoch} {access.owner} {access.role} {sorted(access.models)}"
        return sha256(rights.encode()).hexdigest()[:8]
