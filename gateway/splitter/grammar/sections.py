"""What the writers of all syntaxes share: tools to be written, sections of calls, white space."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.constraints.json_schema import schema_grammar
from gateway.request import Tool
from gateway.shapes import JsonSchema
from gateway.splitter.calls import NAME
from gateway.splitter.coercion import Declared
from gateway.splitter.grammar.lark import Lark, sequence
from gateway.splitter.grammar.schemas import SchemaReader

SPACES = ("", " ", "\n")  # what models put between an opener of words and what follows it
GAP = r"[ \t\r\n]{1,16}"  # what models put between the parts of a call
LAYOUT = "x-guidance"  # how the JSON of an answer is laid out; a call's is as its model writes it
_LOOKED_AT = (
    b"not", b"oneOf", b"allOf", b"if", b"format", b"pattern", b"patternProperties", b"uniqueItems",
    b"propertyNames", b"minProperties", b"maxProperties", b"contains", b"dependencies",
    b"dependentRequired", b"dependentSchemas", b"unevaluatedProperties", b"unevaluatedItems",
    b"multipleOf", b"$ref", b"$dynamicRef", b"$id", b"definitions",
)  # fmt: skip
_LEADS_ELSEWHERE = ("additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf")


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
    """A tool as its calls are to be written. `parameters`: its schema, closed where it says nothing
    of further properties: the model is to invent none. `json`: what of that llguidance carries.
    `reading`: what was made of it for other notations. Raises InvalidRequest, naming the tool, for
    a schema that is none, and where the tool is `strict` and not all of it can be carried.
    """

    def __init__(self, tool: Tool) -> None:
        self.name = tool.name
        self.parameters = closed(tool.parameters)
        self.json, self.relaxed = _carried(tool, self.parameters)
        self.declared = Declared(tool.parameters or {})
        self.reading = SchemaReader(self.parameters, tool.name)


def _carried(tool: Tool, parameters: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """What of a tool's schema the grammar carries as JSON, and what it doesn't, in words.

    Only a schema with a keyword that may be too much for llguidance is looked at closely: that
    takes milliseconds, and of tools there are dozens.
    """
    text = msgspec.json.encode(parameters)
    if not any(b'"%s":' % keyword in text for keyword in _LOOKED_AT):
        return parameters, []
    shape = JsonSchema(
        schema=text, strict=bool(tool.strict), field=f"tools[{tool.name}].parameters"
    )
    found = schema_grammar(shape, tool.name)
    carried = {
        key: value for key, value in found.entries[0]["json_schema"].items() if key != LAYOUT
    }
    return carried, [f"{shape.field}: {each}" for each in found.relaxed]


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


def plain_names(tools: Sequence[WritableTool]) -> None:
    """Raises Unwritable for a name that can't stand outside quotes."""
    for tool in tools:
        if not NAME.fullmatch(tool.name):
            raise Unwritable(f"the tool's name {tool.name[:60]!r} can't be written in a call")


def in_order(lark: Lark, found: Sequence[tuple[str, bool]]) -> str:
    """Elements in their order, those that are `True` always."""
    parts = (expression if required else f"{expression}?" for expression, required in found)
    return lark.rule(sequence(tuple(parts)))
