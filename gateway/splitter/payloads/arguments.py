"""Writes one JSON value in fragments that can always be closed to valid JSON.

Every payload parser writes through this, so arguments are valid JSON by construction. A key waits
for its value and a comma for what follows it: there is never one to take back.
"""

from collections.abc import Callable

from gateway.splitter.payloads.reading import Malformed

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
