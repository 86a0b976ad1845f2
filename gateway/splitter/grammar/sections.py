"""What the writers of all syntaxes share: tools to be written, sections of calls, white space."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from backends.shapes import JsonSchema
from gateway.constraints.grammars import CompileBudget
from gateway.constraints.json_schema import carried_schema
from gateway.errors import InvalidRequest
from gateway.request import Tool
from gateway.splitter.calls import NAME
from gateway.splitter.coercion import Declared
from gateway.splitter.grammar.lark import Lark, sequence
from gateway.splitter.grammar.schemas import SchemaReader

SPACES = ("", " ", "\n")  # what models put between an opener of words and what follows it
GAP = r"[ \t\r\n]{1,16}"  # what models put between the parts of a call


class Unwritable(Exception):
    """What a model of this family can't be made to write; `args[0]` names the place and why."""


class CallSection(msgspec.Struct, frozen=True):
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


class WritableTool:
    """A tool as its calls are to be written. `parameters`: what a grammar carries of its schema, an
    object without further properties unless it wants them. `reading`: what was made of it for other
    notations than JSON. `relaxed`: what isn't carried.

    Agents bring schemas that are none by dozens. One that can't be used leaves the arguments any
    object, unless the tool is `strict`: then it raises InvalidRequest, which names the tool, as it
    does for what of a strict tool's schema can't be carried. `budget` is that of all tools.
    """

    def __init__(self, tool: Tool, budget: CompileBudget) -> None:
        self.name = tool.name
        schema, self.relaxed = _carried(tool, budget)
        self.parameters = {"type": "object", **(schema or {})}
        self.declared = Declared(tool.parameters or {})
        self.reading = SchemaReader(self.parameters, tool.name)


def _carried(tool: Tool, budget: CompileBudget) -> tuple[Mapping[str, Any] | None, tuple[str, ...]]:
    """What of a tool's schema the grammar carries, and the places of what it doesn't."""
    if not tool.parameters:
        return None, ()
    field = f"tools.{tool.name}.parameters"
    text = msgspec.json.encode(tool.parameters)
    shape = JsonSchema(schema=text, strict=bool(tool.strict), field=field)
    try:
        found = carried_schema(shape, budget)
    except InvalidRequest:
        if tool.strict:
            raise
        return None, (field,)
    carried = found.schema if isinstance(found.schema, dict) else {}
    return carried, tuple(
        f"{field}{each.place.removeprefix('$')}.{each.keyword}" for each in found.relaxed
    )


def gap(lark: Lark) -> str:
    """Optional white space."""
    return f"{lark.regex(GAP)}?"


class Opened(Protocol):
    """A syntax in which each call has an opener of its own."""

    @property
    def call_opens(self) -> Sequence[str]: ...

    @property
    def closers(self) -> Sequence[str]: ...


def opened_calls(
    lark: Lark, syntax: Opened, opener: str, *, first: str, one: str, parallel: bool
) -> CallSection:
    """What follows an opener: calls, each `one` after a `first`; `opener` may be the first's."""
    space = gap(lark)
    calls = repeated(one, f"{space} {first}", parallel=parallel)
    closer = f"{space} {lark.any_of(syntax.closers)}" if syntax.closers else ""
    if opener in syntax.call_opens:
        return CallSection(calls, closer, done=True)
    return CallSection(f"{space} {first} {calls}", closer)


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


def plain_names(tools: Sequence[WritableTool]) -> None:
    """Raises Unwritable for a name that can't stand outside quotes."""
    for tool in tools:
        if not NAME.fullmatch(tool.name):
            raise Unwritable(f"the tool's name {tool.name[:60]!r} can't be written in a call")


def in_order(lark: Lark, found: Sequence[tuple[str, bool]]) -> str:
    """Elements in their order, those that are `True` always."""
    parts = (expression if required else f"{expression}?" for expression, required in found)
    return lark.rule(sequence(tuple(parts)))
