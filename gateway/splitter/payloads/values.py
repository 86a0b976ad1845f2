"""A value with all that is nested in it, copied from any notation of objects and arrays as JSON.

What is open is a list of closing brackets, not a stack of parsers that call themselves: so no depth
that a model writes is a depth of the interpreter, and a piece of text costs the same however deep
it stands. `ArgumentsWriter` says how deep a value may be.
"""

from typing import Protocol

from gateway.splitter.arguments import ArgumentsWriter
from gateway.splitter.reading import Parsing, Reader

_CLOSING = {"{": "}", "[": "]", "(": ")"}


class Notation(Protocol):
    """How one syntax writes what is in objects and arrays."""

    @property
    def brackets(self) -> tuple[str, ...]:
        """Those that open an object or an array."""
        ...

    def key(self, reader: Reader) -> Parsing[str]:
        """Reads a key, as the inside of a JSON string. Raises Malformed at what is none."""
        ...

    def leaf(self, reader: Reader, writer: ArgumentsWriter) -> Parsing[None]:
        """Copies a value that holds no other. Raises Malformed at what is none."""
        ...


def copy(reader: Reader, writer: ArgumentsWriter, notation: Notation) -> Parsing[None]:
    """Copies one value. Raises Malformed at what is none, and where it is nested too deep."""
    closers: list[str] = []
    yield from _value(reader, writer, notation, closers)
    yield from _rest(reader, writer, notation, closers)


def copy_members(reader: Reader, writer: ArgumentsWriter, notation: Notation) -> Parsing[None]:
    """Copies the rest of an object after its "{", which is written."""
    yield from _rest(reader, writer, notation, ["}"])


def _rest(
    reader: Reader, writer: ArgumentsWriter, notation: Notation, closers: list[str]
) -> Parsing[None]:
    """Copies what is in the objects and arrays that are open, up to the end of the outermost."""
    fresh = True  # it has just been opened, or a comma came: it may end, or something follows
    while closers:
        yield from reader.space()
        if fresh:
            ended = bool((yield from reader.accept((closers[-1],))))
        else:
            ended = (yield from reader.expect(",", closers[-1])) != ","
        if ended:
            writer.close()
            closers.pop()
            fresh = False
        elif not fresh:
            fresh = True
        else:
            if closers[-1] == "}":
                writer.key((yield from notation.key(reader)))
                yield from reader.space()
                yield from reader.expect(":")
                yield from reader.space()
            fresh = yield from _value(reader, writer, notation, closers)


def _value(
    reader: Reader, writer: ArgumentsWriter, notation: Notation, closers: list[str]
) -> Parsing[bool]:
    """Copies a value that holds no other, or opens one that does: then True."""
    bracket = yield from reader.accept(notation.brackets)
    if not bracket:
        yield from notation.leaf(reader, writer)
        return False
    writer.open("{" if bracket == "{" else "[")
    closers.append(_CLOSING[bracket])
    return True
