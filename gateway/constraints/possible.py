"""Finds the parts of a schema that no finite JSON satisfies, and those too wide to be kept.

llguidance finds neither when it compiles: `{"a": {"$ref": "#"}}` with `a` required goes on for
ever, and where an object has too many optional properties it says so at the first brace.
Takes schemas as `reading` has them, in the keywords of draft 2020-12.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from backends.contract.grammar_limits import ROW_ITEMS
from gateway.constraints.effort import every, everywhere, reached, referred
from gateway.constraints.grammars import CompileBudget
from gateway.constraints.keywords import with_parts

ONE_OF = ("anyOf", "oneOf")
WIDEST = ROW_ITEMS // 4 - 10  # optional properties, or values to choose from, at one place


def without_endless(carried: dict[str, Any], budget: CompileBudget, field: str) -> bool:
    """`False` takes the place of each part of `carried` that nothing satisfies, so that it is left
    out where it may be, and with it the definitions that nothing else refers to. Whether something
    satisfies the whole.
    """
    definitions: dict[str, Any] = carried.get("$defs", {})
    ends: set[str] = set()
    before = -1
    while len(ends) > before:
        before = len(ends)
        budget.check(field)
        for name in reversed(definitions):  # mostly they refer to those behind them
            if name not in ends and _ends(definitions[name], ends):
                ends.add(name)
    if not _ends(carried, ends):
        return False
    if len(ends) < len(definitions):
        for node in everywhere(carried):
            _prune(node, ends)
        for name in definitions.keys() - set(map(referred, reached(carried))):
            del definitions[name]
    return True


def _ends(node: Any, ends: set[str]) -> bool:
    """Whether something satisfies `node`. `ends`: definitions of which that is known."""
    if not isinstance(node, dict):
        return node is not False
    name = referred(node)
    if (name is not None and name not in ends) or not all(
        _ends(each, ends) for each in node.get("allOf", ())
    ):
        return False
    if any(not any(_ends(each, ends) for each in node[key]) for key in ONE_OF if key in node):
        return False
    types = node.get("type", ())
    types = {types} if isinstance(types, str) else set(types)
    if not types or "enum" in node or "const" in node or types - {"object", "array"}:
        return True
    needed = {"object": _members, "array": _items}
    return any(all(_ends(each, ends) for each in needed[kind](node)) for kind in types)


def _members(node: Mapping[str, Any]) -> Iterator[Any]:
    """What an object must have."""
    properties = node.get("properties", {})
    return (properties.get(name, True) for name in node.get("required", ()))


def _items(node: Mapping[str, Any]) -> Iterator[Any]:
    """What a list must have."""
    least, first = node.get("minItems", 0), node.get("prefixItems", ())
    yield from first[:least]
    if least > len(first):
        yield node.get("items", True)


def _prune(node: dict[str, Any], ends: set[str]) -> None:
    for key, value in node.items():
        node[key] = with_parts(key, value, lambda part: part if _ends(part, ends) else False)


def too_wide(carried: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Nodes, and their keyword with more than `WIDEST`; those inside come before what they are
    in. Whoever drops the keyword at once makes what is around it narrower.
    """
    definitions: Mapping[str, Any] = carried.get("$defs", {})
    for root in (*definitions.values(), carried):
        for node in reversed([*every(root)]):
            for key in ("properties", *ONE_OF):
                alone = {key: node.get(key, ()), "required": node.get("required", ())}
                if key in node and _width(alone, definitions) > WIDEST:
                    yield node, key


def _width(node: Any, definitions: Mapping[str, Any], depth: int = 0) -> int:
    """Of what may stand at the place of `node` at a time."""
    if not isinstance(node, Mapping) or depth > 4:
        return 1
    optional = len({*node.get("properties", ())} - {*node.get("required", ())})
    name = referred(node)
    parts = [definitions[name]] if name is not None else []
    for key in (*ONE_OF, "allOf"):
        parts += node.get(key, ())
    return max(1, optional) + sum(_width(each, definitions, depth + 1) for each in parts)
