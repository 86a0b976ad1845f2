"""Load balancing: which of several servers is asked next, and which one is out. Pure: the caller
passes the time.

Where the replicas are Roundhouses, the one that has the model in memory goes first, then the one
that loads it, then the one whose load would take the least from other models. Among equals the
least busy one is asked, by its weight. A conversation returns to the server that answered it
last, where its cache is, unless that one has `OVERLOAD` requests more than the least busy. After so
many failures in a row a server gets no requests (an open circuit) until a probe succeeds; then one
request tries it (half open), and its success brings it back.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from backends.remote import RemoteStanding, RemoteState

OVERLOAD = 4.0  # requests, over the replica's weight
KEPT = 16_384  # conversations whose replica is remembered

State: TypeAlias = Literal["up", "trial", "resting"]
# How far a model is from an answer, by its state where it would be asked.
_DISTANCES: Mapping[RemoteState, int] = {
    "loaded": 0,
    "loading": 1,
    "unloaded": 2,
    "draining": 2,
    "failed": 3,
}
_UNLISTED = 4


class Replica(msgspec.Struct, kw_only=True, eq=False):
    """Mutable: the balancer's state of one server."""

    url: str
    weight: float = 1.0
    state: State = "up"
    silent: bool = False  # it did not answer when it was last asked for its list
    draining: bool = False  # it gets no new requests, by an administrator's order
    busy: int = 0  # requests under way
    failures: int = 0  # in a row
    asked: int = 0  # requests in all
    failed: int = 0  # of them
    reason: str | None = None  # of the last failure, for administrators
    standings: dict[str, RemoteStanding] | None = None  # of its models; None: no Roundhouse

    @property
    def load(self) -> float:
        """Requests under way, over the weight."""
        return self.busy / self.weight

    @property
    def is_open(self) -> bool:
        """It may be asked. On trial it gets one request at a time."""
        if self.draining or self.state == "resting":
            return False
        return self.state == "up" or self.busy == 0

    def distance(self, model: str) -> tuple[int, int]:
        """The work there before `model` can answer: the least is the best."""
        if self.standings is None:
            return 0, 0
        standing = self.standings.get(model)
        if standing is None:
            return _UNLISTED, 0
        missing = standing.missing if standing.state == "unloaded" else 0
        return _DISTANCES[standing.state], missing

    def expect(self, model: str) -> None:
        """A request for `model` goes there: until its list says otherwise, it is loading."""
        standing = (self.standings or {}).get(model)
        if self.standings is None or standing is None or standing.state in ("loaded", "loading"):
            return
        self.standings[model] = replace(standing, state="loading", percent=None, why_failed=None)


class Balance:
    """Chooses among `replicas`. `patience`: failures in a row before its circuit opens."""

    def __init__(self, replicas: Sequence[Replica], patience: int) -> None:
        self.replicas = tuple(replicas)
        self._patience = patience
        self._homes: dict[int, Replica] = {}

    def choose(
        self, conversation: int | None, besides: Iterable[Replica] = (), model: str = ""
    ) -> Replica | None:
        """The replica to ask, if there is one; `besides`: those that were asked already; `model`:
        by the upstream's name.
        """
        tried = tuple(besides)
        able = [one for one in self.replicas if one.is_open and one not in tried]
        if not able:
            return None
        nearest = min(one.distance(model) for one in able)
        able = [one for one in able if one.distance(model) == nearest]
        least = min(able, key=lambda one: (one.load, one.asked / one.weight))
        home = self._homes.get(conversation) if conversation is not None else None
        if home is None or home not in able or home.load > least.load + OVERLOAD:
            return least
        return home

    def began(self, replica: Replica, model: str = "") -> None:
        """It is asked."""
        replica.busy += 1
        replica.asked += 1
        replica.expect(model)

    def ended(self, replica: Replica) -> None:
        """It works no longer for a request that `began`."""
        replica.busy -= 1

    def returns_to(self, replica: Replica, conversation: int | None) -> None:
        """It has begun to answer: its cache knows the conversation now."""
        if conversation is None:
            return
        self._homes.pop(conversation, None)
        self._homes[conversation] = replica  # the last used stands last
        if len(self._homes) > KEPT:
            del self._homes[next(iter(self._homes))]

    def succeeded(self, replica: Replica) -> None:
        """It answered, or refused for a reason that is the request's."""
        replica.failures, replica.reason = 0, None
        if replica.state == "trial":
            replica.state = "up"

    def failed(self, replica: Replica, reason: str) -> None:
        """It could not be reached, or broke an answer off."""
        replica.failures += 1
        replica.failed += 1
        replica.reason = reason
        if replica.state == "trial" or replica.failures >= self._patience:
            replica.state = "resting"

    def probed(self, replica: Replica) -> None:
        """A probe succeeded."""
        if replica.state == "resting":
            replica.state = "trial"
