"""JSON as models write it, and other notations of objects and arrays, copied to an ArgumentsWriter
as they arrive. Knows nothing of calls.

What is open is a list of closing brackets, not a stack of parsers that call themselves: so no depth
that a model writes is a depth of the interpreter, and a piece of text costs the same however deep
it stands. `ArgumentsWriter` says how deep a value may be.

Strict where it has to be (what is written is valid JSON, RFC 8259) and lenient where models are
sloppy: raw control characters in strings, unknown escapes, trailing commas, Python's True, False
and None. In a call a bare word that is no JSON (`12px`, `Oslo`, `NaN`) is a string, as it is where
a schema types bare text.
"""

import json
import math
import re
from collections.abc import Callable
from io import StringIO
from typing import Any, TypeAlias

import msgspec

from gateway.splitter.payloads.arguments import DEEPEST, ArgumentsWriter
from gateway.splitter.payloads.reading import LONGEST, Parsing, Reader

WORDS = {
    "true": "true", "false": "false", "null": "null",
    "True": "true", "False": "false", "None": "null",
}  # fmt: skip
NUMBER = re.compile(r"-?(?:0|[1-9]\d*+)(?:\.\d++)?+(?:[eE][+-]?\d++)?+", re.ASCII)
SCALAR = re.compile(r"[\w.+-]*+")
_INTEGER = re.compile(r"[+-]?\d++", re.ASCII)
_ENCODER = json.JSONEncoder(ensure_ascii=False)
_PLAIN = {mark: re.compile(rf"[^{mark}\\]++") for mark in "'\""}
_BEGUN_KEY = re.compile(r'(?:"[^"\\,{}\[\]<]*+(?:"\s*+)?)?')
_CLOSING = {"{": "}", "[": "]", "(": ")"}
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)
HEX = re.compile(r"[0-9a-fA-F]")
_HIGH_SURROGATE = re.compile(r"\\u[dD][89abAB]..")
_LOW_SURROGATE = re.compile(r"\\u[dD][c-fC-F]..")
_KEPT_ESCAPES = frozenset('"\\/bfnrt')


def escaped(text: str) -> str:
    """`text` as the inside of a JSON string."""
    return _ENCODER.encode(text)[1:-1]


def number(text: str) -> str | None:
    """`text` as a JSON number: also "+5", ".5", "5." and "007".

    None if it is no finite number or has more than `LONGEST` characters: readers of JSON refuse
    numbers of that length, or take time in proportion to its square.
    """
    if len(text) > LONGEST or not text.isascii() or "_" in text:
        return None
    if _INTEGER.fullmatch(text):
        return ("-" if text[0] == "-" else "") + (text.lstrip("+-").lstrip("0") or "0")
    try:
        value = float(text)
    except ValueError:
        return None
    if not math.isfinite(value):
        return None
    return text if NUMBER.fullmatch(text) else json.dumps(value)


def scalar(text: str) -> str | None:
    """A bare word or number as JSON; None if it is neither."""
    return WORDS.get(text) or number(text)


Sink: TypeAlias = Callable[[str], object]
CopyString: TypeAlias = Callable[[Reader, str, Sink], Parsing[None]]


def _copy_escape(reader: Reader, sink: Sink) -> Parsing[None]:
    """Hands over one escape; with the first half of a surrogate pair the second, if it follows."""
    waiting = ""
    while True:
        unit = yield from _escape(reader)
        if waiting and not _LOW_SURROGATE.fullmatch(unit):
            sink(waiting)
            waiting = ""
        waiting += unit
        pair_begun = _HIGH_SURROGATE.fullmatch(waiting)
        if not (pair_begun and (yield from reader.looking_at(("\\u",)))):
            sink(waiting)
            return


def _escape(reader: Reader) -> Parsing[str]:
    """One escape as valid JSON."""
    reader.at += 1
    if not (kind := (yield from reader.peek())):
        raise reader.fault("an escape is not finished")
    if kind in _KEPT_ESCAPES:
        reader.at += 1
        return "\\" + kind
    if kind != "u":
        return "" if kind == "'" else "\\\\"  # \' is a quote, other unknown escapes mean themselves
    reader.at += 1
    digits = yield from digits_of(reader, HEX, 4)
    return ("\\u" if len(digits) == 4 else "\\\\u") + digits


def digits_of(reader: Reader, digit: re.Pattern[str], most: int) -> Parsing[str]:
    """The digits that come next, at most so many."""
    digits = ""
    while len(digits) < most and digit.match((yield from reader.peek())):
        digits += reader.text[reader.at]
        reader.at += 1
    return digits


def copy_string(
    reader: Reader,
    mark: str,
    sink: Sink,
    *,
    escape: Callable[[Reader, Sink], Parsing[None]] = _copy_escape,
) -> Parsing[None]:
    """Hands over the rest of a string after its quote mark, as the inside of a JSON string, as it
    arrives, never in the middle of an escape, of which `escape` copies one.
    """
    plain = _PLAIN[mark[0]]
    while character := (yield from reader.peek()):
        if character == "\\":
            yield from escape(reader, sink)
        elif found := plain.match(reader.text, reader.at):
            reader.at = found.end()
            sink(escaped(found.group()))
        elif (yield from reader.accept((mark,))):
            return
        else:
            reader.at += 1  # one or two quotes inside a triple-quoted string
            sink(escaped(character))
    raise reader.fault("a string is not closed")


def read_string(reader: Reader, mark: str = '"', copy: CopyString = copy_string) -> Parsing[str]:
    """The rest of a string after its quote mark, as the inside of a JSON string."""
    text = StringIO()
    yield from copy(reader, mark, text.write)
    return text.getvalue()


class Notation(msgspec.Struct, frozen=True, kw_only=True):
    """How one syntax writes what is in objects and arrays, which `brackets` open. A string stands
    between `quotes`; `copy_string` copies the rest of it. `word`: what other values are made of;
    `lenient`: what is no JSON is a string. `key`: what keys without quotes are made of; None: there
    are none.
    """

    brackets: tuple[str, ...] = ("{", "[")
    quotes: tuple[str, ...] = ('"',)
    copy_string: CopyString = copy_string
    word: re.Pattern[str] = SCALAR
    lenient: bool = True
    key: re.Pattern[str] | None = None


JSON = Notation()


def copy_nested(
    reader: Reader, writer: ArgumentsWriter, notation: Notation = JSON, *, in_object: bool = False
) -> Parsing[None]:
    """Copies one value; `in_object`: the rest of an object after its "{", which is written. Raises
    Malformed at what is none, and where it is nested too deep.
    """
    closers = ["}"] if in_object else []  # of what is open
    fresh = True  # the innermost has just been opened, or a comma came: a value may follow
    while True:
        if closers and (yield from _ends(reader, closers[-1], fresh=fresh)):
            writer.close()
            closers.pop()
            fresh = False
        elif not fresh:
            fresh = True
        else:
            if closers and closers[-1] == "}":
                writer.key((yield from _key(reader, notation)))
                yield from reader.spaced(reader.expect(":"))
            bracket = yield from reader.accept(notation.brackets)
            if bracket:
                writer.open("{" if bracket == "{" else "[")
                closers.append(_CLOSING[bracket])
            else:
                yield from _leaf(reader, writer, notation)
                fresh = False
        if not closers:
            return


def _ends(reader: Reader, closer: str, *, fresh: bool) -> Parsing[bool]:
    """Whether what is open ends here; otherwise a comma is read, unless the place is fresh."""
    yield from reader.space()
    if fresh:
        return bool((yield from reader.accept((closer,))))
    return (yield from reader.expect(",", closer)) != ","


def _key(reader: Reader, notation: Notation) -> Parsing[str]:
    """A key as the inside of a JSON string."""
    if notation.key is not None and not (yield from _is_quoted(reader, notation.quotes)):
        return escaped((yield from reader.run(notation.key)).strip().strip("\"'"))
    mark = yield from reader.expect(*notation.quotes)
    return (yield from read_string(reader, mark, notation.copy_string))


def _is_quoted(reader: Reader, quotes: tuple[str, ...]) -> Parsing[bool]:
    """Whether a key stands between quote marks, a colon behind them. A mark that others don't match
    is none: then a colon comes before what ends a value, or before a string.
    """
    if not (yield from reader.looking_at(quotes)):
        return False
    begun = yield from reader.ahead(_BEGUN_KEY)
    inside, closed, _ = begun[1:].partition('"')
    if not closed:
        return ":" not in inside
    follows = reader.text.startswith(":", reader.at + len(begun))
    return follows and not inside.rstrip().endswith(":")


def _leaf(reader: Reader, writer: ArgumentsWriter, notation: Notation) -> Parsing[None]:
    """A value that holds no other. Raises Malformed at what is none, and where it may be cut."""
    if mark := (yield from reader.accept(notation.quotes)):
        writer.begin_string()
        yield from notation.copy_string(reader, mark, writer.string)
        writer.end_string()
        return
    word = (yield from reader.run(notation.word)).strip()
    value = scalar(word)
    if value is None and notation.lenient and word:
        value = f'"{escaped(word)}"'
    if value is None or reader.over:
        raise reader.fault(f"{word[:60]!r} is no value")
    writer.scalar(value)


def copy_arguments(reader: Reader, begin: Callable[[], ArgumentsWriter]) -> Parsing[None]:
    """Copies an object to what `begin` gives once it has visibly begun."""
    yield from reader.expect("{")
    yield from reader.space()
    if not (yield from reader.looking_at(('"', "}"))):
        raise reader.fault("no arguments object")
    writer = begin()
    writer.open("{")
    yield from copy_nested(reader, writer, in_object=True)


def decoded(inside: str) -> str:
    """The text of a JSON string given without its quotes."""
    return without_lone_surrogates(json.loads(f'"{inside}"'))


def without_lone_surrogates(text: str) -> str:
    """`text` with pairs of surrogates joined and half ones replaced, so that it can be encoded."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def is_object(text: str) -> bool:
    """`text` is a JSON object and nothing else."""
    try:
        return isinstance(loaded(text), dict)
    except ValueError:
        return False


def loaded(text: str) -> Any:
    """The value of JSON text. Raises ValueError if it is none, or nested deeper than `DEEPEST`."""
    depth = 0
    suspect = text.count("[") + text.count("{") > DEEPEST
    for found in _BRACKETS.finditer(text) if suspect else ():
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found.group(), 0)
        if depth > DEEPEST:
            raise ValueError(f"nested deeper than {DEEPEST} levels")
    return json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    """NaN and Infinity are no JSON."""
    raise ValueError(f"{constant} is not JSON")
