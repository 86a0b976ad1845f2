"""Text to JSON by a tool's schema, for syntaxes that write every value as bare text.

The rules: among the declared types the first that fits of null, integer, number, boolean, object,
array, string. A declared string is the text untouched; what fits no declared type is a string, and
what has none is one unless it is an object or an array. Nothing is dropped.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeAlias

from gateway.splitter.payloads import json_text, python_text

Schema: TypeAlias = Mapping[str, Any]

STRING = frozenset({"string"})
MOST_SCHEMAS = 100  # read for one parameter: references can make a small schema endless
MOST_VALUES = 1000  # of all lists of values together
_DEFINITIONS = ("$defs", "definitions")
_KEYWORDS = (
    "type", "nullable", "enum", "const", "properties", "items", "anyOf", "oneOf", "allOf",
    *_DEFINITIONS,
)  # fmt: skip
_BOOLEANS = {"true": "true", "1": "true", "false": "false", "0": "false"}
_INTEGER = re.compile(r"[+-]?\d++(?:\.0++)?+", re.ASCII)
_SPELLINGS = {
    "str": "string", "int": "integer", "float": "number", "double": "number", "bool": "boolean",
    "dict": "object", "list": "array", "tuple": "array",
}  # fmt: skip
_TYPE_OF = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    dict: "object",
    list: "array",
}


class Declared:
    """What a tool's schema declares of one value; worked out once for every place in the schema.

    A schema comes with the request and is untrusted, too: of what it lists only the beginning is
    read, so that a place costs no more than about a fifth of a millisecond whatever it holds.
    """

    __slots__ = ("_items", "_properties", "_schema", "_types")

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._properties: dict[str, Declared] = {}
        self._items: Declared | None = None
        self._types: frozenset[str] | None = None

    @property
    def types(self) -> frozenset[str]:
        """The types that are declared in one way or another; {"string"} if none."""
        if self._types is None:
            self._types = types_of(self._schema)
        return self._types

    @property
    def is_untyped(self) -> bool:
        """Nothing says what it is: then its types are this very set."""
        return self.types is STRING

    @property
    def is_string(self) -> bool:
        """It is a string, and said to be one."""
        return self.types == STRING and "type" in self._schema

    def property(self, key: str) -> "Declared":
        """What is declared of a property."""
        found = self._properties.get(key)
        if found is None:
            schema = property_of(self._schema, key)
            if not schema:
                return NOTHING
            found = self._properties[key] = Declared(schema)
        return found

    def items(self) -> "Declared":
        """What is declared of an array's items."""
        if self._items is None:
            self._items = Declared(items_of(self._schema))
        return self._items


NOTHING = Declared({})


def property_of(schema: Schema, key: str) -> Schema:
    """The schema of a property, the first that one of the alternatives declares; else empty."""
    for each in _ways(schema):
        properties = each.get("properties")
        if isinstance(properties, Mapping) and key in properties:
            return _resolved(properties[key], each)
    return {}


def items_of(schema: Schema) -> Schema:
    """The schema of an array's items, the first that one of the alternatives declares; else
    empty.
    """
    return next((_resolved(each["items"], each) for each in _ways(schema) if "items" in each), {})


def _ways(schema: Schema) -> Iterator[Schema]:
    """A schema and its alternatives, and theirs."""
    waiting = [schema]
    for _ in range(MOST_SCHEMAS):
        if not waiting:
            return
        yield (each := waiting.pop(0))
        waiting += _alternatives(each, MOST_SCHEMAS - len(waiting))


def _resolved(schema: Any, root: Schema) -> Schema:
    """What counts of a subschema, with its root's definitions, and a `$ref` into them followed."""
    if not isinstance(schema, Mapping):
        return {}
    definitions = {key: root[key] for key in _DEFINITIONS if key in root}
    for _ in range(10):  # a reference may lead to another; a circle ends here
        resolved = {**definitions, **{key: schema[key] for key in _KEYWORDS if key in schema}}
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return resolved
        target: Any = resolved
        for step in reference[:MOST_VALUES].removeprefix("#/").split("/"):
            target = target.get(step) if isinstance(target, Mapping) else None
        if not isinstance(target, Mapping):
            return {}
        schema = target
    return {}


def types_of(schema: Schema) -> frozenset[str]:
    """The types that a schema declares in one way or another; {"string"} if none."""
    types: set[str] = set()
    waiting = [schema]
    values_left = MOST_VALUES
    for _ in range(MOST_SCHEMAS):
        if not waiting:
            break
        each = waiting.pop()
        named = _named(each)
        types |= named
        if not named - {"null"}:
            values = _values(each, values_left)
            values_left -= len(values)
            types |= {_TYPE_OF.get(type(value), "null") for value in values}
            types.update({"object"} if "properties" in each else ())
            types.update({"array"} if "items" in each else ())
            waiting += _alternatives(each, MOST_SCHEMAS - len(waiting))
    return frozenset(types) or STRING


def _named(schema: Schema) -> set[str]:
    """The types that are named as such."""
    types = {"null"} if schema.get("nullable") is True else set()
    match schema.get("type"):
        case str(single):
            types.add(_SPELLINGS.get(single, single))
        case list(several):
            named = (kind for kind in several[:MOST_SCHEMAS] if isinstance(kind, str))
            types.update(_SPELLINGS.get(kind, kind) for kind in named)
    return types


def _values(schema: Schema, most: int) -> list[Any]:
    """The values that are listed."""
    listed = schema.get("enum")
    values = listed[:most] if isinstance(listed, list) else []
    return [*values, schema["const"]] if "const" in schema else values


def _alternatives(schema: Schema, most: int) -> list[Schema]:
    found: list[Schema] = []
    for keyword in ("anyOf", "oneOf", "allOf"):
        listed = schema.get(keyword)
        if isinstance(listed, list):
            rest = max(0, most - len(found))
            found += [_resolved(alternative, schema) for alternative in listed[:rest]]
    return found


def coerce(text: str, types: frozenset[str]) -> str:
    """`text` as JSON text of one of `types`; as a JSON string where none fits."""
    stripped = text.strip()
    for kind, read in _READ_AS.items():
        if kind in types and (value := read(stripped)) is not None:
            return value
    return f'"{json_text.escaped(text)}"'


def guess(text: str) -> str:
    """`text` as the JSON it is; as a JSON string if it is none."""
    try:
        json_text.loaded(text)
    except ValueError:
        return f'"{json_text.escaped(text)}"'
    return text.strip()


def untyped(text: str) -> str:
    """`text` as the JSON object or array it is; as a JSON string if it is none."""
    return guess(text) if text.lstrip()[:1] in ("{", "[") else f'"{json_text.escaped(text)}"'


def _literal(text: str, kind: type[dict[str, Any]] | type[list[Any]]) -> str | None:
    """An object or array as JSON, or as Python writes it."""
    try:
        value = json_text.loaded(text)
    except ValueError:
        return python_text.as_json(text) if text[:1] == ("{" if kind is dict else "[") else None
    return text if isinstance(value, kind) else None


def _integer(text: str) -> str | None:
    return json_text.number(text.partition(".")[0]) if _INTEGER.fullmatch(text) else None


# In this order; None: it is none.
_READ_AS: Mapping[str, Callable[[str], str | None]] = {
    "null": lambda text: "null" if text == "None" or text.lower() == "null" else None,
    "integer": _integer,
    "number": json_text.number,
    "boolean": lambda text: _BOOLEANS.get(text.lower()),
    "object": partial(_literal, kind=dict),
    "array": partial(_literal, kind=list),
}
