"""Running and recent requests, for administrators and for the key that sent them.

The entries are made when they are requested; a request that is not watched costs two entries in a
table.
"""

import itertools
from collections import deque
from collections.abc import Iterator

from gateway.access import Access
from gateway.errors import NotFound
from gateway.http.request_record import RequestRecord, RequestStanding

LATELY = 200  # requests that are over


class Activity:
    """One per server. A `request_record.Journal`."""

    def __init__(self, lately: int = LATELY) -> None:
        self._numbers = itertools.count(1)
        self._running: dict[int, RequestRecord] = {}
        self._lately: deque[tuple[str, RequestStanding]] = deque(maxlen=lately)
        self._moved: set[int] = set()

    # ---------------------------------------------------------------------------- from records

    def began(self, record: RequestRecord) -> int:
        number = next(self._numbers)
        self._running[number] = record
        self._moved.add(number)
        return number

    def moved(self, number: int) -> None:
        if number in self._running:
            self._moved.add(number)

    def ended(self, number: int) -> None:
        record = self._running.pop(number)
        self._lately.append((record.access.owner, record.standing()))
        self._moved.add(number)

    # ---------------------------------------------------------------------------- for watchers

    def seen_by(self, access: Access) -> list[RequestStanding]:
        """Those that run, the newest first, then those that are over."""
        return [one for owner, one in self.all() if access.oversees(owner)]

    def all(self) -> Iterator[tuple[str, RequestStanding]]:
        """Each with its owner, in the order of `seen_by`."""
        for record in reversed(self._running.values()):
            yield record.access.owner, record.standing()
        yield from reversed(self._lately)

    def take_moved(self, *, running: bool) -> list[tuple[str, RequestStanding]]:
        """What has changed since the last call, in the order it began; `running`: and all that
        runs, since its numbers grow. What came and was forgotten in between is left out.
        """
        numbers, self._moved = self._moved, set()
        over = [(owner, one) for owner, one in self._lately if one.number in numbers]
        now = [
            (record.access.owner, record.standing())
            for number, record in self._running.items()
            if running or number in numbers
        ]
        return sorted((*over, *now), key=lambda item: item[1].number)

    def cancel(self, number: int, access: Access) -> RequestStanding:
        """End a request that runs. Raises NotFound for one that doesn't, or that `access` may not
        see.
        """
        record = self._running.get(number)
        if record is None or not access.oversees(record.access.owner):
            raise NotFound(f"There is no request {number} that runs.", param="number")
        record.cancel()
        return record.standing()
