"""Custom tools, whose input is a text instead of JSON: how both of OpenAI's APIs ask for them, and
how their calls are read and written.

To the model's template such a tool is a function with one parameter, `input`. So what the model
writes is JSON of that parameter, and the client gets the text in it while it grows.
"""

import json
import re
from typing import Any, Literal

import msgspec

from backends.contract.conversation import INPUT, Grammar, Regex, ToolInput
from gateway.dialects.fields import Fields
from gateway.terms.request import Tool, ToolCall

LONGEST_SHOWN = 16_384  # characters of a grammar that the model is shown


class GrammarWire(msgspec.Struct, frozen=True):
    """A grammar, as chat completions nest it."""

    definition: str = ""
    syntax: str = "lark"


class FormatWire(msgspec.Struct, frozen=True, kw_only=True):
    """What the input may be: any text, or a grammar's."""

    type: Literal["text", "grammar"] = "text"
    definition: str = ""
    syntax: str = "lark"
    grammar: GrammarWire | None = None


class CustomWire(msgspec.Struct, frozen=True):
    """A custom tool, without its type."""

    name: str = ""
    description: str | None = None
    format: FormatWire | None = None


def custom_tool(fields: Fields, path: str, wire: CustomWire) -> Tool:
    """The tool at `path`. Raises InvalidRequest."""
    if not wire.name:
        raise fields.wrong(f"{path}.name", "A custom tool needs a name.")
    free = ToolInput() if wire.format is None else _input(fields, f"{path}.format", wire.format)
    text = {"type": "string", "description": _said(free)}
    parameters = {
        "type": "object",
        "properties": {INPUT: text},
        "required": [INPUT],
        "additionalProperties": False,
    }
    return Tool(name=wire.name, description=wire.description, parameters=parameters, input=free)


def _input(fields: Fields, path: str, wire: FormatWire) -> ToolInput:
    if wire.type == "text":
        return ToolInput()
    inner = wire.grammar or GrammarWire(wire.definition, wire.syntax)
    path = f"{path}.grammar" if wire.grammar else path
    if not inner.definition:
        raise fields.wrong(f"{path}.definition", "This field is required.")
    match inner.syntax:
        case "lark":
            return ToolInput(Grammar(text=inner.definition, field=f"{path}.definition"))
        case "regex":
            return ToolInput(Regex(pattern=inner.definition, field=f"{path}.definition"))
    raise fields.wrong(f"{path}.syntax", f"Expected 'lark' or 'regex', got {inner.syntax!r:.64}.")


def _said(free: ToolInput) -> str:
    """What the model is told of the input."""
    match free.shape:
        case Grammar(text=text):
            kind, definition = "Lark grammar", text
        case Regex(pattern=pattern):
            kind, definition = "regular expression", pattern
        case _:
            return "The whole input of the tool, as plain text."
    shown = definition[:LONGEST_SHOWN] + ("…" if len(definition) > LONGEST_SHOWN else "")
    return f"The whole input of the tool, as plain text that matches this {kind}:\n{shown}"


def custom_call(call_id: str, name: str, text: str) -> ToolCall:
    """A call of an earlier turn, as the model wrote it."""
    return ToolCall(call_id, name, json.dumps({INPUT: text}, ensure_ascii=False))


_OPENED = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_ESCAPE = re.compile(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u....|\\.", re.DOTALL)
_HALF = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}")  # of a pair, as `\ud83d\ude00`
# Text and escapes that are whole: half a pair is, once it can't become one any more.
_WHOLE = re.compile(
    r"""(?: [^"\\]++ | \\[^u]
    | \\u[dD][89abAB][0-9a-fA-F]{2} (?: \\u[dD][c-fC-F][0-9a-fA-F]{2} | (?!(?:\\(?:u.{0,3})?)?\Z) )
    | \\u(?![dD][89abAB])[0-9a-fA-F]{4} )*+""",
    re.VERBOSE | re.DOTALL,
)


class InputText(msgspec.Struct, eq=False):
    """The text of a call's input, out of its arguments as they grow.

    A model that isn't held to a grammar may write other arguments: then the input is their only
    text, or else all of them as they are.
    """

    _waiting: str = ""
    _state: Literal["before", "inside", "behind"] = "before"

    def grow(self, fragment: str) -> str:
        """What of the input `fragment` adds."""
        self._waiting += fragment
        if self._state == "before" and (opened := _OPENED.match(self._waiting)):
            self._state, self._waiting = "inside", self._waiting[opened.end() :]
        if self._state != "inside":
            return ""
        found = _WHOLE.match(self._waiting)
        assert found is not None, "nothing is whole, too"
        self._waiting = self._waiting[found.end() :]
        if self._waiting.startswith('"'):
            self._state = "behind"
        return _ESCAPE.sub(lambda escape: _decoded(escape[0]), found[0])

    def finish(self) -> str:
        """What of the input is left when the arguments have ended."""
        if self._state == "before":
            return _only_text(self._waiting)
        half = self._state == "inside" and _HALF.match(self._waiting)
        return _decoded(half[0]) if half else ""


def _decoded(escape: str) -> str:
    try:
        text = json.loads(f'"{escape}"')
    except ValueError:
        return escape
    return "".join("�" if "\ud800" <= each <= "\udfff" else each for each in text)


def _only_text(arguments: str) -> str:
    try:
        value: Any = json.loads(arguments) if arguments.strip() else {INPUT: ""}
    except (ValueError, RecursionError):
        return arguments
    match value:
        case dict() if isinstance(text := value.get(INPUT), str):
            return text
        case dict() if len(value) == 1 and isinstance(text := next(iter(value.values())), str):
            return text
    return arguments
