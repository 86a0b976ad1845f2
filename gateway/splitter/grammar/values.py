"""Values in notations other than JSON: Python's literals, bare dicts. One walk, several notations.

Numbers are written alike in all of them, so they are JSON of their schema.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gateway.splitter.grammar.lark import GUIDANCE, Lark, literal, one_of, sequence
from gateway.splitter.grammar.schemas import (
    Alternative,
    ArrayValue,
    EnumValue,
    ObjectValue,
    ScalarValue,
    Schema,
    SchemaReader,
    StringValue,
)
from gateway.splitter.grammar.sections import Unwritable, gap, members

COMPACT = {**GUIDANCE, "whitespace_flexible": False}
# As JSON has it (RFC 8259), but no more digits than a double holds.
_NUMBER = r"-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,16})?([eE][+-]?[0-9]{1,2})?"
DEEPEST = 50  # schemas in schemas


class GrammarNotation(Protocol):
    """How one syntax writes what is no number."""

    separator: str  # an expression: between items, and between members
    words: Mapping[Any, Sequence[str]]  # how True, False and None are written

    def text(self, found: StringValue) -> str:
        """An expression: a string of this kind."""
        ...

    def constant(self, text: str) -> str:
        """An expression: this string."""
        ...

    def key(self, key: str) -> str:
        """An expression: the key of a member, up to its value."""
        ...

    def any_key(self, declared: Sequence[str]) -> str:
        """An expression: a key that is none of those declared, up to its value."""
        ...


class Values:
    """The values of one schema as rules."""

    def __init__(self, lark: Lark, notation: GrammarNotation, reading: SchemaReader) -> None:
        self._lark = lark
        self._notation = notation
        self._reading = reading
        self._rules: dict[int, tuple[Any, str]] = {}  # a schema is kept, so that its id stays its
        self._depth = 0
        self._anything: dict[str, Any] = {}

    def of(self, schema: Any) -> str:
        """The name of a rule: one value. Raises Unwritable where the schema allows none."""
        schema = self._anything if schema in ({}, True) else schema
        known = self._rules.get(id(schema))
        if known is not None:
            return known[1]
        name = self._lark.reserve()
        self._rules[id(schema)] = schema, name
        self._lark.define(name, self._one(schema))
        return name

    def _one(self, schema: Any) -> str:
        if self._depth >= DEEPEST:
            raise Unwritable(f"schemas nested deeper than {DEEPEST} levels")
        self._depth += 1
        found = [self._written(option) for option in self._reading.alternatives(schema)]
        self._depth -= 1
        if not any(found):
            raise Unwritable("a schema that no value satisfies")
        return one_of(filter(None, found))

    def _written(self, found: Alternative) -> str:
        match found:
            case StringValue():
                return self._notation.text(found)
            case EnumValue(values):
                return one_of(map(self.constant, values)) if values else ""
            case ScalarValue():
                return self._scalar(found)
            case ArrayValue():
                return self._items(found)
            case ObjectValue():
                return self._between("{", [self.members(found)], "}")

    def _scalar(self, found: ScalarValue) -> str:
        match found.kind:
            case "boolean":
                return one_of((self.constant(True), self.constant(False)))  # noqa: FBT003
            case "null":
                return self.constant(None)
            case "number" if len(found.schema) == 1:
                return self._lark.regex(_NUMBER)
            case _:
                return self._lark.json({"x-guidance": COMPACT, **found.schema})

    def constant(self, value: Any) -> str:
        """An expression: this value and no other."""
        match value:
            case bool() | None:
                return one_of(map(literal, self._notation.words[value]))
            case str():
                return self._notation.constant(value)
            case list():
                return self._between("[", [self.constant(item) for item in value], "]")
            case dict():
                pairs = [f"{self._notation.key(key)} {self.constant(value[key])}" for key in value]
                return self._between("{", pairs, "}")
            case _:
                return literal(json.dumps(value))

    def _between(self, opening: str, parts: Sequence[str], closing: str) -> str:
        inside = f" {self._notation.separator} ".join(parts)
        space = gap(self._lark)
        return sequence(
            (literal(opening), space, inside, space if inside else "", literal(closing))
        )

    def _items(self, found: ArrayValue) -> str:
        if found.most == 0:
            return self._between("[", [], "]")
        each = self.of(found.each)
        most = "" if found.most is None else max(found.most, found.fewest) - 1
        more = f"({self._notation.separator} {each}){{{max(found.fewest - 1, 0)},{most}}}"
        listed = f"{each} {more}" if most != 0 else each
        return self._between("[", [listed if found.fewest else f"({listed})?"], "]")

    def members(self, found: ObjectValue) -> str:
        """An expression: the members of an object, in the order of their declaration."""
        notation = self._notation
        declared = [
            (f"{notation.key(field.key)} {self.of(field.schema)}", field.required)
            for field in found.fields
        ]
        if found.others is None:
            return members(self._lark, declared, notation.separator)
        key = notation.any_key([field.key for field in found.fields])
        other = self._lark.rule(f"{key} {self.of(found.others)}")
        others = self._lark.rule(f"{other} ({notation.separator} {other})*")
        return members(self._lark, [*declared, (others, False)], notation.separator)


def arguments(reading: SchemaReader, schema: Schema) -> ObjectValue:
    """The arguments that a tool's schema declares. Raises Unwritable where they are no object."""
    objects = [found for found in reading.alternatives(schema) if isinstance(found, ObjectValue)]
    if not objects:
        raise Unwritable("arguments that are no object")
    if len(objects) == 1:
        return objects[0]
    return _merged(objects)


def _merged(objects: Sequence[ObjectValue]) -> ObjectValue:
    """Arguments of several shapes as one: what one of them lacks is not required."""
    everywhere = [{field.key for field in each.fields if field.required} for each in objects]
    fields = {field.key: field for each in reversed(objects) for field in each.fields}
    optional = tuple(
        type(field)(field.key, field.schema, all(field.key in keys for keys in everywhere))
        for field in fields.values()
    )
    others = next((each.others for each in objects if each.others is not None), None)
    return ObjectValue({}, optional, others)


def json_type(value: Any) -> str:
    """The type of a JSON value, "number" for every number."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"
