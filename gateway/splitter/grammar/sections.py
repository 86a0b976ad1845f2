"""What the writers of all syntaxes share: tools to be written, sections of calls, white space."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.request import Tool
from gateway.splitter.calls import NAME
from gateway.splitter.coercion import Declared
from gateway.splitter.grammar.lark import Lark, sequence
from gateway.splitter.grammar.schemas import Reading

SPACES = ("", " ", "\n")  # what models put between an opener of words and what follows it
GAP = r"[ \t\r\n]{1,16}"  # what models put between the parts of a call
_LEADS_ELSEWHERE = ("additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf")


class Unwritable(Exception):
    """What a model of this family can't be made to write; `args[0]` names the place and why."""


class Section(msgspec.Struct, frozen=True):
    """What follows an opener. After `calls` the output may end; after `closer` it is text again, or
    after `calls` if `done`. `again`: another opener may follow `calls` without a closer.
    """

    calls: str
    closer: str = ""
    done: bool = False
    again: bool = True


class Unmarked(msgspec.Struct, frozen=True):
    """Calls without an opener. `unlike`: a regular expression of what an answer that is none can't
    begin with.
    """

    calls: str
    unlike: str


class Offered:
    """A tool as its calls are to be written. `parameters`: its schema, closed where it says nothing
    of further properties: the model is to invent none. `reading`: what was made of it.
    """

    def __init__(self, tool: Tool) -> None:
        self.name = tool.name
        self.parameters = closed(tool.parameters)
        self.declared = Declared(tool.parameters or {})
        self.reading = Reading(self.parameters, tool.name)


def closed(parameters: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The schema of arguments: an object, without undeclared properties unless it allows them."""
    if not parameters:
        return {"type": "object"}
    schema = {"type": "object", **parameters}
    if "properties" in schema and not any(key in schema for key in _LEADS_ELSEWHERE):
        schema["additionalProperties"] = False
    return schema


def gap(lark: Lark) -> str:
    """Optional white space."""
    return f"{lark.regex(GAP)}?"


def repeated(one: str, separator: str, *, parallel: bool) -> str:
    """One call, or several."""
    return f"{one} ({separator} {one})*" if parallel else one


def members(lark: Lark, found: Sequence[tuple[str, bool]], separator: str) -> str:
    """Members in their order, those that are `True` always, with separators between them."""
    rest, whole = '""', '""'
    for expression, required in reversed(found):
        begun = sequence((expression, rest)) if rest != '""' else expression
        whole = lark.rule(begun if required else f"{begun} | {whole}")
        more = f"{separator} {expression}"
        rest = lark.rule(
            sequence((more if required else f"({more})?", "" if rest == '""' else rest))
        )
    return whole


def plain_names(tools: Sequence[Offered]) -> None:
    """Raises Unwritable for a name that can't stand outside quotes."""
    for tool in tools:
        if not NAME.fullmatch(tool.name):
            raise Unwritable(f"the tool's name {tool.name[:60]!r} can't be written in a call")


def in_order(lark: Lark, found: Sequence[tuple[str, bool]]) -> str:
    """Elements in their order, those that are `True` always."""
    parts = (expression if required else f"{expression}?" for expression, required in found)
    return lark.rule(sequence(tuple(parts)))
