"""The messages on the pipes between the gateway and the process that speaks to Ray: a line of JSON
for each.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from backends.places.nodes.listening import Listening


class Part(msgspec.Struct, frozen=True):
    """A file of a model, here. `place`: its path below the folder that all of them share."""

    path: str
    place: str


class Bring(msgspec.Struct, frozen=True, tag=True):
    """Have the files of a model on a node. Answered by `Brought`, after any number of `Copying`."""

    number: int
    node: str
    parts: tuple[Part, ...]


class Check(msgspec.Struct, frozen=True, tag=True):
    """A node wasn't reached: is it there? Answered by `Joined` or `Left`."""

    node: str


class NodeFacts(Listening, frozen=True, kw_only=True):
    """Where a node's workers are reached; bytes of its devices, by its names for them."""

    total: dict[str, int]
    free: dict[str, int]


class Joined(msgspec.Struct, frozen=True, tag=True):
    """A node is there."""

    node: str
    facts: NodeFacts


class Left(msgspec.Struct, frozen=True, tag=True):
    """A node is gone."""

    node: str
    reason: str


class Copying(msgspec.Struct, frozen=True, tag=True):
    """How far a copy is, in bytes."""

    number: int
    done: int
    total: int


class Brought(msgspec.Struct, frozen=True, tag=True):
    """The files are there, at `paths`, in the order of the parts; or why they are not."""

    number: int
    paths: tuple[str, ...] = ()
    failure: str | None = None


class Connected(msgspec.Struct, frozen=True, tag=True):
    """The first message: Ray's cluster is reached; or why it isn't."""

    failure: str | None = None


Order: TypeAlias = Bring | Check
Report: TypeAlias = Joined | Left | Copying | Brought | Connected

encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode
decode_order: Callable[[bytes], Order] = msgspec.json.Decoder(Order).decode
decode_report: Callable[[bytes], Report] = msgspec.json.Decoder(Report).decode
