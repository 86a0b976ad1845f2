"""Custom tools, whose input is a text instead of JSON: how both of OpenAI's APIs ask for them, and
how their calls are read and written.

To the model's template such a tool is a function with one parameter, `input`. So what the model
writes is JSON of that parameter, and the client gets the text in it while it grows.
"""

import json
import re
from collections.abc import Iterator
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


_OPENING = f'{{"{INPUT}":"'
_OPENED = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_PIECE = re.compile(
    r"""(?P<plain>[^"\\]+) | (?P<end>") | \\(?:
    u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2} | (?P<half>u[dD][89abAB][0-9a-fA-F]{2})
    | u[0-9a-fA-F]{4} | [^u])""",
    re.VERBOSE,
)
_FULL_PAIR = 12  # characters of `\ud83d\ude00`


class InputText(msgspec.Struct, eq=False):
    """The text of a call's input, out of its arguments as they grow.

    A model that isn't held to a grammar may write other arguments: then the input is their only
    text, or else all of them as they are.
    """

    _waiting: str = ""
    _state: Literal["before", "inside", "behind", "other"] = "before"

    def grow(self, fragment: str) -> str:
        """What of the input `fragment` adds."""
        self._waiting += fragment
        if self._state == "before":
            self._begin()
        if self._state == "inside":
            return "".join(self._read(over=False))
        return ""

    def finish(self) -> str:
        """What of the input is left when the arguments have ended."""
        if self._state == "inside":
            return "".join(self._read(over=True))
        left, self._waiting = self._waiting, ""
        return _only_text(left) if self._state in ("before", "other") else ""

    def _begin(self) -> None:
        begun = "".join(self._waiting.split())
        if opened := _OPENED.match(self._waiting):
            self._waiting = self._waiting[opened.end() :]
            self._state = "inside"
        elif not _OPENING.startswith(begun):
            self._state = "other"

    def _read(self, *, over: bool) -> Iterator[str]:
        at = 0
        while (piece := _PIECE.match(self._waiting, at)) is not None:
            if piece["end"]:
                self._state = "behind"
                break
            rest = self._waiting[piece.start() : piece.start() + _FULL_PAIR]
            if piece["half"] and not over and len(rest) < _FULL_PAIR and _may_pair(rest[6:]):
                break
            yield piece["plain"] or _decoded(piece[0])
            at = piece.end()
        self._waiting = "" if self._state == "behind" else self._waiting[at:]


def _may_pair(rest: str) -> bool:
    return "\\u".startswith(rest[:2])


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
    texts = (
        [each for each in value.values() if isinstance(each, str)]
        if isinstance(value, dict)
        else []
    )
    if isinstance(value, dict) and isinstance(value.get(INPUT), str):
        return str(value[INPUT])
    return texts[0] if len(texts) == 1 and len(value) == 1 else arguments
