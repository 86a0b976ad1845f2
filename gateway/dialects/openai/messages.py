"""Parses the conversation and its tools from OpenAI's format. Knows no template."""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from backends.contract.remote import FurtherOfCall, FurtherOfMessage
from gateway.dialects.custom import CustomWire, custom_call, custom_tool
from gateway.dialects.fields import TOO_DEEP, Fields, nests_deep
from gateway.dialects.parameters import StrictFunctionWire, read_choice_mode, require_tool
from gateway.dialects.parts import ImageUrlWire, PartWire, read_parts
from gateway.dialects.served import McpToolWire, read_served
from gateway.terms.request import (
    Message,
    NamedTool,
    Role,
    ServedTools,
    Tool,
    ToolCall,
    ToolChoice,
    Unapplied,
)

ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


class FunctionCallWire(msgspec.Struct, frozen=True):
    """Arguments are JSON text; some clients send the object itself, or what broke off."""

    name: str
    arguments: Any = None


def _further(wire: FurtherOfCall, kind: type[FurtherOfCall]) -> dict[str, Any]:
    found = ((name, getattr(wire, name)) for name in kind.__struct_fields__)
    return {name: value for name, value in found if value is not None and value is not UNSET}


class CustomCallWire(msgspec.Struct, frozen=True):
    """The input is a text."""

    name: str
    input: str = ""


class ToolCallWire(FurtherOfCall, frozen=True, kw_only=True):
    """A tool call in an earlier turn, of a function or of a custom tool."""

    function: FunctionCallWire | None = None
    custom: CustomCallWire | None = None
    id: str | None = None


class MessageWire(FurtherOfMessage, frozen=True, kw_only=True):
    """One message. A missing `content` is equivalent to null."""

    role: str
    content: str | list[PartWire] | None = None
    name: str | None = None
    tool_calls: list[ToolCallWire] | None = None
    tool_call_id: str | None = None
    function_call: FunctionCallWire | None = None  # the form before tool_calls
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None


class ToolWire(McpToolWire, frozen=True, kw_only=True):
    """A tool: a function, a custom tool, or those of an MCP server."""

    type: str = "function"
    function: StrictFunctionWire | None = None
    custom: CustomWire | None = None


class NameWire(msgspec.Struct, frozen=True):
    """A function or a custom tool, named."""

    name: str


class NamedToolWire(msgspec.Struct, frozen=True):
    """One tool in a choice. Hugging Face's client leaves `type` out."""

    function: NameWire | None = None
    custom: NameWire | None = None
    type: str = "function"

    @property
    def named(self) -> NameWire | None:
        """Whichever it is."""
        return self.custom if self.type == "custom" else self.function


class AllowedToolsWire(msgspec.Struct, frozen=True):
    """A choice among some of the tools."""

    tools: list[NamedToolWire]
    mode: str = "auto"


class ToolChoiceWire(NamedToolWire, frozen=True):
    """The forms of `tool_choice` that are objects."""

    allowed_tools: AllowedToolsWire | None = None


class ConversationWire(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a chat body that this module reads."""

    messages: list[MessageWire]
    tools: list[ToolWire] = []
    tool_choice: str | ToolChoiceWire | None = None


class Conversation(msgspec.Struct, frozen=True):
    """Messages and tools, parsed. `unapplied`: what has no meaning here."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    allowed: frozenset[str] | None  # those of them that may be called; None: all
    tool_choice: ToolChoice
    served: tuple[ServedTools, ...] = ()  # of MCP servers
    unapplied: tuple[Unapplied, ...] = ()


def read_conversation(fields: Fields) -> Conversation:
    """The messages, the tools that may be called and whether one must be. Raises InvalidRequest."""
    wire = fields.read(ConversationWire)
    if not wire.messages:
        raise fields.wrong("messages", "At least one message is required.")
    messages = tuple(
        _message(fields, f"messages[{k}]", message) for k, message in enumerate(wire.messages)
    )
    placed = [(f"tools[{k}]", tool) for k, tool in enumerate(wire.tools)]
    tools = tuple(_tool(fields, path, tool) for path, tool in placed if tool.type != "mcp")
    served = tuple(
        read_served(fields, path, tool, asks=False) for path, tool in placed if tool.type == "mcp"
    )
    choice, allowed = _choice(fields, wire.tool_choice, tools, has_served=bool(served))
    return Conversation(messages, tools, allowed, choice, served, tuple(_unapplied(wire)))


def _unapplied(wire: ConversationWire) -> Iterator[Unapplied]:
    """What no engine here can do, named once however often it stands in the body."""
    parts = (
        part
        for message in wire.messages
        if isinstance(message.content, list)
        for part in message.content
    )
    if any(
        isinstance(part.image_url, ImageUrlWire) and part.image_url.detail == "low"
        for part in parts
    ):
        yield Unapplied("messages[].content[].image_url.detail")


def _message(fields: Fields, path: str, wire: MessageWire) -> Message:
    role = fields.meant(f"{path}.role", wire.role, ROLES)
    return Message(
        role=role,
        parts=read_parts(fields, f"{path}.content", wire.content),
        reasoning=wire.reasoning_content or wire.reasoning or wire.thinking or None,
        tool_calls=_tool_calls(fields, path, wire) if wire.tool_calls or wire.function_call else (),
        tool_call_id=wire.tool_call_id,
        name=wire.name or None,
        further=_further(wire, FurtherOfMessage) if role == "assistant" else {},
    )


def _tool_calls(fields: Fields, path: str, wire: MessageWire) -> tuple[ToolCall, ...]:
    calls = tuple(
        _any_call(fields, f"{path}.tool_calls[{k}]", call)
        for k, call in enumerate(wire.tool_calls or ())
    )
    if wire.function_call is not None and not calls:
        return (_tool_call(fields, f"{path}.function_call", "", wire.function_call),)
    return calls


def _any_call(fields: Fields, path: str, wire: ToolCallWire) -> ToolCall:
    match wire:
        case ToolCallWire(custom=CustomCallWire(name, text)):
            return custom_call(wire.id or "", name, text)
        case ToolCallWire(function=FunctionCallWire() as function):
            further = _further(wire, FurtherOfCall)
            return _tool_call(fields, f"{path}.function", wire.id or "", function, further)
    raise fields.wrong(f"{path}.function", "This field is required.")


def _tool_call(
    fields: Fields,
    path: str,
    call_id: str,
    function: FunctionCallWire,
    further: Mapping[str, Any] = {},
) -> ToolCall:
    match function.arguments:
        case str(text):
            if nests_deep(text):
                raise fields.wrong(f"{path}.arguments", TOO_DEEP)
            arguments = text
        case None:
            arguments = "{}"
        case value:
            arguments = msgspec.json.encode(value).decode()
    return ToolCall(call_id, function.name, arguments, further)


def _tool(fields: Fields, path: str, wire: ToolWire) -> Tool:
    if wire.type == "custom":
        return custom_tool(fields, f"{path}.custom", wire.custom or CustomWire())
    if wire.type != "function":
        message = f"Expected 'function', 'custom' or 'mcp', got {wire.type!r}."
        raise fields.wrong(f"{path}.type", message)
    if wire.function is None:
        raise fields.wrong(f"{path}.function", "This field is required.")
    return wire.function.tool(fields, f"{path}.function")


def _choice(
    fields: Fields,
    wire: str | ToolChoiceWire | None,
    tools: tuple[Tool, ...],
    *,
    has_served: bool,
) -> tuple[ToolChoice, frozenset[str] | None]:
    """The choice, and the tools it leaves (None: all)."""
    match wire:
        case None | str():
            has_tools = bool(tools) or has_served
            return read_choice_mode(fields, "tool_choice", wire, has_tools=has_tools), None
        case ToolChoiceWire(type="function" | "custom" as kind, named=NameWire(name)):
            require_tool(fields, f"tool_choice.{kind}.name", name, {tool.name for tool in tools})
            return NamedTool(name), None
        case ToolChoiceWire(type="allowed_tools", allowed_tools=AllowedToolsWire() as allowed):
            among, names = _among(fields, allowed, tools)
            return (among if names or has_served else "none"), names
        case _:
            raise fields.wrong(
                "tool_choice",
                "Expected 'none', 'auto', 'required', a function, a custom tool, or allowed_tools.",
            )


def _among(
    fields: Fields, wire: AllowedToolsWire, tools: tuple[Tool, ...]
) -> tuple[ToolChoice, frozenset[str]]:
    path = "tool_choice.allowed_tools"
    known = {tool.name for tool in tools}
    names = [tool.named.name if tool.named else "" for tool in wire.tools]
    for k, (tool, name) in enumerate(zip(wire.tools, names, strict=True)):
        kind = "custom" if tool.type == "custom" else "function"
        require_tool(fields, f"{path}.tools[{k}].{kind}.name", name, known)
    allowed = tuple(tool for tool in tools if tool.name in names)
    mode = read_choice_mode(fields, f"{path}.mode", wire.mode, has_tools=bool(allowed))
    return mode, frozenset(tool.name for tool in allowed)
