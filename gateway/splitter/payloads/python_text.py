"""Python literals as models write them, copied as JSON. Knows nothing of calls.

Also JSON's true, false and null, which models mix in. The escapes are those of Python's string
literals (Python Language Reference, 2.4.1); an unknown one keeps its backslash, as Python does.
"""

import re

from msgspec.structs import replace

from gateway.splitter.payloads import json_text
from gateway.splitter.payloads.arguments import ArgumentsWriter
from gateway.splitter.payloads.json_text import Notation, Sink, copy_nested, copy_string
from gateway.splitter.payloads.reading import Malformed, Parsing, Reader

_SIMPLE = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\n": "",
    "\\": "\\", "'": "'", '"': '"',
}  # fmt: skip
_HEX_LENGTH = {"x": 2, "u": 4, "U": 8}
_OCTAL = re.compile(r"[0-7]")


def as_json(text: str) -> str | None:
    """A whole list, tuple or dict as JSON; None if it is none."""
    reader = Reader()
    reader.append(text)
    reader.end()
    written: list[str] = []
    try:
        next(copy_nested(reader, ArgumentsWriter(written.append), STRICT), None)
    except Malformed:
        return None
    return "".join(written) if reader.over else None


def _copy_escape(reader: Reader, sink: Sink) -> Parsing[None]:
    sink(json_text.escaped((yield from _escape(reader))))


def _escape(reader: Reader) -> Parsing[str]:
    """The text of one escape sequence."""
    reader.at += 1
    if not (kind := (yield from reader.peek())):
        raise reader.fault("an escape is not finished")
    if _OCTAL.fullmatch(kind):
        return chr(int((yield from json_text.digits_of(reader, _OCTAL, 3)), 8))
    reader.at += 1
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if kind not in _HEX_LENGTH:
        return "\\" + kind
    digits = yield from json_text.digits_of(reader, json_text.HEX, _HEX_LENGTH[kind])
    if len(digits) < _HEX_LENGTH[kind] or int(digits, 16) > 0x10FFFF:
        return f"\\{kind}{digits}"
    return (yield from _paired(reader, chr(int(digits, 16))))


def _paired(reader: Reader, unit: str) -> Parsing[str]:
    """A character; of a surrogate and its other half, as JSON writes them, the one they make."""
    if "\ud800" <= unit <= "\udbff" and (yield from reader.accept(("\\u",))):
        digits = yield from json_text.digits_of(reader, json_text.HEX, 4)
        unit += chr(int(digits, 16)) if len(digits) == 4 else f"\\u{digits}"
    return json_text.without_lone_surrogates(unit)


def _copy_string(reader: Reader, mark: str, sink: Sink) -> Parsing[None]:
    mark += yield from reader.accept((2 * mark,))
    yield from copy_string(reader, mark, sink, escape=_copy_escape)


PYTHON = Notation(brackets=("{", "[", "("), quotes=("'", '"'), copy_string=_copy_string)
STRICT = replace(PYTHON, lenient=False)
