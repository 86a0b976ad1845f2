"""JSON as models write it, copied to an ArgumentsWriter as it arrives. Knows nothing of calls.

Strict where it has to be (what is written is valid JSON, RFC 8259) and lenient where models are
sloppy: raw control characters in strings, unknown escapes, trailing commas, Python's True, False
and None. In a call (`lenient`) a bare word that is no JSON (`12px`, `Oslo`, `NaN`) is a string, as
it is where a schema types bare text.
"""

import json
import math
import re
from collections.abc import Callable
from functools import partial
from io import StringIO
from typing import Any

from gateway.splitter.payloads.arguments import (
    DEEPEST,
    ArgumentsWriter,
    Notation,
    copy_nested,
)
from gateway.splitter.payloads.reading import LONGEST, Parsing, Reader

WORDS = {
    "true": "true", "false": "false", "null": "null",
    "True": "true", "False": "false", "None": "null",
}  # fmt: skip
NUMBER = re.compile(r"-?(?:0|[1-9]\d*+)(?:\.\d++)?+(?:[eE][+-]?\d++)?+", re.ASCII)
SCALAR = re.compile(r"[\w.+-]*+")
_INTEGER = re.compile(r"[+-]?\d++", re.ASCII)
_ENCODER = json.JSONEncoder(ensure_ascii=False)
_PLAIN = re.compile(r'[^"\\\x00-\x1f]++')
_CONTROL = re.compile(r"[\x00-\x1f]++")
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


def _key(reader: Reader) -> Parsing[str]:
    yield from reader.expect('"')
    return (yield from read_string(reader))


def _leaf(reader: Reader, writer: ArgumentsWriter, *, lenient: bool) -> Parsing[None]:
    if (yield from reader.accept(('"',))):
        writer.begin_string()
        yield from copy_string(reader, writer.string)
        writer.end_string()
    else:
        yield from copy_word(reader, writer, lenient=lenient)


STRICT, LENIENT = (
    Notation(("{", "["), _key, partial(_leaf, lenient=lenient)) for lenient in (False, True)
)


def copy_arguments(reader: Reader, begin: Callable[[], ArgumentsWriter]) -> Parsing[None]:
    """Copies an object, bare words as strings, to what `begin` gives once it has visibly begun."""
    yield from reader.expect("{")
    yield from reader.space()
    if not (yield from reader.looking_at(('"', "}"))):
        raise reader.fault("no arguments object")
    writer = begin()
    writer.open("{")
    yield from copy_nested(reader, writer, LENIENT, in_object=True)


def copy_word(reader: Reader, writer: ArgumentsWriter, *, lenient: bool) -> Parsing[None]:
    """Copies a bare word or number. Raises Malformed at what is none, and where it may be cut."""
    word = yield from reader.run(SCALAR)
    value = scalar(word)
    if value is None and lenient and word:
        value = f'"{escaped(word)}"'
    if value is None or reader.over:
        raise reader.fault(f"{word[:60]!r} is no value")
    writer.scalar(value)


def read_string(reader: Reader) -> Parsing[str]:
    """The rest of a string after its opening quote, as the inside of a JSON string."""
    text = StringIO()
    yield from copy_string(reader, text.write)
    return text.getvalue()


def copy_string(reader: Reader, sink: Callable[[str], object]) -> Parsing[None]:
    """As `read_string`, handed over as it arrives, never in the middle of an escape."""
    while True:
        if found := _PLAIN.match(reader.text, reader.at):  # first: most of all text
            reader.at = found.end()
            sink(found.group())
        if not (character := (yield from reader.peek())):
            break
        if character == '"':
            reader.at += 1
            return
        if character == "\\":
            yield from _copy_escape(reader, sink)
        elif found := _CONTROL.match(reader.text, reader.at):
            reader.at = found.end()
            sink(escaped(found.group()))
    raise reader.fault("a string is not closed")


def _copy_escape(reader: Reader, sink: Callable[[str], object]) -> Parsing[None]:
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
