"""The last requests as they went through, for the key that sent them and for administrators: what
the client sent, what the engine read and wrote, and what was made of it.

It keeps references to what was there anyway, in memory alone, bounded in number by key and in bytes
all together; where these are spent, the key that holds most loses its oldest. Requests that run can
be looked at, too.
"""

from collections import Counter
from collections.abc import Iterator

from config.settings import InspectorConfig
from gateway.answers.recording import Recording
from gateway.http.request_record import RequestRecord
from gateway.keys.access import Access
from gateway.terms.errors import NotFound

BESIDE = 1024  # bytes that a record takes beside what went through


class Inspector:
    """One per server; off it begins none, and holds none."""

    def __init__(self, config: InspectorConfig) -> None:
        self._config = config
        self.enabled = config.enabled  # requests are kept
        self._all: dict[int, RequestRecord] = {}  # by number, in the order in which they began
        self._over: dict[str, dict[int, int]] = {}  # bytes, by owner and number, the oldest first
        self._bytes: Counter[str] = Counter()  # by owner, of those that are over

    def apply(self, config: InspectorConfig) -> None:
        """From now on. What is kept and shall not be any more is let go."""
        self._config, self.enabled = config, config.enabled
        if not config.enabled:
            self._all.clear()
            self._over.clear()
            self._bytes.clear()
        for owner in tuple(self._over):
            self._make_room(owner)

    def recording(self) -> Recording | None:
        """One for a request that begins; None: it is off."""
        return Recording() if self.enabled else None

    def began(self, record: RequestRecord) -> None:
        """It can be looked at, if it is recorded."""
        if record.recording is not None:
            self._all[record.number] = record

    def ended(self, record: RequestRecord) -> None:
        """The request is over."""
        if record.recording is None or record.number not in self._all:
            return
        owner, size = record.access.owner, len(record.body) + record.recording.size + BESIDE
        self._bytes[owner] += size
        self._over.setdefault(owner, {})[record.number] = size
        self._make_room(owner)

    def find(self, name: str, access: Access) -> RequestRecord:
        """By its number, or by its x-request-id, the newest. Raises NotFound for what `access` may
        not see, too.
        """
        for record in self._found(name):
            own = record.access.owner == access.owner
            if own or (access.role == "admin" and self._config.oversight):
                return record
        raise NotFound(f"Request {name!r:.80} is not kept.", param="number")

    def _found(self, name: str) -> Iterator[RequestRecord]:
        if name.isascii() and name.isdigit() and len(name) <= 18 and int(name) in self._all:
            yield self._all[int(name)]
        for record in reversed(self._all.values()):
            if record.id == name:
                yield record

    def _make_room(self, owner: str) -> None:
        while len(self._over.get(owner, ())) > self._config.requests:
            self._drop(owner)
        while self._bytes.total() > self._config.memory:
            self._drop(max(self._bytes, key=self._bytes.__getitem__))

    def _drop(self, owner: str) -> None:
        own = self._over[owner]
        number = next(iter(own))
        self._bytes[owner] -= own.pop(number)
        del self._all[number]
        if not own:
            del self._over[owner], self._bytes[owner]
