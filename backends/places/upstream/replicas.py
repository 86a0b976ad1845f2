"""Load balancing: which of several servers is asked next, and which one is out. Pure: time comes
from the clock that it is given.

Where the replicas are Roundhouses, the one that has the model in memory goes first, then the one
that loads it, then the one whose load would take the least from other models. Among equals the
least busy one is asked, by its weight; where they are equally busy, the one that was asked least of
late, or for a conversation the one that its hash prefers (rendezvous hashing, by places in the
list), so that gateways with the same list send it to the same server. Failures of late count as
requests under way, so that a server that fails at once isn't the least busy. A conversation returns
to the server that answered it last, where its cache is, unless that one has `OVERLOAD` requests
more than the least busy.

A server whose failures are too many of its last outcomes gets no requests (an open circuit) until a
probe succeeds; then one request tries it (half open), and the beginning of an answer brings it
back. A request can be at fault, too: so one caller's failures open no circuit while the server
answers others, and those that the request may have caused open none by themselves. A server that
says when it wants to be asked again (`Retry-After`) is asked last until then, and one that lacks a
model is asked for it last for a while.
"""

import hashlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from backends.contract.conversation import Message
from backends.contract.latest import Latest
from backends.contract.remote import RemoteStanding, RemoteState
from backends.places.upstream.faults import Fault

OVERLOAD = 4.0  # requests, over the replica's weight
KEPT = 16_384  # conversations whose replica is remembered
OUTCOMES, OUTCOMES_AGE = 20, 60.0  # of a replica, and seconds, that are looked back on
HALF_LIFE = 2.0  # seconds, of the rate at which a replica is asked
LONGEST_REST = 60.0  # seconds that a server's `Retry-After` is heeded
PREFIX = 4_096  # characters of a message by which a conversation is known
MOST_SYSTEM = 4  # messages that it is known by
LACKING = 30.0  # seconds that a replica counts as without a model that it said it lacks
MOST_LACKED = 1024  # models that this is remembered of

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


class Outcome(msgspec.Struct, frozen=True):
    """How a request ended. `caller`: who sent it; "" where callers have no keys. In doubt: with an
    error that the request may have caused.
    """

    at: float
    caller: str
    kind: Literal["good", "in doubt", "bad"]


class Replica(msgspec.Struct, kw_only=True, eq=False):
    """Mutable: the balancer's state of one server. Times are the balancer's clock's."""

    url: str
    weight: float = 1.0
    headers: Mapping[str, str] = {}  # with its key, where each replica has one
    state: State = "up"
    silence: Fault | None = None  # why it did not answer when it was last asked for its list
    draining: bool = False  # it gets no new requests, by an administrator's order
    busy: int = 0  # requests under way
    elsewhere: int = 0  # others' requests that it had when it was last asked for its list
    asked: int = 0  # requests in all
    failed: int = 0  # of them
    failures: dict[str, int] = {}  # the same, by their kinds
    fault: Fault | None = None  # the last failure, until it answers
    standings: dict[str, RemoteStanding] | None = None  # of its models; None: no Roundhouse
    outcomes: deque[Outcome] = msgspec.field(default_factory=lambda: deque(maxlen=OUTCOMES))
    rests_until: float = 0.0  # by its `Retry-After`
    lacks_until: Latest[str, float] = msgspec.field(default_factory=lambda: Latest(MOST_LACKED))
    rate: float = 0.0  # requests of late, as of `rate_at`; each counts half after `HALF_LIFE`
    rate_at: float = 0.0

    @property
    def silent(self) -> bool:
        """It did not answer when it was last asked for its list."""
        return self.silence is not None

    @property
    def load(self) -> float:
        """Requests under way, over the weight."""
        return (self.busy + self.elsewhere) / self.weight

    def listed(self, standings: dict[str, RemoteStanding] | None) -> None:
        """What its list says now. A Roundhouse counts the requests of all its clients."""
        self.standings = standings
        there = sum(one.in_use + one.waiting for one in (standings or {}).values())
        self.elsewhere = max(0, there - self.busy)

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


def stable_hash(*parts: str) -> int:
    """64 bits, the same in every process."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(part.encode(errors="surrogatepass"))
        digest.update(b"\0")
    return int.from_bytes(digest.digest(), "big")


def beginning(messages: Sequence[Message]) -> Iterator[str]:
    """What a conversation is known by: the messages up to the user's first, which the next turn
    begins with, too.
    """
    for message in messages[:MOST_SYSTEM]:
        yield f"{message.role}:{message.text[:PREFIX]}"
        if message.role == "user":
            return


def first_part(prompt: str | tuple[int | str, ...]) -> str | tuple[int | str, ...]:
    """The same of a raw text, or of tokens."""
    return prompt[: PREFIX // 4]


class Balance:
    """Chooses among `replicas`. `patience`: failures of late before a replica's circuit opens;
    `clock`: seconds that only go up.
    """

    def __init__(
        self,
        replicas: Sequence[Replica],
        patience: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.replicas = tuple(replicas)
        self._patience = patience
        self._clock = clock
        self._homes = Latest[int, Replica](KEPT)

    def choose(
        self, conversation: int | None, besides: Iterable[Replica] = (), model: str = ""
    ) -> Replica | None:
        """The replica to ask, if there is one; `besides`: those that were asked already; `model`:
        by the upstream's name.
        """
        tried, now = tuple(besides), self._clock()
        able = [one for one in self.replicas if one.is_open and one not in tried]
        able = [one for one in able if one.lacks_until.get(model, 0.0) <= now] or able
        able = [one for one in able if one.rests_until <= now] or able
        if not able:
            return None
        nearest = min(one.distance(model) for one in able)
        able = [one for one in able if one.distance(model) == nearest]
        least = min(able, key=lambda one: (self._load(one), self._order(one, conversation)))
        home = self._homes.get(conversation) if conversation is not None else None
        if home is None or home not in able or self._load(home) > self._load(least) + OVERLOAD:
            return least
        return home

    def _load(self, replica: Replica) -> float:
        """With its failures of late as if they were still under way."""
        failures = sum(one.kind != "good" for one in self._recent(replica))
        return replica.load + failures / replica.weight

    def _order(self, replica: Replica, conversation: int | None) -> float:
        """Among the equally busy, the least goes first."""
        if conversation is None:
            return self._rate(replica)
        place = self.replicas.index(replica)  # an address may be another one from elsewhere
        share = (stable_hash(str(conversation), str(place)) + 1) / (2**64 + 1)
        return -math.log(share) / replica.weight

    def _rate(self, replica: Replica) -> float:
        """At which it was asked of late, over the weight."""
        age = self._clock() - replica.rate_at
        return replica.rate * math.exp2(-age / HALF_LIFE) / replica.weight

    def _recent(self, replica: Replica) -> list[Outcome]:
        oldest = self._clock() - OUTCOMES_AGE
        return [one for one in replica.outcomes if one.at > oldest]

    def began(self, replica: Replica, model: str = "") -> None:
        """It is asked."""
        replica.rate = self._rate(replica) * replica.weight + 1
        replica.rate_at = self._clock()
        replica.busy += 1
        replica.asked += 1
        replica.expect(model)

    def ended(self, replica: Replica) -> None:
        """It works no longer for a request that `began`."""
        replica.busy -= 1

    def returns_to(self, replica: Replica, conversation: int | None) -> None:
        """It has begun to answer: its cache knows the conversation now."""
        if conversation is not None:
            self._homes[conversation] = replica

    def answers(self, replica: Replica) -> None:
        """It has begun to answer: a trial is over."""
        if replica.state == "trial":
            replica.state = "up"
            replica.outcomes.clear()

    def succeeded(self, replica: Replica, caller: str = "") -> None:
        """It answered, or refused for a reason that is the request's."""
        self.answers(replica)
        replica.fault = None
        replica.outcomes.append(Outcome(self._clock(), caller, "good"))

    def failed(
        self, replica: Replica, fault: Fault, caller: str = "", *, in_doubt: bool = False
    ) -> None:
        """It could not be reached, answered with an error of its own, or broke an answer off.
        `in_doubt`: the request may have caused it.
        """
        replica.failed += 1
        replica.failures[fault.kind] = replica.failures.get(fault.kind, 0) + 1
        replica.fault = fault
        kind: Literal["in doubt", "bad"] = "in doubt" if in_doubt else "bad"
        replica.outcomes.append(Outcome(self._clock(), caller, kind))
        if replica.state == "trial" or self._is_at_fault(replica):
            replica.state = "resting"

    def _is_at_fault(self, replica: Replica) -> bool:
        """Its failures of late are enough and most, and not one caller's alone while others get
        answers.
        """
        recent = self._recent(replica)
        failures = [one for one in recent if one.kind != "good"]
        failing = {one.caller for one in failures}
        if len(failing) == 1:
            failures = [one for one in failures if one.kind == "bad"]
        if len(failures) < self._patience or 2 * len(failures) <= len(recent):
            return False
        answered = {one.caller for one in recent if one.kind == "good"}
        return len(failing) > 1 or answered <= failing

    def rests(self, replica: Replica, seconds: float) -> None:
        """It wants to be asked no sooner."""
        replica.rests_until = self._clock() + min(seconds, LONGEST_REST)

    def lacks(self, replica: Replica, model: str) -> None:
        """It has no such model."""
        replica.lacks_until[model] = self._clock() + LACKING

    def probed(self, replica: Replica) -> None:
        """A probe succeeded."""
        if replica.state == "resting":
            replica.state = "trial"
