"""From Ollama's messages to ours. Knows no template."""

from collections.abc import Sequence

import msgspec

from gateway.dialects.fields import Fields
from gateway.dialects.ollama.wire import MessageWire, ToolWire
from gateway.request import ImagePart, Message, Part, Role, TextPart, Tool, ToolCall

ROLES: dict[str, Role] = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


_MEDIA_TYPES = {
    "iVBORw0KGgo": "image/png",
    "/9j/": "image/jpeg",
    "R0lGOD": "image/gif",
    "UklGR": "image/webp",
    "Qk": "image/bmp",
}


def read_turns(fields: Fields, turns: Sequence[MessageWire]) -> tuple[Message, ...]:
    """The conversation. Results find their calls by id, by name, or by their order. Raises
    InvalidRequest.
    """
    open_calls: list[ToolCall] = []
    found = []
    for k, wire in enumerate(turns):
        path = f"messages[{k}]"
        if (role := ROLES.get(wire.role)) is None:
            names = ", ".join(repr(name) for name in ROLES)
            raise fields.wrong(f"{path}.role", f"Expected one of {names}, got {wire.role!r:.64}.")
        message = Message(
            role=role,
            parts=read_parts(path, wire.content or "", wire.images or ()),
            reasoning=wire.thinking or None,
            tool_calls=_calls(wire, k),
            tool_call_id=_answered(wire, open_calls) if role == "tool" else None,
            name=wire.tool_name or None,
        )
        open_calls += message.tool_calls
        found.append(message)
    return tuple(found)


def read_parts(path: str, text: str, images: Sequence[str]) -> tuple[Part, ...]:
    """The pictures, and behind them the text. `path` is where `images` stands; "": in the body."""
    place = f"{path}.images" if path else "images"
    pictures = (ImagePart(_url(data), field=f"{place}[{k}]") for k, data in enumerate(images))
    return (*pictures, *((TextPart(text),) if text else ()))


def _url(data: str) -> str:
    """A `data:` URL; its media type is seen from the first bytes, which are base64 too."""
    kinds = (kind for begin, kind in _MEDIA_TYPES.items() if data.startswith(begin))
    return f"data:{next(kinds, '')};base64,{data}"


def _calls(wire: MessageWire, turn: int) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(
            call.id or f"call_{turn}_{k}",
            call.function.name,
            msgspec.json.encode(call.function.arguments).decode(),
        )
        for k, call in enumerate(wire.tool_calls or ())
    )


def _answered(wire: MessageWire, open_calls: list[ToolCall]) -> str | None:
    """The id of the call that a result answers; that call is open no more."""
    called = _called(wire, open_calls)
    if called is None:
        return wire.tool_call_id
    open_calls.remove(called)
    return called.id


def _called(wire: MessageWire, open_calls: Sequence[ToolCall]) -> ToolCall | None:
    for call in open_calls:
        if wire.tool_call_id and call.id == wire.tool_call_id:
            return call
    for call in open_calls:
        if not wire.tool_name or call.name == wire.tool_name:
            return call
    return None


def read_tool(fields: Fields, path: str, wire: ToolWire) -> Tool:
    """One tool. Raises InvalidRequest."""
    if wire.type != "function":
        raise fields.wrong(f"{path}.type", f"Expected 'function', got {wire.type!r:.64}.")
    if not wire.function.name:
        raise fields.wrong(f"{path}.function.name", "A function needs a name.")
    function = wire.function
    return Tool(
        name=function.name, description=function.description, parameters=function.parameters
    )
