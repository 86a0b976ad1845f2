"""Estimates what compiling a schema costs llguidance, from its structure, before it is tried.

llguidance counts its work in most places, but not in all: optional properties and alternatives
multiply each other, every pair of `patternProperties` is compared, a definition that refers to
another takes stack, and a stack that overflows ends the process. The weights are measured: one unit
is 0.07 µs on a slow core.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from gateway.constraints.grammars import SCHEMA_EFFORT, SCHEMA_LEVELS
from gateway.constraints.keywords import with_parts

SCALARS = frozenset(("null", "boolean", "integer", "number", "string"))
ALTERNATIVE = 50  # an alternative costs as much as so many properties squared
PAIR = 850  # two regexes compared for whether they have a text in common
COUNTED = 400  # `minProperties` makes a copy of the object for each property
MOST = 1e15


def bounded(carried: dict[str, Any], field: str) -> None:
    """Raises InvalidRequest for a schema that takes too long, or too much stack."""
    definitions: dict[str, Any] = carried.get("$defs", {})
    SCHEMA_LEVELS.check(_levels(carried, definitions), field)
    sizes = _Sizes(definitions)
    total = sum(map(sizes.effort, everywhere(carried)))
    SCHEMA_EFFORT.check(math.ceil(min(total, MOST)), field)


def inside(node: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The schemas that stand in `node`; not those it refers to."""
    found: list[Any] = []
    for key, value in node.items():
        with_parts(key, value, found.append)
    return (part for part in found if isinstance(part, dict))


def referred(node: Mapping[str, Any]) -> str | None:
    """The definition that `node` refers to."""
    reference = node.get("$ref")
    return reference.removeprefix("#/$defs/") if reference is not None else None


def every(root: Any) -> Iterator[dict[str, Any]]:
    """All schemas in `root`, and itself."""
    stack = [root] if isinstance(root, dict) else []
    while stack:
        node = stack.pop()
        yield node
        stack += inside(node)


def everywhere(carried: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All schemas in `carried` and in its definitions."""
    for root in (carried, *carried.get("$defs", {}).values()):
        yield from every(root)


def reached(carried: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All schemas in `carried` and in the definitions that it comes to."""
    definitions: Mapping[str, Any] = carried.get("$defs", {})
    seen, waiting = set[str](), [carried]
    while waiting:
        root = waiting.pop()
        yield from every(root)
        new = names_in(root) - seen
        seen |= new
        waiting += (definitions[name] for name in new)


def values_in(value: Any) -> Iterable[Any]:
    """What is in an object or a list, whatever it says."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


class _Size:
    """What one schema comes to, with all that holds in the same place."""

    def __init__(self, node: Mapping[str, Any]) -> None:
        types = node.get("type", ["object"])
        named = [types] if isinstance(types, str) else types
        self.alternatives = 0.0 if SCALARS.issuperset(named) else 1.0
        self.properties = len({*node.get("properties", ()), *node.get("required", ())})
        self.patterns = len(node.get("patternProperties", ()))
        self.together = 1

    def both(self, other: "_Size") -> None:
        """What satisfies both."""
        self.alternatives = min(max(self.alternatives, 1) * max(other.alternatives, 1), MOST)
        self.properties += other.properties
        self.patterns += other.patterns
        self.together += other.together

    def either(self, others: list["_Size"]) -> None:
        """What satisfies one of `others` too."""
        branches = sum(each.alternatives for each in others)
        self.alternatives = min(max(self.alternatives, 1) * max(branches, 1), MOST)
        self.properties += max(each.properties for each in others)
        self.patterns += max(each.patterns for each in others)
        self.together += max(each.together for each in others)


class _Sizes(msgspec.Struct, eq=False):
    """Sizes of schemas, each found once."""

    definitions: Mapping[str, Any]
    known: dict[int, _Size] = {}

    def effort(self, node: dict[str, Any]) -> float:
        """Units for `node` alone, its parts not counted."""
        size = self.of(node)
        copies = size.alternatives if size.alternatives > 1 else 0
        squared = size.properties**2 if not copies else (size.properties + ALTERNATIVE) ** 2
        counted = (
            COUNTED if size.properties and {"minProperties", "maxProperties"} & node.keys() else 1
        )
        pairs = PAIR * math.comb(size.patterns, 2) * size.together
        return max(copies, 1) * (squared * counted + pairs)

    def of(self, node: Any) -> _Size:
        if not isinstance(node, dict):
            return _Size({})
        if id(node) not in self.known:
            self.known[id(node)] = _Size(node)  # what a circle comes back to
            self.known[id(node)] = self._measured(node)
        return self.known[id(node)]

    def _measured(self, node: dict[str, Any]) -> _Size:
        size = _Size(node)
        for part in node.get("allOf", ()):
            size.both(self.of(part))
        if (name := referred(node)) is not None:
            size.both(self.of(self.definitions[name]))
        for key in ("anyOf", "oneOf"):
            if key in node:
                size.either([self.of(part) for part in node[key]])
        return size


def _levels(carried: dict[str, Any], definitions: dict[str, Any]) -> int:
    """How deep a compiler that follows references can get at most, whichever way it goes: a
    definition is entered once, so a circle is as deep as all that is in it.
    """
    depth = {name: _depth(node) for name, node in definitions.items()}
    ahead = {name: names_in(node) for name, node in definitions.items()}
    reach: dict[str, int] = {}
    while ready := [n for n in ahead if n not in reach and ahead[n] <= reach.keys()]:
        for name in ready:
            reach[name] = depth[name] + max((reach[each] for each in ahead[name]), default=0)
    circles = sum(depth[name] for name in ahead if name not in reach)
    return _depth(carried) + circles + max(reach.values(), default=0)


def names_in(root: Any) -> set[str]:
    """The definitions that `root` refers to."""
    return {name for node in every(root) if (name := referred(node)) is not None}


def _depth(root: Any) -> int:
    return len(level_sizes(root, inside)) if isinstance(root, dict) else 0


def level_sizes(root: Any, parts: Callable[[Any], Iterable[Any]]) -> list[int]:
    """How many nodes are on each level of `root`, which has such `parts`, and is one. Counted level
    by level, without recursion: its depth is what is being measured.
    """
    level, sizes = [root], list[int]()
    while level:
        sizes.append(len(level))
        level = [part for node in level for part in parts(node)]
    return sizes
