"""The scheduler's record of one model: its phase, its leases, its line.

    absent ──Load──▶ loading ──loaded──▶ loaded ──▶ draining ──Unload─▶ leaving ──unloaded─▶ absent
                      │ └─load_failed──▶ absent (with a failure)
                      └──CancelLoad──▶ leaving

    draining ──▶ loaded, where the room it was to make is not needed after all.

It decides nothing; it knows no other model and no budget.
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

# ------------------------------------------------------------------------------------------- orders
# The scheduler's vocabulary: what it is given about a model and a request, and what it orders.
#
# Pure data. Times are seconds of one clock that never goes back, sizes are bytes, devices are names
# ("cpu", "cuda:0").


Bytes: TypeAlias = Mapping[str, int]  # per device


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler knows of a model; given anew with every request, because it may change."""

    name: str
    need: Bytes  # where it would lie best
    others: tuple[Bytes, ...] = ()  # where else it may lie, the better before the worse
    load_seconds: float  # measured at its last load, or estimated
    slots: int  # leases at once; more wait in line
    pinned: bool = False
    ttl: float = -1.0  # idle seconds until it is unloaded; -1: never
    # Seconds of rest after a failed load, however many failed. None: as the rules say, doubled.
    backoff: float | None = None


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """One request's place in line. One that `holds` wants a lease; else it only awaits the load."""

    number: int
    arrived: float
    holds: bool = True
    keep_alive: float | None = None  # in place of the model's ttl until the next lease ends


WhyUnload: TypeAlias = Literal["room", "idle", "asked", "broken", "budget", "config"]
WhyRefuse: TypeAlias = Literal[
    "queue_full", "failed", "too_large", "unloaded", "removed", "closing"
]


class Evicted(msgspec.Struct, frozen=True):
    """A model that was evicted for another, and for how long it had been idle."""

    name: str
    idle_seconds: float


class Load(msgspec.Struct, frozen=True):
    """Load `model`: `need` is free now, of `free`. `evicted` had to go for it."""

    model: str
    need: Bytes
    free: Bytes
    evicted: tuple[Evicted, ...] = ()


class CancelLoad(msgspec.Struct, frozen=True):
    """No ticket waits for this load any more. Answered by `unloaded`, whichever way it ends."""

    model: str


class Unload(msgspec.Struct, frozen=True):
    """Close `model`: it has no lease. Answered by `unloaded`."""

    model: str
    why: WhyUnload


class Grant(msgspec.Struct, frozen=True):
    """The model is there. A ticket that holds is given back with `released`."""

    ticket: int


class Refuse(msgspec.Struct, frozen=True):
    """The ticket is out of line for good. After `retry_after` seconds a new one may fare better."""

    ticket: int
    why: WhyRefuse
    reason: str
    retry_after: float | None = None


Order: TypeAlias = Load | CancelLoad | Unload | Grant | Refuse


Phase: TypeAlias = Literal["absent", "loading", "loaded", "draining", "leaving"]

NEVER = float("inf")
BACKOFF_LIMIT = 300.0  # seconds; a broken model is tried again at least so often when asked for


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why the last load failed, or what it loaded; how many did in a row, and from when on it may
    be tried again.
    """

    reason: str
    count: int
    retry_at: float


class ModelRecord(msgspec.Struct, kw_only=True):
    """Mutable: the scheduler's record of one model."""

    model: Model
    phase: Phase = "absent"
    held: Bytes = {}  # promised to it; nothing while absent
    line: dict[int, Ticket] = {}  # in order of arrival
    users: dict[int, Ticket] = {}
    wanted: bool = False  # requested by an administrator: loaded even if no ticket waits
    leaving: WhyUnload = "room"  # why it drains
    loaded_at: float = 0.0
    idle_since: float = 0.0  # meaningful while it has no lease
    ttl: float = -1.0
    failure: Failure | None = None
    retrying: Bytes | None = None  # memory ran out: the room to make before the second and last try
    evicted: tuple[Evicted, ...] = ()  # evicted for the load in progress
    chosen: Bytes | None = None  # of its needs, that for which room was last looked for

    @property
    def needs(self) -> tuple[Bytes, ...]:
        """The rooms that a load takes now: one of them."""
        if self.retrying is not None:
            return (self.retrying,)
        return (self.model.need, *self.model.others)

    @property
    def need(self) -> Bytes:
        """The room that its load is to take: the one chosen, as long as that is among them."""
        return self.chosen if self.chosen in self.needs else self.needs[0]

    @property
    def is_kept(self) -> bool:
        """It drains to make room, but is pinned by now."""
        drains = self.phase == "draining" and self.leaving in ("room", "budget", "idle")
        return drains and self.model.pinned

    @property
    def is_claim(self) -> bool:
        """It is wanted and not in memory."""
        return self.phase == "absent" and (self.wanted or bool(self.line))

    @property
    def insists(self) -> bool:
        """Its turn has come whatever others do: an administrator asked, or its load has begun."""
        return self.wanted or self.retrying is not None

    @property
    def is_idle(self) -> bool:
        """It has no lease, and no ticket is about to get one."""
        return not self.users and not self.line

    @property
    def is_open(self) -> bool:
        """A ticket would be granted at once."""
        return self.phase == "loaded" and len(self.users) < self.model.slots

    @property
    def oldest(self) -> float:
        """When the first in line came; never, if the line is empty."""
        return next((ticket.arrived for ticket in self.line.values()), NEVER)

    def expires_at(self) -> float:
        """When an idle model is unloaded."""
        expires = self.phase == "loaded" and self.is_idle and self.ttl >= 0
        return self.idle_since + self.ttl if expires and not self.model.pinned else NEVER

    def arrive(self, now: float) -> None:
        """The load succeeded."""
        self.phase, self.loaded_at, self.idle_since = "loaded", now, now
        self.ttl, self.wanted, self.failure, self.retrying = self.model.ttl, False, None, None

    def leave(self) -> None:
        """Its memory is free again."""
        self.phase, self.held, self.evicted = "absent", {}, ()

    def fail(self, now: float, reason: str, backoff: float) -> Failure:
        """The load failed for good, or the model broke: `backoff` seconds of rest, doubled with
        each in a row.
        """
        count = self.failure.count + 1 if self.failure else 1
        rest = min(backoff * 2 ** min(count - 1, 32), max(backoff, BACKOFF_LIMIT))
        if self.model.backoff is not None:
            rest = self.model.backoff
        self.failure = Failure(reason=reason, count=count, retry_at=now + rest)
        self.wanted, self.retrying = False, None
        return self.failure
