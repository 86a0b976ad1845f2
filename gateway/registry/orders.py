"""The scheduler's vocabulary: what it is told about a model and a request, and what it orders.

Pure data. Times are seconds of one clock that never goes back, sizes are bytes, devices are names
("cpu", "cuda:0").
"""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

Bytes: TypeAlias = Mapping[str, int]  # per device


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler knows of a model; told anew with every request, because it may change."""

    name: str
    need: Bytes
    load_seconds: float  # measured at its last load, or estimated
    slots: int  # leases at once; more wait in line
    pinned: bool = False
    ttl: float = -1.0  # idle seconds until it is unloaded; -1: never


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """One request's place in line. One that `holds` wants a lease; else it only awaits the load."""

    number: int
    arrived: float
    holds: bool = True
    keep_alive: float | None = None  # in place of the model's ttl until the next lease ends


WhyUnload: TypeAlias = Literal["room", "idle", "asked", "broken"]
WhyRefuse: TypeAlias = Literal["queue_full", "failed", "too_large", "unloaded", "closing"]


class Evicted(msgspec.Struct, frozen=True):
    """A model that made room, and for how long nobody had used it."""

    name: str
    idle_seconds: float


class Load(msgspec.Struct, frozen=True):
    """Load `model`: its memory is free now. `evicted` had to go for it."""

    model: str
    free: Bytes
    evicted: tuple[Evicted, ...] = ()


class CancelLoad(msgspec.Struct, frozen=True):
    """Nobody waits for this load any more. Answered by `unloaded`, whichever way it ends."""

    model: str


class Unload(msgspec.Struct, frozen=True):
    """Close `model`: nobody uses it. Answered by `unloaded`."""

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
