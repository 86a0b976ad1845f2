"""A shape's grammar as llguidance takes it, what of the shape it doesn't carry, and llguidance's
word on whether it can be compiled.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from llguidance import LLMatcher

from backends.grammar_limits import parser_limits
from gateway.errors import InvalidRequest

Entry: TypeAlias = Mapping[str, Any]  # {"name", and "json_schema" or "lark_grammar"}


class Relaxation(msgspec.Struct, frozen=True):
    """A keyword that the grammar doesn't carry.

    `place`: of the schema it stands in, `$.properties.size`. `became`: what the grammar has
    instead. `checked`: the check of the finished answer sees to it.
    """

    place: str
    keyword: str
    became: str
    checked: bool = True

    def __str__(self) -> str:
        later = "checked afterwards" if self.checked else "not checked"
        return f'{self.place}: "{self.keyword}" relaxed to {self.became}, {later}'


class Check(msgspec.Struct, frozen=True):
    """What the finished answer has to satisfy: a schema of draft 2020-12 whose references all lead
    to its own `$defs`.
    """

    schema: Mapping[str, Any] | bool


class ShapeGrammar(msgspec.Struct, frozen=True):
    """A shape, compiled.

    `entries` belong into `{"grammars": [...]}`; the first is called `name`, and a Lark grammar
    beside them refers to it with `@name`. The others are named after it.
    """

    name: str
    entries: tuple[Entry, ...]
    relaxed: tuple[Relaxation, ...] = ()
    check: Check | None = None

    @property
    def text(self) -> str:
        """The whole as llguidance takes it, where nothing stands around it."""
        return grammar_text(self.entries)


def grammar_text(entries: Sequence[Entry]) -> str:
    """Llguidance's JSON; the first entry is where a text begins."""
    return msgspec.json.encode({"grammars": entries}).decode()


def fault(entries: Sequence[Entry]) -> str | None:
    """Why llguidance can't compile it, in its words; None where it can.

    What depends on the model's vocabulary (special tokens) is only seen where that is known.
    """
    refused, messages = LLMatcher.validate_grammar_with_warnings(
        grammar_text(entries), limits=parser_limits()
    )
    return messages[0] if refused else None


def proven(entries: Sequence[Entry], field: str) -> tuple[Entry, ...]:
    """`entries`, which can be compiled. Raises InvalidRequest with llguidance's words."""
    if message := fault(entries):
        raise InvalidRequest(f"{field}: {brief(message)}", param=field)
    return tuple(entries)


def brief(message: str) -> str:
    """What is wrong in one line, without the excerpts of the grammar that follow it."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    reasons = [line for line in lines if line.startswith("error: ")]
    line = reasons[0] if reasons else lines[0]
    return line if len(line) <= 300 else line[:300] + "…"
