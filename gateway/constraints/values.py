"""Values of a schema as rules of a grammar: as JSON, and in other notations (Python's literals,
bare dicts). One walk, several notations. Numbers are written alike in all of them.

The rules are ours where llguidance's own for JSON (`%json`) would let a model go on for ever: their
white space is that of `json.dumps`, numbers have no more digits than a double holds, and characters
are counted by rules, of which a lexer keeps no states. What several schemas say of one value
llguidance alone puts together, so that stays `%json`.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Any

import msgspec

from gateway.constraints.lark import Lark, literal, one_of, pattern_of, sequence
from gateway.constraints.schemas import (
    Alternative,
    ArrayValue,
    EnumValue,
    ObjectValue,
    ScalarValue,
    Schema,
    SchemaReader,
    StringValue,
)


class Unwritable(Exception):
    """What a model of this family can't be made to write; `args[0]` names the place and why."""


LINE = r"\n[ \t]{0,20}"  # once at a place, so a model can't write white space for ever
BETWEEN = rf"( |{LINE})?"
COLON, COMMA = " ?: ?", f",{BETWEEN}"
# As JSON has them (RFC 8259), but of no more digits than a double holds.
DIGITS = "(0|[1-9][0-9]{0,15})"
NUMBERS = {
    "integer": f"-?{DIGITS}",
    "number": rf"-?{DIGITS}(\.[0-9]{{1,16}})?([eE][+-]?[0-9]{{1,2}})?",
}
LARGEST = 10**16 - 1
FRACTION = 1e-10  # the smallest `multipleOf` that llguidance reads
_LOW, _HIGH = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
# A character; both halves of a surrogate pair are one.
CHARACTER = (
    r"([^\x22\\\x00-\x1f]|\\[\x22\\\/bfnrt]|\\u([0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"
    r"|[dD][89aAbB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}))"
)
# In one way alone, so that no key comes twice.
_KEY = r"([^\x22\\\x00-\x1f]|\\[\x22\\bfnrt]|\\u00(0[0-7bef]|1[0-9a-f]))*"
LENGTH = {"type", "minLength", "maxLength"}  # of a string, and no more
CHUNK = 256  # characters that one lexeme counts, with some states of a lexer for each
DEEPEST = 50  # schemas in schemas


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
    lark.define(rest, " | ".join((end, *steps)), "::_")
    begun = [f"{name} {rest}::{1 << bit:#x}" for bit, name in enumerate(begins)]
    begun += [f"{other} {rest}::0x0"] if other else []
    return f"{lark.rule(one_of(begun))}{'' if needed else '?'}" if begun else ""


def in_any_order_to_end(lark: Lark, found: Sequence[tuple[str, str, bool]]) -> str:
    """As `in_any_order`, of one and no more than `MOST_UNORDERED`, each written in two ways: with
    what begins another behind it, and with what ends them all.
    """
    needed, count = sum(required for *_, required in found), len(found)
    rest, steps = lark.reserve(), []
    for bit, (more, last, required) in enumerate(sorted(found, key=lambda each: not each[2])):
        ready = f", bit_count_ge([0:{needed}], {needed - required})" if needed else ", true"
        goes_on = f", bit_count_lt([0:{count}], {count - 1})"
        steps.append(f"{lark.rule(last)} %if and(bit_clear({bit}){ready})")
        steps.append(f"{lark.rule(more)} {rest}::set_bit({bit}) %if and(bit_clear({bit}){goes_on})")
    lark.define(rest, " | ".join(steps), "::_")
    return f"{rest}::0x0"


def in_order(lark: Lark, found: Sequence[tuple[str, bool]], separator: str, other: str = "") -> str:
    """An expression: members as declared, those that are `True` always, and `other` behind them."""
    tail = f"({separator} {other})*" if other else ""
    begins = [f"{other} {tail}"] if other else []
    for member, required in reversed(found):
        name = lark.rule(member)
        begins = [f"{name} {tail}", *([] if required else begins)]
        more = f"({separator} {name})" + ("" if required else "?")
        tail = lark.rule(f"{more} {tail}")
    needed = any(required for _, required in found)
    return f"{lark.rule(one_of(begins))}{'' if needed else '?'}" if begins else ""


class GrammarNotation(ABC):
    """How one syntax writes what is no number. `separator`, an expression: between items, and
    between members.
    """

    in_order = False  # members come as the schema lists them
    space = BETWEEN  # a regular expression: inside brackets
    words: Mapping[Any, Sequence[str]] = {True: ("true",), False: ("false",), None: ("null",)}

    def __init__(self, lark: Lark, separator: str, *, is_json: bool = False) -> None:
        self.lark = lark
        self.separator = separator
        self.is_json = is_json  # whatever llguidance writes as JSON may stand for a value

    @abstractmethod
    def text(self, found: StringValue) -> str:
        """An expression: a string of this kind."""

    @abstractmethod
    def constant(self, text: str) -> str:
        """An expression: this string."""

    @abstractmethod
    def key(self, key: str) -> str:
        """An expression: the key of a member, up to its value."""

    @abstractmethod
    def any_key(self, declared: Sequence[str]) -> str:
        """An expression: a key that is none of those declared, up to its value."""


class Json(GrammarNotation):
    """JSON as a notation. `unlike`: a regular expression of what no string holds."""

    colon = COLON

    def __init__(self, lark: Lark, unlike: str = "") -> None:
        super().__init__(lark, lark.regex(COMMA), is_json=not unlike)
        self._unlike = f" & ~/(?s:.*)({unlike})(?s:.*)/" if unlike else ""
        self._held = re.compile(unlike or "(?!)")

    def text(self, found: StringValue) -> str:
        if len(found.schema) == 1 and self._unlike:
            return self.lark.terminal(rf"/\x22{CHARACTER}*\x22/{self._unlike}")
        by_length = found.schema.keys() <= LENGTH and not self._unlike
        return counted(self.lark, found) if by_length else self.lark.json(found.schema)

    def constant(self, text: str) -> str:
        written = json.dumps(text, ensure_ascii=False)
        return "" if self._held.search(written) else literal(written)

    def key(self, key: str) -> str:
        return f"{literal(json.dumps(key, ensure_ascii=False))} {self.lark.regex(self.colon)}"

    def any_key(self, declared: Sequence[str]) -> str:
        others = "|".join(pattern_of(json.dumps(key, ensure_ascii=False)) for key in declared)
        known = f" & ~/({others})/" if declared else ""
        name = self.lark.terminal(rf"/\x22{_KEY}\x22/{self._unlike}{known}")
        return f"{name} {self.lark.regex(self.colon)}"


class AnswerJson(Json):
    """JSON as an answer is held to it: members in the schema's order, which their writer chose, and
    in the layouts of `json.dumps`. Held to one line a small model answers worse.
    """

    in_order = True
    space = f"({LINE})?"
    colon = ": ?"


def counted(
    lark: Lark, found: StringValue, quote: str = r"\x22", character: str = CHARACTER
) -> str:
    """A string of some length. The quote mark that begins it is part of the first lexeme, because a
    lexer takes the longest and never goes back.
    """
    fewest, most = found.shortest, found.longest

    def closed(low: int, high: int | None, mark: str = "") -> str:
        return lark.regex(f"{mark}{character}{{{low},{'' if high is None else high}}}{quote}")

    if not fewest and most is None:
        return closed(0, None, quote)
    if most is not None and fewest > most:
        return ""
    if most is not None and most < CHUNK:
        return closed(fewest, most, quote)
    short = [closed(fewest, CHUNK - 1, quote)] if fewest < CHUNK else []
    first, chunk = (lark.regex(f"{mark}{character}{{{CHUNK}}}") for mark in (quote, ""))
    least, rest = divmod(max(fewest - CHUNK, 0), CHUNK)
    if most is None:
        tails = [closed(rest, None)]
    else:
        more, last = divmod(most - CHUNK - least * CHUNK, CHUNK)
        tails = [closed(rest, CHUNK - 1 if more else last)]
        tails += [f"{chunk}{{1,{more - 1}}} {closed(0, CHUNK - 1)}"] if more > 1 else []
        tails += [f"{chunk}{{{more}}} {closed(0, last)}"] if more else []
    before = f"{first} {chunk}{{{least}}}" if least else first
    return one_of([*short, f"{before} {one_of(tails)}"])


class Values(msgspec.Struct, eq=False):
    """The values of one schema as rules."""

    _lark: Lark
    _notation: GrammarNotation
    _reading: SchemaReader
    _rules: dict[int, tuple[Any, str]] = {}  # a schema is kept, so that its id stays its
    _depth: int = 0
    _anything: dict[str, Any] = {}

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
                return self._lark.json(self._reading.alone(schema))
            raise Unwritable(f"schemas nested deeper than {DEEPEST} levels")
        self._depth += 1
        found = [each for option in self._reading.options(schema) for each in self._ways(option)]
        self._depth -= 1
        if not any(found):
            raise Unwritable("a schema that no value satisfies")
        return one_of(filter(None, found))

    def _ways(self, option: Schema) -> list[str]:
        if self._notation.is_json and (whole := self._reading.beyond(option)) is not None:
            return [self._lark.json(whole)]
        return [self._written(each) for each in self._reading.plain(option)]

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
                return self._between("{", self.members(found), "}")

    def _scalar(self, found: ScalarValue) -> str:
        match found.kind:
            case "boolean":
                return one_of((self.constant(True), self.constant(False)))  # noqa: FBT003
            case "null":
                return self.constant(None)
            case kind if len(found.schema) == 1:
                return self._lark.regex(NUMBERS[kind])
            case kind:
                powers = _powers(found.schema) if kind == "number" else ()
                plain = self._lark.json(_finite(found.schema))
                return one_of((plain, *map(self._lark.regex, powers)))

    def constant(self, value: Any) -> str:
        """An expression: this value and no other."""
        match value:
            case bool() | None:
                return one_of(map(literal, self._notation.words[value]))
            case str():
                return self._notation.constant(value)
            case list():
                return self._listed("[", [self.constant(item) for item in value], "]")
            case dict():
                pairs = [f"{self._notation.key(key)} {self.constant(value[key])}" for key in value]
                return self._listed("{", pairs, "}")
            case _:
                return literal(json.dumps(value))

    def _listed(self, opening: str, parts: Sequence[str], closing: str) -> str:
        return self._between(opening, f" {self._notation.separator} ".join(parts), closing)

    def _between(self, opening: str, inside: str, closing: str) -> str:
        """`inside` ends with a question mark where nothing may be there."""
        space, something = self._notation.space, inside.removesuffix("?")
        nothing = self._lark.regex(rf"\{opening}{space}\{closing}")
        begin = self._lark.regex(rf"\{opening}{space}")
        end = self._lark.regex(rf"{space}\{closing}")
        whole = sequence((begin, something, end)) if something else nothing
        return whole if something == inside else one_of((nothing, whole))

    def _items(self, found: ArrayValue) -> str:
        if found.most == 0 or (found.each is False and not found.fewest):
            return self._between("[", "", "]")
        each = self.of(found.each)
        most = "" if found.most is None else max(found.most, found.fewest) - 1
        more = f"({self._notation.separator} {each}){{{max(found.fewest - 1, 0)},{most}}}"
        listed = f"{each} {more}" if most != 0 else each
        return self._between("[", listed if found.fewest else f"({listed})?", "]")

    def members(self, found: ObjectValue) -> str:
        """An expression: the members of an object."""
        notation = self._notation
        declared = [
            (f"{notation.key(field.key)} {self.of(field.schema)}", field.required)
            for field in found.fields
            if field.required or field.schema is not False
        ]
        other = ""
        if found.others is not None:
            key = notation.any_key([field.key for field in found.fields])
            other = self._lark.rule(f"{key} {self.of(found.others)}")
        if notation.in_order:
            return in_order(self._lark, declared, notation.separator, other)
        return in_any_order(self._lark, declared, notation.separator, other)


def _finite(schema: Schema) -> Schema:
    """A number, with bounds where it has none, unless it lies beyond them."""
    added: dict[str, Any] = {}
    if not any(key in schema for key in _LOW) and all(
        schema.get(key, 0) > -LARGEST for key in _HIGH
    ):
        added["minimum"] = -LARGEST
    if not any(key in schema for key in _HIGH) and all(
        schema.get(key, 0) < LARGEST for key in _LOW
    ):
        added["maximum"] = LARGEST
    if schema["type"] == "number":
        added["multipleOf"] = FRACTION
    return added | dict(schema)


def _powers(schema: Schema) -> Iterator[str]:
    """Regular expressions: numbers within bounds as powers of ten, which llguidance doesn't write.

    One digit before the point, so a number is no less than its power and less than the next.
    """
    above, below = schema.get("exclusiveMinimum", -inf), schema.get("exclusiveMaximum", inf)
    lowest = max(schema.get("minimum", above), above)
    highest = min(schema.get("maximum", below), below)
    for sign, low, high, beyond in (("", lowest, highest, above), ("-", -highest, -lowest, -below)):
        fit = [e for e in range(-99, 100) if beyond < 10.0**e >= low and 10.0 ** (e + 1) <= high]
        small = "|".join(str(-e) for e in fit if e < 0)
        large = "|".join(str(e) for e in fit if e >= 0)
        signed = [f"-0?({small})"] * bool(small) + [rf"\+?0?({large})"] * bool(large)
        if signed and "multipleOf" not in schema:
            yield rf"{sign}[1-9](\.[0-9]{{1,16}})?[eE]({'|'.join(signed)})"
