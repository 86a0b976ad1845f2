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
    return _copy(reader, writer, notation, [])


def copy_members(reader: Reader, writer: ArgumentsWriter, notation: Notation) -> Parsing[None]:
    """Copies the rest of an object after its "{", which is written."""
    return _copy(reader, writer, notation, ["}"])


def _copy(
    reader: Reader, writer: ArgumentsWriter, notation: Notation, closers: list[str]
) -> Parsing[None]:
    """Copies a value, or what follows in the objects and arrays that are open, to the very end."""
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
                yield from reader.space()
                yield from reader.expect(":")
                yield from reader.space()
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
