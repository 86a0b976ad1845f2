"""The vocabulary of the format table: how a family marks its phases and writes its calls. Data only."""

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from gateway.splitter.calls import IdStyle


class ReasoningMarkers(msgspec.Struct, frozen=True):
    """What surrounds reasoning. The first of each tuple is what the family itself writes.

    `anywhere`: the open marker is a special token and counts wherever it stands. A textual one counts only
    at the very start of the output; later it is a word of the answer.
    """

    opens: tuple[str, ...]
    closes: tuple[str, ...]
    anywhere: bool = False

    @property
    def open(self) -> str:
        """What begins reasoning, as the family writes it."""
        return self.opens[0]

    @property
    def close(self) -> str:
        """What ends reasoning, as the family writes it: say this to make a model stop thinking."""
        return self.closes[0]


class JsonCalls(msgspec.Struct, frozen=True, kw_only=True):
    """Calls as JSON objects that carry name and arguments: one, several, or an array of them.

    `closers` may be missing in the output. `fences`: texts that may stand before the JSON.
    `named_by_key`: each object is {name: arguments}.
    """

    openers: tuple[str, ...] = ()
    closers: tuple[str, ...] = ()
    fences: tuple[str, ...] = ()
    needs_fence: bool = False
    needs_array: bool = False
    name_keys: tuple[str, ...] = ("name",)
    argument_keys: tuple[str, ...] = ("arguments", "parameters")
    id_keys: tuple[str, ...] = ()
    named_by_key: bool = False
    at_start: bool = False


Syntax: TypeAlias = JsonCalls


class Format(msgspec.Struct, frozen=True, kw_only=True):
    """One family's way of writing: an entry of the table.

    `shell_opens` and `shell_closes` surround the answer and are no part of it. `special_tokens`: the markers
    are special tokens, so the engine has to be asked for them (`skip_special_tokens=False`), and they mean
    what they mean wherever they stand. `calls_end_reasoning`: a call inside reasoning that was never closed
    is a call.
    """

    id: str
    families: tuple[str, ...]
    reasoning: ReasoningMarkers | None = None
    syntaxes: tuple[Syntax, ...] = ()
    shell_opens: tuple[str, ...] = ()
    shell_closes: tuple[str, ...] = ()
    special_tokens: bool = False
    calls_end_reasoning: bool = False
    ids: IdStyle = "openai"


FormatTable: TypeAlias = Mapping[str, Format]
