"""Python literals as models write them, copied as JSON. Knows nothing of calls.

Also JSON's true, false and null, which models mix in. The escapes are those of Python's string
literals (Python Language Reference, 2.4.1); an unknown one keeps its backslash, as Python does. In
a call (`lenient`) a bare word that is no literal is a string.
"""

import re
from collections.abc import Callable
from functools import partial
from io import StringIO

from gateway.splitter.payloads import json_text
from gateway.splitter.payloads.arguments import ArgumentsWriter, Notation, copy_nested
from gateway.splitter.payloads.reading import Malformed, Parsing, Reader

_SIMPLE = {
    "n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "\n": "",
    "\\": "\\", "'": "'", '"': '"',
}  # fmt: skip
_HEX_LENGTH = {"x": 2, "u": 4, "U": 8}
_OCTAL = re.compile(r"[0-7]")
_PLAIN = {quote: re.compile(rf"[^{quote}\\]++") for quote in "'\""}
_QUOTES = ("'''", '"""', "'", '"')


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


def _key(reader: Reader) -> Parsing[str]:
    text = StringIO()
    yield from _copy_string(reader, text.write)
    return json_text.escaped(text.getvalue())


def _leaf(reader: Reader, writer: ArgumentsWriter, *, lenient: bool) -> Parsing[None]:
    if (yield from reader.looking_at(("'", '"'))):
        writer.begin_string()
        yield from _copy_string(reader, lambda text: writer.string(json_text.escaped(text)))
        writer.end_string()
    else:
        yield from json_text.copy_word(reader, writer, lenient=lenient)


STRICT, LENIENT = (
    Notation(("{", "[", "("), _key, partial(_leaf, lenient=lenient)) for lenient in (False, True)
)


def _copy_string(reader: Reader, sink: Callable[[str], object]) -> Parsing[None]:
    """Hands over the text of a string literal, escapes decoded, never in the middle of one."""
    quote = yield from reader.expect(*_QUOTES)
    plain = _PLAIN[quote[0]]
    while character := (yield from reader.peek()):
        if character == "\\":
            sink((yield from _escape(reader)))
        elif found := plain.match(reader.text, reader.at):
            reader.at = found.end()
            sink(found.group())
        elif (yield from reader.accept((quote,))):
            return
        else:
            reader.at += 1  # one or two quotes inside a triple-quoted string
            sink(character)
    raise reader.fault("a string is not closed")


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
