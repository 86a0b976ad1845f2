"""Bounds the digits of numbers, which a small model else writes to the end of its context.

llguidance has no option for that, so the schema says it, with JSON Schema's own keywords. A number
within bounds has no exponent, as llguidance writes it.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from gateway.constraints.effort import every
from gateway.constraints.keywords import KEYWORDS, TYPES

Node: TypeAlias = Mapping[str, Any]

LARGEST = 10**16 - 1  # 16 digits: more than a double holds
FRACTION = 1e-10  # the smallest `multipleOf` that llguidance reads
MOST = 64  # numbers with limits of their own: each takes 1,400 of a lexer's fuel
IN_PLACE = frozenset(("$ref", "allOf", "anyOf", "oneOf"))
WRITTEN_OUT = frozenset(("enum", "const"))
LOWEST = frozenset(("minimum", "exclusiveMinimum"))
HIGHEST = frozenset(("maximum", "exclusiveMaximum"))
NUMBERS = frozenset(("integer", "number"))
# Definitions, which are compiled once, in place of what stands for them.
FREE, INTEGER, NUMBER = ({"$ref": f"#/$defs/{name}"} for name in ("free", "integer", "number"))
SHARED: tuple[tuple[Node | bool, Node], ...] = (
    (True, FREE), ({}, FREE), ({"type": "integer"}, INTEGER), ({"type": "number"}, NUMBER)
)  # fmt: skip


class Freedom(msgspec.Struct, frozen=True):
    """What may be said at a place. Where several schemas hold of one value llguidance puts them
    together, which it can't with fractions; and of `oneOf` it must see that they differ, which it
    doesn't through references.
    """

    fractions: bool
    shares: bool


def finite(schema: Node) -> dict[str, Any]:
    """`schema`, of keywords that llguidance has, with bounds where it has none."""
    definitions: Node = schema.get("$defs", {})
    nodes = [node for root in (schema, *definitions.values()) for node in every(root)]
    alone = not any(map(_meets_another, nodes))
    if sum(_is_number(node) and not (alone and _shared(node)) for node in nodes) > MOST:
        return dict(schema)
    free = Freedom(fractions=alone, shares=alone)
    made = _bounded(schema, free)
    inside = {name: _bounded(node, free) for name, node in definitions.items()}
    inside |= _DEFINITIONS if alone else {}
    return {**made, "$defs": inside} if inside else made


def _meets_another(node: Node) -> bool:
    placed = IN_PLACE & node.keys()
    return bool(placed) and (len(node.keys() - {"$defs"}) > 1 or len(node.get("allOf", ())) > 1)


def _is_number(node: Node) -> bool:
    """Possibly."""
    types = _types(node)
    return (not types or bool(types & NUMBERS)) and (IN_PLACE | WRITTEN_OUT).isdisjoint(node)


def _shared(node: Any) -> Node | None:
    """The definition that stands for `node`."""
    return next((shared for plain, shared in SHARED if node == plain), None)


def _bounded(node: Any, free: Freedom) -> Any:
    if free.shares and (shared := _shared(node)) is not None:
        return shared
    if not isinstance(node, Mapping):
        return node
    made = {key: _inside(key, value, free) for key, value in node.items() if key != "$defs"}
    return made if (IN_PLACE | WRITTEN_OUT) & made.keys() else _limited(made, free)


def _inside(key: str, value: Any, free: Freedom) -> Any:
    match KEYWORDS[key].holds if key in KEYWORDS else None:
        case "schema":
            return _bounded(value, free)
        case "schemas":
            free = msgspec.structs.replace(free, shares=free.shares and key != "oneOf")
            return [_bounded(each, free) for each in value]
        case "members":
            return {name: _bounded(each, free) for name, each in value.items()}
        case _:
            return value


def _limited(node: dict[str, Any], free: Freedom) -> dict[str, Any]:
    """`node` with what bounds the numbers it may be, and those in free values inside of it."""
    types = _types(node)
    if not types and not free.shares:
        return node
    types = types or TYPES
    added: dict[str, Any] = {}
    if types & NUMBERS:
        added |= _digits(node)
    if "number" in types and free.fractions and "multipleOf" not in node:
        added["multipleOf"] = FRACTION
    if "array" in types and free.shares and "items" not in node:
        added["items"] = FREE
    if "object" in types and free.shares and "additionalProperties" not in node:
        added["additionalProperties"] = FREE
    return {**node, **added}


def _digits(node: Node) -> dict[str, int]:
    """Limits of a number, unless it lies beyond them."""
    added = {}
    if LOWEST.isdisjoint(node) and all(node.get(key, 0) > -LARGEST for key in HIGHEST):
        added["minimum"] = -LARGEST
    if HIGHEST.isdisjoint(node) and all(node.get(key, 0) < LARGEST for key in LOWEST):
        added["maximum"] = LARGEST
    return added


def _types(node: Node) -> frozenset[str]:
    named = node.get("type", ())
    return frozenset([named] if isinstance(named, str) else named)


_DEFINITIONS: Mapping[str, Node] = {
    name: _limited(node, Freedom(fractions=True, shares=True))
    for name, node in {
        "free": {}, "integer": {"type": "integer"}, "number": {"type": "number"}
    }.items()
}  # fmt: skip
