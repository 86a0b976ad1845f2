"""The common part of the writers of all syntaxes: tools to be written, sections of calls, white
space, and values in notations other than JSON (Python's literals, bare dicts): one walk, several
notations. Numbers are written alike in all of them, so they are JSON of their schema.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any, Protocol

import msgspec

from backends.contract.protocol import INPUT, Grammar, JsonSchema, Regex, ToolInput
from gateway.constraints.grammars import CompileBudget, proven, regex_rule
from gateway.constraints.json_schema import carried_schema
from gateway.constraints.lark_reading import (
    ReadGrammar,
    UnreadableGrammar,
    ending_lark,
    read_lark,
)
from gateway.splitter.payloads.calls import NAME
from gateway.splitter.payloads.coercion import Declared
from gateway.splitter.payloads.lark import (
    GAP,
    GrammarTooLarge,
    Lark,
    literal,
    one_of,
    pattern_of,
    sequence,
)
from gateway.splitter.payloads.schemas import (
    GRAMMAR,
    LEFT_OUT,
    Alternative,
    ArrayValue,
    EnumValue,
    ObjectValue,
    ScalarValue,
    Schema,
    SchemaReader,
    StringValue,
)
from gateway.splitter.payloads.spelled import Bare, Quoted, spelled
from gateway.terms.errors import InvalidRequest
from gateway.terms.request import Tool

SPACES = ("", " ", "\n")  # what models put between an opener of words and what follows it
BETWEEN = r"[ \t\r\n]{0,16}"


class Unwritable(Exception):
    """What a model of this family can't be made to write; `args[0]` names the place and why."""


class CallSection(msgspec.Struct, frozen=True):
    """What follows an opener. After `calls` the output may end; after `closer` it is text again, or
    after `calls` if `done`. `again`: another opener may follow `calls` without a closer.
    """

    calls: str
    closer: str = ""
    done: bool = False
    again: bool = True


class Unmarked(msgspec.Struct, frozen=True):
    """Calls without an opener. `unlike`: a regular expression of what an answer that is none can't
    begin with.
    """

    calls: str
    unlike: str


class WritableTool:
    """A tool as its calls are to be written. `parameters`: what a grammar carries of its schema, an
    object without further properties unless it wants them. `reading`: what was made of it for other
    notations than JSON. `relaxed`: what isn't carried.

    Agents bring schemas that are none by dozens. One that can't be used leaves the arguments any
    object, unless the tool is `strict`: then it raises InvalidRequest, which names the tool, as it
    does for what of a strict tool's schema can't be carried. `budget` is that of all tools.
    """

    def __init__(self, tool: Tool, budget: CompileBudget) -> None:
        self.name = tool.name
        if tool.input is None:
            schema, self.relaxed = _carried(tool, budget)
        else:
            grammar, self.relaxed = _ruled(tool.input, budget)
            schema = _of_input(grammar)
        self.parameters: Schema = {"type": "object", **(schema or {})}
        self.declared = Declared(tool.parameters or {})
        self.reading = SchemaReader(self.parameters, tool.name)

    def json(self, lark: Lark) -> str:
        """The name of a rule that matches the arguments as a JSON object."""
        reading = SchemaReader(self.parameters)
        return lark.once(id(self), lambda: Values(lark, Json(lark), reading).of(self.parameters))


def quoted(lark: Lark, grammar: ReadGrammar, mark: str = '"') -> str:
    """An expression: a string between such marks, whose text `grammar` matches."""
    end = literal(mark)
    return lark.once(
        ("quoted", mark, id(grammar)),
        lambda: lark.rule(f"{end} {spelled(lark, grammar, Quoted(mark))} {end}"),
    )


def _ruled(free: ToolInput, budget: CompileBudget) -> tuple[ReadGrammar | None, tuple[str, ...]]:
    """The grammar of a custom tool's input; None where any text is taken, or where it can't be
    written inside a call, which is said. Raises InvalidRequest where it is no grammar.
    """
    if free.shape is None:
        return None, ()
    budget.check(free.shape.field)
    text = _text_of(free.shape)
    proven(({"lark_grammar": text},), free.shape.field)
    budget.check(free.shape.field)
    try:
        read = read_lark(text)
        spelled(Lark({}), read, Quoted())
        spelled(lark := Lark({}), read, Bare(lark, ["</parameter>"]))
    except (UnreadableGrammar, GrammarTooLarge) as error:
        return None, (f"{free.shape.field} ({error})",)
    return read, ()


def _text_of(shape: Grammar | Regex) -> str:
    match shape:
        case Grammar(text=text, field=field):
            return ending_lark(text, field)
        case Regex(pattern=pattern, field=field):
            return regex_rule(pattern, field)


def _of_input(grammar: ReadGrammar | None) -> Schema:
    text: Schema = {"type": "string"} | ({} if grammar is None else {GRAMMAR: grammar})
    return {"properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False}


def _carried(tool: Tool, budget: CompileBudget) -> tuple[Mapping[str, Any] | None, tuple[str, ...]]:
    """What of a tool's schema the grammar carries, and the places of what it doesn't."""
    if not tool.parameters:
        return None, ()
    field = f"tools.{tool.name}.parameters"
    text = msgspec.json.encode(tool.parameters)
    shape = JsonSchema(schema=text, strict=bool(tool.strict), field=field)
    try:
        found = carried_schema(shape, budget)
    except InvalidRequest:
        if tool.strict:
            raise
        return None, (field,)
    carried = found.schema if isinstance(found.schema, dict) else {}
    return carried, tuple(
        f"{field}{each.place.removeprefix('$')}.{each.keyword}" for each in found.relaxed
    )


def gap(lark: Lark) -> str:
    """Optional white space."""
    return f"{lark.regex(GAP)}?"


class Opened(Protocol):
    """A syntax in which each call has an opener of its own."""

    @property
    def call_opens(self) -> Sequence[str]: ...

    @property
    def closers(self) -> Sequence[str]: ...


def opened_calls(
    lark: Lark, syntax: Opened, opener: str, *, first: str, one: str, parallel: bool
) -> CallSection:
    """What follows an opener: calls, each `one` after a `first`; `opener` may be the first's."""
    space = gap(lark)
    calls = repeated(one, f"{space} {first}", parallel=parallel)
    closer = f"{space} {lark.any_of(syntax.closers)}" if syntax.closers else ""
    if opener in syntax.call_opens:
        return CallSection(calls, closer, done=True)
    return CallSection(f"{space} {first} {calls}", closer)


def repeated(one: str, separator: str, *, parallel: bool) -> str:
    """One call, or several."""
    return f"{one} ({separator} {one})*" if parallel else one


MOST_UNORDERED = 64  # the bits of a rule's parameter


def in_any_order(
    lark: Lark,
    found: Sequence[tuple[str, bool]],
    separator: str = "",
    other: str = "",
    first: Sequence[str] = (),
) -> str:
    """An expression: members in any order, each at most once, those that are `True` always, with
    separators between them. `other` may come as often as it likes. `first`: how each is written
    where it comes first, if that is otherwise.

    Each has a bit in the parameter of a rule, which says that it has come. Where there are more
    members than bits the required ones come first, as declared, and the others as often as they
    like.
    """
    places = sorted(range(len(found)), key=lambda place: not found[place][1])
    needed = sum(required for _, required in found)
    names = [lark.rule(found[place][0]) for place in places]
    begins = [first[place] for place in places] if first else names
    if len(names) > MOST_UNORDERED:
        always = f" {separator} ".join([*begins[:1], *names[1:needed]])
        others = lark.rule(one_of([*names[needed:], *filter(None, [other])]))
        more = f"({separator} {others})*"
        return f"{always} {more}" if needed else f"({others} {more})?"
    rest = lark.reserve()
    steps = [
        f"{separator} {name} {rest}::set_bit({bit}) %if bit_clear({bit})"
        for bit, name in enumerate(names)
    ]
    steps += [f"{separator} {other} {rest}::_"] if other else []
    end = f'"" %if is_ones([0:{needed}])' if needed else '""'
    lark.define_for_any(rest, " | ".join((end, *steps)))
    begun = [f"{name} {rest}::{1 << bit:#x}" for bit, name in enumerate(begins)]
    begun += [f"{other} {rest}::0x0"] if other else []
    return f"{lark.rule(one_of(begun))}{'' if needed else '?'}" if begun else ""


def plain_names(tools: Sequence[WritableTool]) -> None:
    """Raises Unwritable for a name that can't stand outside quotes."""
    for tool in tools:
        if not NAME.fullmatch(tool.name):
            raise Unwritable(f"the tool's name {tool.name[:60]!r} can't be written in a call")


# As JSON has it (RFC 8259), but no more digits than a double holds.
_NUMBER = r"-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,16})?([eE][+-]?[0-9]{1,2})?"
DEEPEST = 50  # schemas in schemas


_STRING = r"\x22([^\x22\\\x00-\x1f]|\\[\x22\\\/bfnrt]|\\u[0-9a-fA-F]{4})*\x22"
_COLON, COMMA = rf"{BETWEEN}:{BETWEEN}", rf"{BETWEEN},{BETWEEN}"


class GrammarNotation(Protocol):
    """How one syntax writes what is no number."""

    is_json: bool  # whatever llguidance writes as JSON may stand for a value
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


class Json:
    """JSON as a notation. `unlike`: a regular expression of what no string holds."""

    words: Mapping[Any, Sequence[str]] = {True: ("true",), False: ("false",), None: ("null",)}

    def __init__(self, lark: Lark, unlike: str = "") -> None:
        self._lark = lark
        self._unlike = f" & ~/(?s:.*)({unlike})(?s:.*)/" if unlike else ""
        self._held = re.compile(unlike or "(?!)")
        self.is_json = not unlike
        self.separator = lark.regex(COMMA)
        self._any = lark.terminal(f"/{_STRING}/{self._unlike}")

    def text(self, found: StringValue) -> str:
        if found.grammar is not None:
            return quoted(self._lark, found.grammar)
        free = len(found.schema) == 1
        return self._any if free else self._lark.json(found.schema)

    def constant(self, text: str) -> str:
        written = json.dumps(text, ensure_ascii=False)
        return "" if self._held.search(written) else literal(written)

    def key(self, key: str) -> str:
        return f"{literal(json.dumps(key, ensure_ascii=False))} {self._lark.regex(_COLON)}"

    def any_key(self, declared: Sequence[str]) -> str:
        others = "|".join(pattern_of(json.dumps(key, ensure_ascii=False)) for key in declared)
        known = f" & ~/({others})/" if declared else ""
        name = self._lark.terminal(rf"/\x22[^\x22\\\x00-\x1f]*\x22/{self._unlike}{known}")
        return f"{name} {self._lark.regex(_COLON)}"


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
            if self._notation.is_json:
                return self._json(schema)
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
            case _ if self._notation.is_json and not LEFT_OUT.isdisjoint(found.schema):
                return self._json(found.schema)  # in its order, and with all it says
            case ArrayValue():
                return self._items(found)
            case ObjectValue():
                return self._between("{", [self.members(found)], "}")

    def _json(self, schema: Any) -> str:
        return self._lark.json(self._reading.alone(schema))

    def _scalar(self, found: ScalarValue) -> str:
        match found.kind:
            case "boolean":
                return one_of((self.constant(True), self.constant(False)))  # noqa: FBT003
            case "null":
                return self.constant(None)
            case "number" if len(found.schema) == 1:
                return self._lark.regex(_NUMBER)
            case _:
                plain = self._lark.json(found.schema)
                powers = _powers(found.schema) if found.kind == "number" else ()
                return one_of((plain, *map(self._lark.regex, powers)))

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
        begin, end = (
            self._lark.regex(rf"\{opening}{BETWEEN}"),
            self._lark.regex(rf"{BETWEEN}\{closing}"),
        )
        return sequence((begin, inside, end))

    def _items(self, found: ArrayValue) -> str:
        if found.most == 0:
            return self._between("[", [], "]")
        each = self.of(found.each)
        most = "" if found.most is None else max(found.most, found.fewest) - 1
        more = f"({self._notation.separator} {each}){{{max(found.fewest - 1, 0)},{most}}}"
        listed = f"{each} {more}" if most != 0 else each
        return self._between("[", [listed if found.fewest else f"({listed})?"], "]")

    def members(self, found: ObjectValue) -> str:
        """An expression: the members of an object, in any order."""
        notation = self._notation
        declared = [
            (f"{notation.key(field.key)} {self.of(field.schema)}", field.required)
            for field in found.fields
        ]
        other = ""
        if found.others is not None:
            key = notation.any_key([field.key for field in found.fields])
            other = self._lark.rule(f"{key} {self.of(found.others)}")
        return in_any_order(self._lark, declared, notation.separator, other)


def _powers(schema: Schema) -> Iterator[str]:
    """Regular expressions: numbers within bounds as powers of ten, which llguidance doesn't write.

    One digit before the point, so a number is no less than its power and less than the next.
    """
    above, below = schema.get("exclusiveMinimum", -inf), schema.get("exclusiveMaximum", inf)
    lowest, highest = (
        max(schema.get("minimum", above), above),
        min(schema.get("maximum", below), below),
    )
    for sign, low, high, beyond in (("", lowest, highest, above), ("-", -highest, -lowest, -below)):
        fit = [e for e in range(-99, 100) if beyond < 10.0**e >= low and 10.0 ** (e + 1) <= high]
        small = "|".join(str(-e) for e in fit if e < 0)
        large = "|".join(str(e) for e in fit if e >= 0)
        signed = [f"-0?({small})"] * bool(small) + [rf"\+?0?({large})"] * bool(large)
        if signed and "multipleOf" not in schema:
            yield rf"{sign}[1-9](\.[0-9]{{1,16}})?[eE]({'|'.join(signed)})"


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
