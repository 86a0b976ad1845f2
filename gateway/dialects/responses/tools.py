"""The tools of a response, and the choice among them."""

from collections.abc import Sequence

import msgspec

from gateway.dialects.fields import Fields
from gateway.dialects.parameters import read_choice_mode, require_tool
from gateway.dialects.responses.wire import ToolChoiceWire, ToolWire
from gateway.request import NamedTool, Tool, ToolChoice


class Tools(msgspec.Struct, frozen=True):
    """What may be called, and whether something must be. `ignored` names what can't be."""

    tools: tuple[Tool, ...]
    choice: ToolChoice
    ignored: tuple[str, ...] = ()


def read_tools(
    fields: Fields, wires: Sequence[ToolWire], choice: str | ToolChoiceWire | None
) -> Tools:
    """Tools that OpenAI's servers run (`web_search`, …) are left out, and named. Raises
    InvalidRequest.
    """
    tools = tuple(
        _tool(fields, f"tools[{k}]", wire)
        for k, wire in enumerate(wires)
        if wire.type == "function"
    )
    chosen, allowed = _choice(fields, choice, tools)
    left_out = (f"tools[{k}]" for k, wire in enumerate(wires) if wire.type != "function")
    return Tools(allowed, chosen, tuple(left_out))


def _tool(fields: Fields, path: str, wire: ToolWire) -> Tool:
    function = wire.function or wire
    if not function.name:
        raise fields.wrong(f"{path}.name", "A function needs a name.")
    return Tool(
        name=function.name,
        description=function.description,
        parameters=function.parameters,
        strict=function.strict,
    )


def _choice(
    fields: Fields, wire: str | ToolChoiceWire | None, tools: tuple[Tool, ...]
) -> tuple[ToolChoice, tuple[Tool, ...]]:
    match wire:
        case None:
            return ("auto" if tools else "none"), tools
        case ToolChoiceWire(type="function", name=name):
            require_tool(fields, "tool_choice.name", name, {tool.name for tool in tools})
            return NamedTool(name), tools
        case ToolChoiceWire(type="allowed_tools"):
            return _among(fields, wire, tools)
        case str(mode):
            return read_choice_mode(fields, "tool_choice", mode, tools), tools
    message = "Expected 'none', 'auto', 'required', a function, or allowed_tools."
    raise fields.wrong("tool_choice", message)


def _among(
    fields: Fields, wire: ToolChoiceWire, tools: tuple[Tool, ...]
) -> tuple[ToolChoice, tuple[Tool, ...]]:
    known = {tool.name for tool in tools}
    for k, named in enumerate(wire.tools):
        if named.type == "function":
            require_tool(fields, f"tool_choice.tools[{k}].name", named.name, known)
    names = {named.name for named in wire.tools}
    allowed = tuple(tool for tool in tools if tool.name in names)
    return read_choice_mode(fields, "tool_choice.mode", wire.mode, allowed), allowed
