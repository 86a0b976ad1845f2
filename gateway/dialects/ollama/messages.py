"""From Ollama's messages to ours. Knows no template."""

from collections import deque
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
    open_calls = _OpenCalls()
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
            tool_call_id=open_calls.answered(wire) if role == "tool" else None,
            name=wire.tool_name or None,
        )
        open_calls.add(message.tool_calls)
        found.append(message)
    return tuple(found)


def read_parts(path: str, text: str, images: Sequence[str]) -> tuple[Part, ...]:
    """The pictures, and behind them the text. `path` is where `images` stands; "": in the body."""
    place = f"{path}.images" if path else "images"
    pictures = (ImagePart(_url(data), field=f"{place}[{k}]") for k, data in enumerate(images))
    return (*pictures, *((TextPart(text),) if text else ()))


def _url(data: str) -> str:
    """A `data:` URL; its media type is seen from the first bytes, which are base64 too. Open WebUI
    sends addresses of pictures as they are.
    """
    if data.startswith(("data:", "http:", "https:")):
        return data
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


class _OpenCalls:
    """Calls that no result has answered yet."""

    def __init__(self) -> None:
        self._open: set[str] = set()  # ids
        # Ids by name, and under "" all of them, as they were made; answered ones leave late.
        self._lines: dict[str, deque[str]] = {"": deque()}

    def add(self, calls: Sequence[ToolCall]) -> None:
        for call in calls:
            self._open.add(call.id)
            for name in ("", call.name):
                self._lines.setdefault(name, deque()).append(call.id)

    def answered(self, wire: MessageWire) -> str | None:
        """The id of the call that a result answers, which is open no more."""
        found = self._of(wire)
        if found is None:
            return wire.tool_call_id
        self._open.remove(found)
        return found

    def _of(self, wire: MessageWire) -> str | None:
        if wire.tool_call_id in self._open:
            return wire.tool_call_id
        line = self._lines.get(wire.tool_name or "", deque())
        while line and line[0] not in self._open:
            line.popleft()
        return line[0] if line else None


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
