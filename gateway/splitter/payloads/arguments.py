"""Writes one JSON value in fragments that can always be closed to valid JSON, and copies what is
nested in any notation of objects and arrays.

Every payload parser writes through this, so arguments are valid JSON by construction. A key waits
for its value and a comma for what follows it: there is never one to take back.

What is open is a list of closing brackets, not a stack of parsers that call themselves: so no depth
that a model writes is a depth of the interpreter, and a piece of text costs the same however deep
it stands. `ArgumentsWriter` says how deep a value may be.
"""

from collections.abc import Callable

import msgspec

from gateway.splitter.payloads.reading import Malformed, Parsing, Reader

DEEPEST = 100  # nesting levels: readers of the arguments may recurse


class ArgumentsWriter:
    """Hands fragments of JSON text to `sink`. Strings and keys come with escapes applied."""

    __slots__ = ("_closers", "_in_string", "_key", "_separator", "_sink", "begun")

    def __init__(self, sink: Callable[[str], None]) -> None:
        self._sink = sink
        self._closers: list[str] = []
        self._separator = ""
        self._key = ""
        self._in_string = False
        self.begun = False

    def open(self, bracket: str) -> None:
        """Begins an object "{" or an array "[". Raises Malformed beyond `DEEPEST` levels."""
        if len(self._closers) >= DEEPEST:
            raise Malformed(f"nested deeper than {DEEPEST} levels")
        self._write(bracket)
        self._closers.append("}" if bracket == "{" else "]")
        self._separator = ""

    def close(self) -> None:
        """Ends the innermost object or array."""
        self._sink(self._closers.pop())
        self._separator = ","

    def key(self, escaped: str) -> None:
        """Names the next value of the innermost object."""
        self._key = f'"{escaped}":'

    def scalar(self, json_text: str) -> None:
        """Writes a complete value."""
        self._write(json_text)
        self._separator = ","

    def begin_string(self) -> None:
        """Begins a string whose text comes by `string`."""
        self._write('"')
        self._in_string = True

    def string(self, escaped: str) -> None:
        """Writes some more of the string begun."""
        self._sink(escaped)

    def end_string(self) -> None:
        """Ends the string begun."""
        self._sink('"')
        self._in_string = False
        self._separator = ","

    def finish_off(self) -> None:
        """Ends everything that is open: what came so far becomes a whole value."""
        if self._in_string:
            self.end_string()
        while self._closers:
            self.close()

    def _write(self, text: str) -> None:
        self.begun = True
        self._sink(self._separator + self._key + text)
        self._key = ""


_CLOSING = {"{": "}", "[": "]", "(": ")"}


class Notation(msgspec.Struct, frozen=True):
    """How one syntax writes what is in objects and arrays, which `brackets` open. `key` reads a
    key, as the inside of a JSON string; `leaf` copies a value that holds no other. Both raise
    Malformed at what is none.
    """

    brackets: tuple[str, ...]
    key: Callable[[Reader], Parsing[str]]
    leaf: Callable[[Reader, ArgumentsWriter], Parsing[None]]


def copy_nested(
    reader: Reader, writer: ArgumentsWriter, notation: Notation, *, in_object: bool = False
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
                writer.key((yield from notation.key(reader)))
                yield from reader.spaced(reader.expect(":"))
            bracket = yield from reader.accept(notation.brackets)
            if bracket:
                writer.open("{" if bracket == "{" else "[")
                closers.append(_CLOSING[bracket])
            else:
                yield from notation.leaf(reader, writer)
                fresh = False
        if not closers:
            return


def _ends(reader: Reader, closer: str, *, fresh: bool) -> Parsing[bool]:
    """Whether what is open ends here; otherwise a comma is read, unless the place is fresh."""
    yield from reader.space()
    if fresh:
        return bool((yield from reader.accept((closer,))))
    return (yield from reader.expect(",", closer)) != ","
