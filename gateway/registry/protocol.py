"""The scheduler's input and output: facts about a model and a request, and orders.

Pure data. Times are seconds of one clock that never goes back, sizes are bytes, devices are names
("cpu", "cuda:0").
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from gateway.registry.nodes import Seconds

Bytes: TypeAlias = Mapping[str, int]  # per device


class Smaller(msgspec.Struct, frozen=True):
    """A way in which a model takes less of cards and is slower: `speed` is a part of the full."""

    need: Bytes
    speed: float


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler knows of a model; given anew when that changes."""

    name: str
    need: Bytes  # where it would lie best
    others: tuple[Bytes, ...] = ()  # where else it may lie, the better before the worse
    copying: Seconds = {}  # until a node has its files, by node; one not named has them
    smaller: tuple[Smaller, ...] = ()  # ways in which more of it gives way, the faster first
    speed: float = 1.0  # that of `need`
    load_seconds: float  # measured at its last load, or estimated
    slots: int  # leases at once; more wait in line
    pinned: bool = False
    parks: Bytes | None = None  # what it holds while it is parked; None: it can't be
    ttl: float = -1.0  # idle seconds until it is unloaded; -1: never
    apart: str = ""  # no two models that have the same lie on one device: replicas of one
    # Seconds of rest after a failed load, however many failed. None: as the rules say, doubled.
    backoff: float | None = None

    @property
    def all_ways(self) -> tuple[Smaller, ...]:
        """Where it may lie, with how fast it is there."""
        best = (Smaller(need, self.speed) for need in (self.need, *self.others))
        return (*best, *self.smaller)

    def speed_at(self, need: Bytes) -> float:
        """How fast it is in this way, as a part of its best. No object is made for each of
        `others`, which may be hundreds: Python's collector would begin within decisions.
        """
        if need == self.need or need in self.others:
            return 1.0
        slower = (self.relative(way.speed) for way in self.smaller if way.need == need)
        return next(slower, 1.0)

    def relative(self, speed: float) -> float:
        """This speed, as a part of its best."""
        return min(1.0, speed / max(self.speed, 1e-6))


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What a request stands in line for. One that `holds` wants a lease; else it only awaits the
    load.
    """

    holds: bool = True
    keep_alive: float | None = None  # in place of the model's ttl until the next lease ends
    owner: str = ""  # of the key that it came with, among which turns are shared


class Ticket(Wish, frozen=True, kw_only=True):
    """One request's place in line."""

    number: int
    arrived: float


WhyUnload: TypeAlias = Literal["room", "idle", "asked", "broken", "budget", "config", "share"]
WhyRefuse: TypeAlias = Literal[
    "queue_full", "failed", "broken", "too_large", "unloaded", "removed", "closing"
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
    """Close `model`: it has no lease. Answered by `unloaded`. `parks`: park it, if that works."""

    model: str
    why: WhyUnload
    parks: bool = False


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
