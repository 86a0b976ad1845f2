"""The values that a JSON schema allows, for syntaxes that don't write their values as JSON.

A schema is read as alternatives of one type each. What this can't say (`not`, `uniqueItems`, an
unknown pattern..) is left out, so that everything valid stays possible, and named.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import msgspec
from llguidance import LLMatcher, regex_to_lark

from gateway.constraints.effort import referred
from gateway.constraints.lark_reading import ReadGrammar
from gateway.constraints.reading import LENGTHS

Schema: TypeAlias = Mapping[str, Any]

TOGETHER = "together"  # where a schema stands whose parts can't be put into one
ANYTHING: tuple[Any, ...] = ({}, True)
GRAMMAR = "grammar"  # where a custom tool's stands in the schema that is made for its input
MOST_ALTERNATIVES = 200  # of one value: references can make a small schema endless
MOST_LOOKED_AT = 20_000  # schemas of one tool
LONGEST_PATTERN = 1000  # characters
_MOST_STEPS = 20  # references that lead to references
_KINDS = ("string", "integer", "number", "boolean", "null", "array", "object")
LEFT_OUT = frozenset(
    ("minProperties", "maxProperties", "patternProperties", "prefixItems", "format")
)
_TYPE_OF = {
    type(None): "null", bool: "boolean", int: "number", float: "number", str: "string",
    list: "array", dict: "object",
}  # fmt: skip
_TEXT = ("pattern", "format", "minLength", "maxLength")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")


class StringValue(msgspec.Struct, frozen=True):
    """A string. `pattern`: a regular expression of the whole (Rust's syntax, for Lark). `grammar`:
    that of a custom tool's input. `schema`: the same as a schema.
    """

    kind: ClassVar[str] = "string"
    pattern: str = ""
    shortest: int = 0
    longest: int | None = None
    schema: Schema = msgspec.field(default_factory=lambda: {"type": "string"})
    grammar: ReadGrammar | None = None

    @property
    def free(self) -> bool:
        """Any string."""
        plain = not self.pattern and self.grammar is None
        return plain and not self.shortest and self.longest is None


class EnumValue(msgspec.Struct, frozen=True):
    """One of some values."""

    values: tuple[Any, ...]


class ScalarValue(msgspec.Struct, frozen=True):
    """A number, a boolean or null: JSON of `schema`, which has a `type`."""

    schema: Schema

    @property
    def kind(self) -> str:
        """The type."""
        return str(self.schema["type"])


class ArrayValue(msgspec.Struct, frozen=True):
    """An array: JSON of `schema`, whose items are `each`."""

    kind: ClassVar[str] = "array"
    schema: Schema
    each: Any
    fewest: int = 0
    most: int | None = None


class Field(msgspec.Struct, frozen=True):
    """A property of an object."""

    key: str
    schema: Any
    required: bool


class ObjectValue(msgspec.Struct, frozen=True):
    """An object: JSON of `schema`. `others`: what undeclared properties are; None: none may be."""

    kind: ClassVar[str] = "object"
    schema: Schema
    fields: tuple[Field, ...]
    others: Any = None


Alternative: TypeAlias = StringValue | EnumValue | ScalarValue | ArrayValue | ObjectValue


class SchemaReader:
    """Reads the parts of one schema. `relaxed`: what was left out, in words. `exact`: by the
    letter; else what names properties means an object, and what is listed has the right type.
    """

    def __init__(self, root: Schema, place: str = "$", *, exact: bool = False) -> None:
        self.root = root
        self._exact = exact
        self._place = place
        self._left = MOST_LOOKED_AT
        self.relaxed: list[str] = []

    def alternatives(self, schema: Any) -> tuple[Alternative, ...]:
        """What a value may be; nothing where the schema allows none."""
        found = (each for option in self.options(schema) for each in self.plain(option))
        return tuple({repr(each): each for each in found}.values())

    def options(self, schema: Any) -> list[Schema]:
        """The schemas of which a value satisfies one, each without `anyOf` and `oneOf`."""
        found: list[Schema] = []
        waiting = [schema]
        for _ in range(MOST_ALTERNATIVES):
            if not waiting:
                return found
            looked_at = self.resolved(waiting.pop(0))
            options = [] if TOGETHER in looked_at else _options(looked_at)
            waiting += options
            found += [] if options else [looked_at]
        return [*found, {TOGETHER: {"anyOf": waiting}}]

    def beyond(self, option: Schema) -> Schema | None:
        """`option` as a schema that can stand alone, if it says more than `plain` tells."""
        if TOGETHER in option:
            return self.alone(option[TOGETHER])
        constant = not option.keys().isdisjoint(("enum", "const"))
        says = option.keys() - {"type", "$defs"}
        if not LEFT_OUT.isdisjoint(option) or (constant and len(says) > 1):
            return self.alone(option)
        return None

    def resolved(self, schema: Any, depth: int = 0) -> Schema:
        """A schema as an object, references followed and what all of `allOf` say put together.

        A circle of them stays `TOGETHER`, and so does what is beyond `MOST_LOOKED_AT`.
        """
        self._left -= 1
        if depth >= _MOST_STEPS or self._left < 0:
            return {TOGETHER: {"allOf": [schema]}}
        if schema is False:
            return {"enum": []}
        if not isinstance(schema, Mapping):
            return {}
        reference = referred(schema)
        parts = [] if reference is None else [self.root["$defs"][reference]]
        parts += schema.get("allOf", ())
        if not parts:
            return schema
        beside = _without(schema, "$ref", "allOf")
        resolved = [self.resolved(part, depth + 1) for part in parts]
        return _together(schema, [beside, *resolved]) if beside or len(parts) > 1 else resolved[0]

    def alone(self, schema: Any) -> Schema:
        """A part of the schema that can stand alone: with what references lead to."""
        return {"$defs": self.root.get("$defs", {}), **schema}

    def plain(self, schema: Schema) -> list[Alternative]:
        """What a value may be by one of the `options`."""
        self.relaxed += [f'{self._place}: "{key}"' for key in schema if key in LEFT_OUT]
        if not schema.keys().isdisjoint(("enum", "const")):
            values = [schema["const"]] if "const" in schema else schema["enum"]
            listed = (each for each in values if not self._exact or _is_of(each, schema))
            return [EnumValue(tuple(listed))]
        implied = not self._exact or "type" in schema
        return [self._of(kind, schema) for kind in kinds(schema, implied=implied)]

    def _of(self, kind: str, schema: Schema) -> Alternative:
        match kind:
            case "string":
                return self._text(schema)
            case "array":
                counts = schema.get("minItems", 0), schema.get("maxItems")
                return ArrayValue({**schema, "type": "array"}, schema.get("items", {}), *counts)
            case "object":
                return _fields({**schema, "type": "object"}, exact=self._exact)
            case _:
                bounds = {key: schema[key] for key in _BOUNDS if key in schema}
                return ScalarValue(
                    {"type": kind} | (bounds if kind in ("integer", "number") else {})
                )

    def _text(self, schema: Schema) -> StringValue:
        if isinstance(grammar := schema.get(GRAMMAR), ReadGrammar):  # no client can send that
            return StringValue(schema=schema, grammar=grammar)
        pattern = _whole(schema["pattern"]) if "pattern" in schema else ""
        if "pattern" in schema and not pattern:
            self.relaxed.append(f'{self._place}: "pattern"')
        shortest, longest = schema.get("minLength", 0), schema.get("maxLength")
        if max(shortest, longest or 0) > LENGTHS:
            self.relaxed.append(f'{self._place}: "maxLength"')
        kept = {key: schema[key] for key in _TEXT if key in schema}
        return StringValue(pattern, shortest, longest, {"type": "string", **kept})


def _is_of(value: Any, schema: Schema) -> bool:
    kind, allowed = json_type(value), kinds(schema, implied=False)
    return kind in allowed or (kind == "number" and "integer" in allowed and value % 1 == 0)


def kinds(schema: Schema, *, implied: bool = True) -> tuple[str, ...]:
    """The types that a schema names or (`implied`) means; all of them where it says nothing."""
    named = schema.get("type", ())
    listed = [named] if isinstance(named, str) else named
    found = [kind for kind in _KINDS if kind in listed]
    if "number" in found and "integer" in found:
        found.remove("integer")
    if not found and implied and ("properties" in schema or "required" in schema):
        found = ["object"]
    if not found and implied and "items" in schema:
        found = ["array"]
    return tuple(found) or tuple(kind for kind in _KINDS if kind != "integer")


def _without(schema: Schema, *keywords: str) -> Schema:
    return {key: schema[key] for key in schema if key not in (*keywords, "$defs")}


def _options(schema: Schema) -> list[Any]:
    """The schemas of which one has to fit, each with what stands beside them."""
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            beside = _without(schema, keyword)
            return [{"allOf": [beside, option]} if beside else option for option in schema[keyword]]
    return []


def _together(schema: Schema, parts: Sequence[Schema]) -> Schema:
    """What several schemas say of one value, which are those of `schema`. Where two say it of the
    same, the later counts; `schema` is kept for who can have both.
    """
    whole: dict[str, Any] = {}
    apart = False
    for part in parts:
        both = whole.get("properties", {}), part.get("properties", {})
        apart = apart or _contradict(whole, part)
        properties = {**both[0]} | {
            key: each for key, each in both[1].items() if key not in both[0] or each not in ANYTHING
        }
        required = [*whole.get("required", ()), *part.get("required", ())]
        whole |= part
        whole |= {"properties": properties} if properties else {}
        whole |= {"required": required} if required else {}
    return whole | ({TOGETHER: schema} if apart else {})


def _contradict(one: Schema, other: Schema) -> bool:
    """Two schemas of one value say of the same what can't be told by one of them."""
    if TOGETHER in one or TOGETHER in other:
        return True
    if any(
        one[key] != other[key] for key in one.keys() & other.keys() - {"properties", "required"}
    ):
        return True
    names, others = (each.get("properties", {}) for each in (one, other))
    if any(
        names[key] != others[key] and names[key] not in ANYTHING and others[key] not in ANYTHING
        for key in names.keys() & others.keys()
    ):
        return True
    closed = ((one, others, names), (other, names, others))
    return any(
        "additionalProperties" in each and not theirs.keys() <= own.keys()
        for each, theirs, own in closed
    ) or not LEFT_OUT.isdisjoint((*one, *other))


def _fields(schema: Schema, *, exact: bool) -> ObjectValue:
    """An object's properties; undeclared ones where they are allowed, or nothing is declared."""
    required, declared = {*schema.get("required", ())}, schema.get("properties", {})
    fields = [Field(key, inner, key in required) for key, inner in declared.items()]
    fields += [Field(key, {}, required=True) for key in sorted(required - set(declared))]
    others = schema.get(
        "additionalProperties", None if "properties" in schema and not exact else {}
    )
    return ObjectValue(
        schema, tuple(fields), None if others is False else {} if others is True else others
    )


def _whole(pattern: str) -> str:
    """A schema's pattern, which is searched for, as one of the whole string; "" if it is too much.

    Anchors count at the ends alone.
    """
    if len(pattern) > LONGEST_PATTERN:
        return ""
    begins, ends = pattern.startswith("^"), re.search(r"(?<!\\)(?:\\\\)*\$$", pattern) is not None
    body = pattern[begins : len(pattern) - ends]
    anchored = re.search(r"(?<!\\)(?:\\\\)*[\^$]", re.sub(r"\[(?:\\.|[^\]\\])*\]", "", body))
    if anchored or ((begins or ends) and "|" in body):
        return ""
    around = ("" if begins else "(?s:.*)", "" if ends else "(?s:.*)")
    try:
        whole = regex_to_lark(f"{around[0]}(?:{body}){around[1]}", "d")
    except ValueError:
        return ""
    refused = LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(f"start: /{whole}/"))
    return "" if refused else whole


def json_type(value: Any) -> str:
    """The type of a JSON value, "number" for every number."""
    return _TYPE_OF[type(value)]
