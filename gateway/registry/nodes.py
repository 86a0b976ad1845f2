"""Devices of several machines in one ledger: their names, and where a model had best lie.

A device of this machine is called as engines call it, `cuda:0`; that of another node has the node's
name before it, `node-a/cuda:0`. A model lies on one node, unless it is a command that has other
nodes compute for it. Pure: knows no network and no engine.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from itertools import groupby
from typing import TypeAlias, TypeVar

from backends.contract.catalog import Cards, Placement
from config.settings import TURN

HERE = ""  # the gateway's own machine
ALONE = frozenset({HERE})
SEPARATOR = "/"
Value = TypeVar("Value")
Seconds: TypeAlias = Mapping[str, float]  # by node


def named(node: str, devices: Mapping[str, Value]) -> dict[str, Value]:
    """What a node calls its `devices`, as the ledger does."""
    return {name_at(node, device): value for device, value in devices.items()}


def name_at(node: str, device: str) -> str:
    """The ledger's name for what `node` calls `device`."""
    return device if node == HERE else f"{node}{SEPARATOR}{device}"


def without_turns(devices: Mapping[str, Value]) -> dict[str, Value]:
    """Those that are devices, and no turns (`ModelConfig.one_of`)."""
    return {name: value for name, value in devices.items() if not name.startswith(TURN)}


def bare(devices: Mapping[str, Value]) -> dict[str, Value]:
    """The ledger's `devices`, as their node calls them."""
    return {device.rpartition(SEPARATOR)[2]: value for device, value in devices.items()}


def nodes_of(devices: Collection[str]) -> frozenset[str]:
    """The nodes that they belong to; this machine, where there are none. Asked for hundreds of ways
    in a decision.
    """
    return _nodes_of(tuple(devices))


def node_of(devices: Collection[str]) -> str:
    """The node that a model on them is started on: that of all of them, this machine where they are
    of several.
    """
    nodes = nodes_of(devices)
    return next(iter(nodes)) if len(nodes) == 1 else HERE


@lru_cache(maxsize=65_536)
def _nodes_of(devices: tuple[str, ...]) -> frozenset[str]:
    there = (device for device in devices if not device.startswith(TURN))
    return frozenset(device.rpartition(SEPARATOR)[0] for device in there) or ALONE


def in_order(model: str, copying: Seconds) -> Sequence[str]:
    """The nodes, the best for `model` first, by the seconds until they have its files. Among equals
    each model has an order of its own, so that models spread over the nodes, and one comes back to
    where it was (rendezvous hashing).
    """
    return sorted(copying, key=lambda node: (copying[node], _affinity(model, node)))


def _affinity(model: str, node: str) -> bytes:
    return blake2b(f"{model}\0{node}".encode(), digest_size=8).digest()


def fewest(placements: Sequence[Placement], need: int, cards: Cards) -> Sequence[Placement]:
    """Of the ways to lie on a node, those that take as few devices as `need` bytes do when nothing
    else is there; all, if it fits in none. The many ways to lie on more would each have to be
    looked at, on every node, and no model should be cut into more parts than it must.
    """

    def has_room(placement: Placement) -> bool:
        return all(need * part <= cards.get(device, need) for device, part in placement.items())

    for _, alike in groupby(placements, key=len):
        if roomy := [placement for placement in alike if has_room(placement)]:
            return roomy
    return placements
