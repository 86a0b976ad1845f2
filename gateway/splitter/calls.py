"""Where parsers deliver tool calls: numbers, ids, events. Knows no syntax."""

import re
import secrets
import string
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from gateway.events import ArgumentsGrown, Event, ToolClosed, ToolOpened
from gateway.request import Tool
from gateway.splitter.arguments import ArgumentsWriter
from gateway.splitter.reading import Malformed, Reader

IdStyle: TypeAlias = Literal["openai", "mistral", "kimi"]

NAME = re.compile(r"[\w.:/-]+")
_MISTRAL_ALPHABET = string.ascii_letters + string.digits


class Calls:
    """The calls of one answer.

    While no call is open the reader keeps what is read, so that a call that comes to nothing can be
    given back as text; once a call is open its text is spent.
    """

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
        self._tools = {tool.name: tool for tool in tools}
        self._ids = ids
        self._first_number = first_number
        self._used_ids: set[str] = set()
        self._fragments: list[str] = []
        self._writer: ArgumentsWriter | None = None
        self.count = 0

    @property
    def is_open(self) -> bool:
        """A call has begun and not ended."""
        return self._writer is not None

    def knows(self, name: str) -> bool:
        """The request has a tool of this name."""
        return name in self._tools

    def schema(self, name: str) -> Mapping[str, Any]:
        """The JSON schema of a tool's arguments; empty where nothing is known of it."""
        tool = self._tools.get(name)
        return (tool.parameters if tool is not None else None) or {}

    def open(self, name: str, given_id: str = "") -> ArgumentsWriter:
        """Begins a call, whose arguments go to the writer. Raises Malformed for no proper name."""
        assert self._writer is None
        if not (self.knows(name) or NAME.fullmatch(name)):
            raise Malformed(f"{name[:60]!r} is no function name")
        self._reader.forget()
        usable = given_id and given_id not in self._used_ids
        call_id = given_id if usable else self._new_id(name)
        self._used_ids.add(call_id)
        self._events.append(ToolOpened(self.count, call_id, name))
        self._writer = ArgumentsWriter(self._fragments.append)
        return self._writer

    def close(self) -> None:
        """Ends the open call; arguments that never came are an empty object."""
        assert self._writer is not None
        self._writer.finish_off()
        if not self._writer.begun:
            self._writer.scalar("{}")
        self.flush()
        self._events.append(ToolClosed(self.count))
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
                number = self._first_number + self.count
                while f"functions.{name}:{number}" in self._used_ids:
                    number += 1
                return f"functions.{name}:{number}"
