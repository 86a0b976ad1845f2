"""JSON as models write it, copied to an ArgumentsWriter as it arrives. Knows nothing of calls.

Strict where it has to be (what is written is valid JSON, RFC 8259) and lenient where models are
sloppy: raw control characters in strings, unknown escapes, trailing commas, Python's True, False
and None. NaN and the infinities, which JSON lacks, become strings, as they do where a schema types
bare text.
"""

import json
import math
import re
from collections.abc import Callable

from gateway.splitter.arguments import ArgumentsWriter
from gateway.splitter.reading import Parsing, Reader

WORDS = {
    "true": "true", "false": "false", "null": "null",
    "True": "true", "False": "false", "None": "null",
}  # fmt: skip
_NOT_FINITE = {word: f'"{word}"' for word in ("NaN", "Infinity", "-Infinity")}
NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
SCALAR = re.compile(r"[\w.+-]*")
_ENCODER = json.JSONEncoder(ensure_ascii=False)
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_HEX = re.compile(r"[0-9a-fA-F]*")
_HIGH_SURROGATE = re.compile(r"[dD][89abAB]")
_KEPT_ESCAPES = frozenset('"\\/bfnrt')


def escaped(text: str) -> str:
    """`text` as the inside of a JSON string."""
    return _ENCODER.encode(text)[1:-1]


def number(text: str) -> str | None:
    """`text` as a JSON number: also "+5", ".5", "5." and "007"; None if it is no finite number."""
    if NUMBER.fullmatch(text):
        return text
    try:
        value = float(text)
    except ValueError:
        return None
    if not math.isfinite(value) or not text.isascii() or "_" in text:
        return None
    if re.fullmatch(r"[+-]?\d+", text):
        return ("-" if text[0] == "-" else "") + (text.lstrip("+-").lstrip("0") or "0")
    return json.dumps(value)


def scalar(text: str) -> str | None:
    """A bare word or number as JSON; None if it is neither."""
    return WORDS.get(text) or number(text)


def copy_value(reader: Reader, writer: ArgumentsWriter) -> Parsing[None]:
    """Copies one value. Raises Malformed at what is none."""
    match (yield from reader.peek()):
        case "{":
            reader.at += 1
            writer.open("{")
            yield from copy_members(reader, writer)
        case "[":
            reader.at += 1
            writer.open("[")
            yield from copy_items(reader, writer)
        case '"':
            reader.at += 1
            writer.begin_string()
            yield from copy_string(reader, writer.string)
            writer.end_string()
        case _:
            word = yield from reader.run(SCALAR)
            value = scalar(word) or _NOT_FINITE.get(word)
            if value is None or (reader.over):
                raise reader.fault(f"{word[:60]!r} is no JSON value")
            writer.scalar(value)


def copy_members(reader: Reader, writer: ArgumentsWriter) -> Parsing[None]:
    """Copies the rest of an object after its "{"."""
    while True:
        yield from reader.space()
        if (yield from reader.expect('"', "}")) == "}":
            break
        writer.key((yield from read_string(reader)))
        yield from reader.space()
        yield from reader.expect(":")
        yield from reader.space()
        yield from copy_value(reader, writer)
        yield from reader.space()
        if (yield from reader.expect(",", "}")) == "}":
            break
    writer.close()


def copy_items(reader: Reader, writer: ArgumentsWriter) -> Parsing[None]:
    """Copies the rest of an array after its "["."""
    while True:
        yield from reader.space()
        if (yield from reader.accept(("]",))):
            break
        yield from copy_value(reader, writer)
        yield from reader.space()
        if (yield from reader.expect(",", "]")) == "]":
            break
    writer.close()


def read_string(reader: Reader) -> Parsing[str]:
    """The rest of a string after its opening quote, as the inside of a JSON string."""
    parts: list[str] = []
    yield from copy_string(reader, parts.append)
    return "".join(parts)


def copy_string(reader: Reader, sink: Callable[[str], None]) -> Parsing[None]:
    """As `read_string`, handed over as it arrives, never in the middle of an escape."""
    while character := (yield from reader.peek()):
        if character == '"':
            reader.at += 1
            return
        if character == "\\":
            sink((yield from _escape(reader)))
        elif found := _PLAIN.match(reader.text, reader.at):
            reader.at = found.end()
            sink(found.group())
        else:
            reader.at += 1
            sink(escaped(character))
    raise reader.fault("a string is not closed")


def _escape(reader: Reader) -> Parsing[str]:
    """One escape, or a surrogate pair of them, as valid JSON."""
    reader.at += 1
    if not (kind := (yield from reader.peek())):
        raise reader.fault("an escape is not finished")
    if kind in _KEPT_ESCAPES:
        reader.at += 1
        return "\\" + kind
    if kind != "u":
        return "" if kind == "'" else "\\\\"  # \' is a quote, other unknown escapes mean themselves
    reader.at += 1
    digits = yield from _four_digits(reader)
    if len(digits) < 4:
        return "\\\\u" + digits
    unit = "\\u" + digits
    if _HIGH_SURROGATE.match(digits) and (yield from reader.looking_at(("\\u",))):
        unit += yield from _escape(reader)
    return unit


def _four_digits(reader: Reader) -> Parsing[str]:
    digits = ""
    while (
        len(digits) < 4 and (character := (yield from reader.peek())) and _HEX.fullmatch(character)
    ):
        digits += character
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
        return isinstance(json.loads(text, parse_constant=refuse), dict)
    except (ValueError, RecursionError):
        return False


def refuse(constant: str) -> None:
    """For `json.loads(parse_constant=)`: NaN and Infinity are no JSON."""
    raise ValueError(f"{constant} is no JSON")
