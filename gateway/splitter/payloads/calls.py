"""Collects tool calls from parsers: numbers, ids, events; and reads what several syntaxes have, a
section of calls.

What a model wrote is never lost: it goes into a call's name and arguments or it is text. So the
reader keeps what was read until it is delivered: before a call is open all of it, once one is open
what was read since something of its arguments was written. When the call comes to nothing or breaks
off, that is given back as text.
"""

import re
import secrets
import string
from collections.abc import Callable, Sequence
from typing import TypeVar

from gateway.splitter.payloads.arguments import ArgumentsWriter
from gateway.splitter.payloads.coercion import NOTHING, Declared
from gateway.splitter.payloads.reading import LONGEST, Malformed, Parsing, Reader
from gateway.splitter.payloads.syntax import IdStyle, OpenedCalls
from gateway.terms.events import ArgumentsGrown, Event, ToolClosed, ToolOpened
from gateway.terms.request import Tool

NAME = re.compile(r"[\w.:/-]+")
_MISTRAL_ALPHABET = string.ascii_letters + string.digits


class Calls:
    """The calls of one answer. `remark`: what of a delivered call was left out, for the log."""

    def __init__(
        self,
        reader: Reader,
        events: list[Event],
        tools: Sequence[Tool],
        ids: IdStyle,
        first_number: int,
    ) -> None:
        self._reader = reader
        self._events = events
        self._tools = {tool.name: Declared(tool.parameters or {}) for tool in tools}
        self._ids = ids
        self._first_number = first_number
        self._used_ids: set[str] = set()  # those that a model may write, too
        self._next_numbers: dict[str, int] = {}
        self._fragments: list[str] = []
        self._writer: ArgumentsWriter | None = None
        self.count = 0
        self.remark: str | None = None

    @property
    def is_open(self) -> bool:
        """A call has begun and not ended."""
        return self._writer is not None

    def knows(self, name: str) -> bool:
        """The request has a tool of this name."""
        return name in self._tools

    def declared(self, name: str) -> Declared:
        """What the schema of a tool's arguments declares: nothing where the tool is unknown."""
        return self._tools.get(name, NOTHING)

    def open(self, name: str, given_id: str = "") -> ArgumentsWriter:
        """Begins a call, whose arguments go to the writer. Raises Malformed for no proper name."""
        assert self._writer is None
        if not (self.knows(name) or (NAME.fullmatch(name) and len(name) <= LONGEST)):
            raise Malformed(f"{name[:60]!r} is no function name")
        usable = 0 < len(given_id) <= LONGEST and given_id not in self._used_ids
        call_id = given_id if usable else self._new_id(name)
        if usable:
            self._used_ids.add(call_id)
        self._events.append(ToolOpened(self.count, call_id, name))
        self._reader.keep()
        self._writer = ArgumentsWriter(self._write)
        return self._writer

    def _write(self, fragment: str) -> None:
        """Takes a fragment of the arguments: what was read up to here is delivered."""
        self._fragments.append(fragment)
        self._reader.keep()

    def close(self) -> None:
        """Ends the open call; arguments that never came are an empty object."""
        assert self._writer is not None
        self._writer.finish_off()
        if not self._writer.begun:
            self._writer.scalar("{}")
        self._end(ToolClosed(self.count))

    def leave(self) -> None:
        """The open call broke off. It stays open: half of its arguments are no whole ones."""
        assert self._writer is not None
        if not self._writer.begun:
            self._write("{")
        self._end()

    def _end(self, *events: Event) -> None:
        self.flush()
        self._events += events
        self._writer = None
        self.count += 1
        self.settle()

    def settle(self) -> None:
        """What was read up to here belongs to calls that are delivered."""
        self._reader.keep()

    def flush(self) -> None:
        """Turns the fragments written so far into one event."""
        if fragment := "".join(self._fragments):
            self._events.append(ArgumentsGrown(self.count, fragment))
        self._fragments.clear()

    def _new_id(self, name: str) -> str:
        match self._ids:
            case "openai":
                return f"call_{secrets.token_hex(12)}"
            case "mistral":
                return "".join(secrets.choice(_MISTRAL_ALPHABET) for _ in range(9))
            case _:  # Kimi's
                number = max(self._first_number + self.count, self._next_numbers.get(name, 0))
                while (new := f"functions.{name}:{number}") in self._used_ids:
                    number += 1
                self._next_numbers[name] = number + 1  # so that no number is tried twice
                self._used_ids.add(new)
                return new


Opened = TypeVar("Opened", bound=OpenedCalls)


def read_section(
    reader: Reader,
    calls: Calls,
    syntax: Opened,
    opener: str,
    read_call: Callable[[Reader, Calls, Opened], Parsing[None]],
) -> Parsing[None]:
    """Reads calls until the section closes or no other begins. `opener` may begin the first;
    `read_call` reads one, after what opens it.
    """
    opened = opener in syntax.call_opens
    while True:
        if not opened:
            yield from reader.spaced(reader.accept(syntax.before_call))
            yield from reader.expect(*syntax.call_opens)
        opened = False
        yield from read_call(reader, calls, syntax)
        calls.settle()
        yield from reader.space()
        if (yield from reader.accept_close(syntax.closers)):
            return
        if not (yield from reader.looking_at((*syntax.before_call, *syntax.call_opens))):
            return
