"""Closes the objects of a schema whose writer said nothing of further properties.

JSON Schema lets such an object have any others. Who writes one means those that are listed, and a
small model invents members to the end of its context. Closed are objects that list properties,
where neither `additionalProperties` nor `unevaluatedProperties` allows more: in themselves, or in
what holds in the same place (`allOf`, `$ref`, …). What only the check knows (`if`,
`dependentSchemas`) counts as listed.

A definition may be a value of its own and a part of another (`allOf` with a base), which must not
close it: the grammar has it once as each.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from gateway.constraints.effort import referred
from gateway.constraints.grammars import Relaxation
from gateway.constraints.keywords import KEYWORDS
from gateway.constraints.reading import Schema

PART = "part-"  # before the name of a definition, as it is in other objects
ONE_OF = ("anyOf", "oneOf")
CONDITIONS = ("if", "then", "else", "dependentSchemas")
CONSTANT = ("enum", "const")
# What an object says by itself, and not by being one of some schemas.
OWN = frozenset((
    "$ref", "allOf", "properties", "patternProperties", "additionalProperties", "required",
    "unevaluatedProperties", *CONDITIONS,
))  # fmt: skip


class ClosedSchema(msgspec.Struct, frozen=True):
    """What the grammar has, in nodes of its own. `notes`: the objects that were closed. `enforced`:
    places where that is what the client's `unevaluatedProperties` says.
    """

    schema: dict[str, Any]
    notes: tuple[Relaxation, ...]
    enforced: frozenset[str]


def closed(schema: Schema) -> ClosedSchema:
    """`schema.carried`, which is no boolean, closed."""
    assert isinstance(schema.carried, dict)
    return _Closing(schema, schema.carried).closed()


class _Closing:
    def __init__(self, schema: Schema, carried: dict[str, Any]) -> None:
        self._carried = carried
        self._origins = schema.origins
        self._definitions: Mapping[str, Any] = carried.get("$defs", {})
        whole = schema.check if isinstance(schema.check, dict) else {}
        self._checked: Mapping[str, Any] = whole.get("$defs", {})
        self._named: set[str] = set()
        self._waiting: list[str] = []  # names of definitions, as the closed schema will have them
        self._notes: dict[Relaxation, None] = {}
        self._enforced: set[str] = set()

    def closed(self) -> ClosedSchema:
        root = self._value(self._carried)
        definitions = {}
        while self._waiting:
            name = self._waiting.pop()
            node = self._definitions[name.removeprefix(PART)]
            definitions[name] = self._part(node) if name.startswith(PART) else self._value(node)
        whole = {**root, "$defs": definitions} if definitions else root
        return ClosedSchema(whole, tuple(self._notes), frozenset(self._enforced))

    def _value(self, node: Any) -> Any:
        """`node` where it says all that is said of a value."""
        if not isinstance(node, dict):
            return node
        says = OWN & self._origins[id(node)].check.keys()
        keywords = node.keys() - {"$defs"}
        if keywords == says == {"allOf"} and len(node["allOf"]) == 1:
            return self._value(node["allOf"][0])
        if not says or keywords == {"$ref"}:
            return self._copied(node, whole=True)
        part, listed = self._part(node), self._listed(node)
        if not listed:
            return part
        properties = {name: part.get("properties", {}).get(name, True) for name in listed}
        return {**part, "properties": properties, "additionalProperties": False}

    def _part(self, node: Any) -> Any:
        """`node` where others say something of the same value, too."""
        return self._copied(node, whole=False) if isinstance(node, dict) else node

    def _copied(self, node: dict[str, Any], *, whole: bool) -> dict[str, Any]:
        """With the values inside closed, and what stands in the same place if that is `whole`."""
        here = self._value if whole else self._part
        made: dict[str, Any] = {}
        for key, held in node.items():
            match KEYWORDS[key].holds if key in KEYWORDS else None:
                case None:
                    continue
                case "reference":
                    made[key] = self._referred(node, whole=whole)
                case "schemas" if key in ONE_OF:
                    made[key] = [here(each) for each in held]
                case "schemas" if key == "allOf":
                    made[key] = [self._part(each) for each in held]
                case "schemas":
                    made[key] = [self._value(each) for each in held]
                case "schema":
                    made[key] = self._value(held)
                case "members":
                    made[key] = {name: self._value(each) for name, each in held.items()}
                case _:
                    made[key] = held
        return made

    def _referred(self, node: dict[str, Any], *, whole: bool) -> str:
        name = f"{'' if whole else PART}{referred(node)}"
        if name not in self._named:
            self._named.add(name)
            self._waiting.append(name)
        return f"#/$defs/{name}"

    def _listed(self, node: dict[str, Any]) -> list[str]:
        """The properties that `node` is to have no others than; none: it stays as it is."""
        origin = self._origins[id(node)]
        places = list(self._places(origin.check, set()))
        others = [each for each in places if each is not origin.check]
        names = dict.fromkeys(name for each in places for name in _names(each))
        fewest = max(each.get("minProperties", 0) for each in places)
        if (
            "additionalProperties" in origin.check
            or not any("properties" in each for each in places)
            or any(_allows_more(each) for each in places)
            or any("patternProperties" in each for each in others)
            or fewest > len(names)
        ):
            return []
        if "unevaluatedProperties" not in origin.check:
            further = Relaxation(origin.place, "additionalProperties", "none", checked=False)
            self._notes[further] = None
        elif not any({*ONE_OF, *CONDITIONS} & each.keys() for each in places):
            self._enforced.add(origin.place)
        return list(names)

    def _places(self, check: Any, seen: set[int]) -> Iterator[Mapping[str, Any]]:
        """The schemas, as the check has them, that hold where `check` does, in the order in which
        members are to be written.
        """
        if not isinstance(check, Mapping) or id(check) in seen:
            return
        seen.add(id(check))
        yielded = False
        for key in sorted(check, key=(*ONE_OF, *CONDITIONS).__contains__):
            if key == "properties":
                yielded = True
                yield check
            for part in self._held(check, key):
                yield from self._places(part, seen)
        if not yielded:
            yield check

    def _held(self, check: Mapping[str, Any], key: str) -> list[Any]:
        match key:
            case "allOf" | "anyOf" | "oneOf":
                return list(check[key])
            case "if" | "then" | "else":
                return [check[key]]
            case "dependentSchemas":
                return list(check[key].values())
            case "$ref":
                return [self._checked[referred(check) or ""]]
            case _:
                return []


def _names(check: Mapping[str, Any]) -> Iterator[str]:
    yield from check.get("properties", ())
    yield from check.get("required", ())
    for name, others in check.get("dependentRequired", {}).items():
        yield from (name, *others)
    yield from check.get("dependentSchemas", ())


def _allows_more(check: Mapping[str, Any]) -> bool:
    """Its writer wants more than is listed, or a value that is written out."""
    further = (check.get(key, False) for key in ("additionalProperties", "unevaluatedProperties"))
    return any(each is not False for each in further) or not {*CONSTANT}.isdisjoint(check)
