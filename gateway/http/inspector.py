"""The last requests as they went through, for the key that sent them and for administrators: what
the client sent, what the engine read and wrote, and what was made of it.

It keeps references to what was there anyway, in memory alone, bounded in number by key and in bytes
all together; where these are spent, the key that holds most loses its oldest. Requests that run can
be looked at, too.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from config.settings import InspectorConfig
from gateway.answers.recording import Recording
from gateway.http.standing import RequestStanding
from gateway.keys.access import Access
from gateway.terms.errors import GatewayError, NotFound
from gateway.terms.events import Usage

MOST_BODY = 1 << 20  # bytes of a request's body; what is behind them is not kept


class Sent(Protocol):
    """What a client sent."""

    @property
    def method(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def body(self) -> "KeptBody": ...


class KeptBody:
    """The beginning of a body, in the parts in which it came."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.size = 0  # of the whole
        self.kept = 0

    def add(self, part: bytes) -> None:
        """Some more of it."""
        self.size += len(part)
        if self.kept < MOST_BODY:
            self._parts.append(part)
            self.kept += len(part)

    @property
    def is_cut(self) -> bool:
        """What is kept is not all."""
        return self.kept < self.size

    def read(self) -> bytes:
        """What is kept."""
        return b"".join(self._parts)


class Inspection:
    """One request. Times are seconds since it began."""

    def __init__(self, owner: str, request: str, sent: Sent) -> None:
        self.owner = owner
        self.request = request  # its x-request-id
        self.sent = sent
        self.recording = Recording()
        self.answered: float | None = None  # when its job was handed to the engine
        self.error: GatewayError | None = None
        self.size = 0  # about, in bytes; 0 while it runs
        self.standing: RequestStanding | None = None  # its last; None while it runs
        self.usage: Usage | None = None

    def settle(self, standing: RequestStanding, usage: Usage | None) -> None:
        """It is over."""
        self.standing, self.usage = standing, usage
        self.size = self.sent.body.kept + self.recording.size + 1024


class Inspector:
    """One per server; off it begins none, and holds none."""

    def __init__(self, config: InspectorConfig) -> None:
        self._config = config
        self._all: dict[int, Inspection] = {}  # by number, in the order in which they began
        self._over: dict[str, dict[int, Inspection]] = {}  # by owner, the oldest first
        self._bytes: Counter[str] = Counter()  # by owner, of those that are over

    @property
    def enabled(self) -> bool:
        """Requests are kept."""
        return self._config.enabled

    def apply(self, config: InspectorConfig) -> None:
        """From now on. What is kept and shall not be any more is let go."""
        self._config = config
        if not config.enabled:
            self._all.clear()
            self._over.clear()
            self._bytes.clear()
        for owner in tuple(self._over):
            self._make_room(owner)

    def begin(self, owner: str, request: str, sent: Sent) -> Inspection | None:
        """One for a request that begins; None: it is off."""
        return Inspection(owner, request, sent) if self._config.enabled else None

    def enter(self, number: int, inspection: Inspection) -> None:
        """It can be looked at."""
        self._all[number] = inspection

    def end(self, number: int, standing: RequestStanding, usage: Usage | None) -> None:
        """The request is over."""
        inspection = self._all.get(number)
        if inspection is None:
            return
        inspection.settle(standing, usage)
        self._bytes[inspection.owner] += inspection.size
        self._over.setdefault(inspection.owner, {})[number] = inspection
        self._make_room(inspection.owner)

    def find(self, name: str, access: Access) -> tuple[int, Inspection]:
        """By its number, or by its x-request-id, the newest. Raises NotFound for what `access` may
        not see, too.
        """
        for number, inspection in self._found(name):
            if self._shows(inspection, access):
                return number, inspection
        raise NotFound(f"Request {name!r:.80} is not kept.", param="number")

    def _found(self, name: str) -> Iterator[tuple[int, Inspection]]:
        if name.isascii() and name.isdigit() and len(name) <= 18 and int(name) in self._all:
            yield int(name), self._all[int(name)]
        for number, inspection in reversed(self._all.items()):
            if inspection.request == name:
                yield number, inspection

    def _shows(self, inspection: Inspection, access: Access) -> bool:
        own = inspection.owner == access.owner
        return own or (access.role == "admin" and self._config.oversight)

    def _make_room(self, owner: str) -> None:
        while len(self._over.get(owner, ())) > self._config.requests:
            self._drop(owner)
        while self._bytes.total() > self._config.memory:
            self._drop(max(self._bytes, key=self._bytes.__getitem__))

    def _drop(self, owner: str) -> None:
        own = self._over[owner]
        number = next(iter(own))
        self._bytes[owner] -= own.pop(number).size
        del self._all[number]
        if not own:
            del self._over[owner], self._bytes[owner]
