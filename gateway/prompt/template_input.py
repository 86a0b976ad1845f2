"""Messages and tools as the dicts that a template reads: OpenAI's fields, adapted to the template's
traits; and tools for a model whose template has none: shown in a message, called in Hermes' style.

The dicts live from here to the rendering and no further.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.errors import InvalidRequest
from gateway.prompt.traced import clients, from_client, joined, text_of
from gateway.prompt.traits import TemplateTraits
from gateway.request import ImagePart, Message, Part, TextPart, Tool, ToolCall

_NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
_SHORT_ID_LENGTH = 9


def message_dict(
    message: Message, traits: TemplateTraits, image_marker: str | None = None
) -> dict[str, Any]:
    """`image_marker` is written where a picture stands. Without one the template renders pictures
    itself: raises InvalidRequest where it has no place for pictures.
    """
    if image_marker is not None:
        message = replace(message, parts=_marked(message.parts, image_marker))
    found: dict[str, Any] = {"role": message.role, "content": _content(message, traits)}
    if message.name is not None:
        found["name"] = message.name
    if message.tool_call_id is not None:
        found["tool_call_id"] = _call_id(message.tool_call_id, traits)
    if message.tool_calls:
        found["tool_calls"] = [_call_dict(call, traits) for call in message.tool_calls]
    if message.reasoning and traits.reasoning_field is not None:
        found[traits.reasoning_field] = message.reasoning
    return found


def tool_dict(tool: Tool) -> dict[str, Any]:
    """In OpenAI's form. Every field is there: templates add and print them without a check."""
    function = {
        "name": tool.name,
        "description": tool.description or "",
        "parameters": tool.parameters if tool.parameters is not None else _NO_PARAMETERS,
    }
    return {"type": "function", "function": function}


def tool_dicts(tools: Sequence[Tool], traits: TemplateTraits) -> list[dict[str, Any]] | None:
    """The variable `tools`. None if there are none, unless the template runs over it unasked."""
    if not tools and traits.no_tools == "null":
        return None
    return [tool_dict(tool) for tool in tools]


def given_variables(reads: frozenset[str], tools: Sequence[Any] | None) -> dict[str, Any]:
    """What llama.cpp gives every template, of the variables that it `reads`: clients and templates
    rely on it. `tools`: as the template gets them.
    """
    now = datetime.now(UTC)
    given: Mapping[str, Callable[[], Any]] = {
        "enable_thinking": lambda: True,
        "date_string": lambda: now.astimezone().strftime("%d %b %Y"),
        "datetime": lambda: now.strftime("%b %d %Y %H:%M:%S GMT"),
        "functions": lambda: _json(tools, indent=2) if tools else "",
    }
    return {name: value() for name, value in given.items() if name in reads}


def arguments_object(arguments: str) -> Any:
    """The object that `arguments` spells; the text itself if it spells none."""
    if not arguments.strip():
        return {}
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return from_client(value) if isinstance(value, dict) else arguments


def _marked(parts: Sequence[Part], marker: str) -> tuple[Part, ...]:
    """Texts alone: a picture's marker joins the text before it, and the text behind it joins in."""
    texts: list[str] = []
    for part in parts:
        piece = part.text if isinstance(part, TextPart) else marker
        if texts and marker in (piece, texts[-1][-len(marker) :]):
            texts[-1] = joined((texts[-1], piece))
        else:
            texts.append(piece)
    return tuple(map(TextPart, texts))


def _content(message: Message, traits: TemplateTraits) -> Any:
    if any(isinstance(part, ImagePart) for part in message.parts):
        if not traits.images:
            raise InvalidRequest(
                "This model's chat template has no place for images.", param="messages"
            )
        return [_part_shape(part) for part in message.parts]
    if not message.parts and message.tool_calls and traits.call_content == "null":
        return None
    if traits.content == "parts":
        return [_part_shape(part) for part in message.parts]
    return text_of(message)


def _part_shape(part: Part) -> dict[str, Any]:
    match part:
        case TextPart(text):
            return {"type": "text", "text": text}
        case ImagePart():
            return {"type": "image"}


def _call_dict(call: ToolCall, traits: TemplateTraits) -> dict[str, Any]:
    arguments = call.arguments if call.arguments.strip() else "{}"
    function = {
        "name": call.name,
        "arguments": arguments_object(arguments) if traits.arguments == "object" else arguments,
    }
    return {"id": _call_id(call.id, traits), "type": "function", "function": function}


def _call_id(call_id: str, traits: TemplateTraits) -> str:
    """The client's id, or a short stand-in that is the same for the call and for its result."""
    if not traits.short_call_ids or (len(call_id) == _SHORT_ID_LENGTH and call_id.isalnum()):
        return call_id
    return blake2b(call_id.encode(), digest_size=8).hexdigest()[:_SHORT_ID_LENGTH]


_HEAD = """\
# Tools

You can call functions to help with the user's request. Their signatures, as JSON, are:
<tools>
"""
_TAIL = """
</tools>

To call a function, write a JSON object with its name and its arguments inside <tool_call> tags,
one pair of tags for each call:
<tool_call>
{"name": "<function name>", "arguments": {<arguments>}}
</tool_call>"""


def with_tools_described(messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[Message, ...]:
    """`messages` whose leading system message also lists `tools`; a new one if there is none."""
    if not tools:
        return tuple(messages)
    signatures = joined((_json(tool_dict(tool)) for tool in tools), "\n")
    description = TextPart(joined((_HEAD, signatures, _TAIL)))
    if messages and messages[0].role == "system":
        head = messages[0]
        pictures = (part for part in head.parts if isinstance(part, ImagePart))
        words = TextPart(joined((text_of(head), description.text), "\n\n"))
        return (msgspec.structs.replace(head, parts=(*pictures, words)), *messages[1:])
    return (Message(role="system", parts=(description,)), *messages)


def with_calls_described(messages: Sequence[Message]) -> tuple[Message, ...]:
    """`messages` with every call and every result turned into text, as such a model writes it."""
    return tuple(_described(message) for message in messages)


def _described(message: Message) -> Message:
    match message:
        case Message(role="tool"):
            return response_as_user(message)
        case Message(role="assistant") if message.tool_calls:
            calls = joined(map(_written, message.tool_calls), "\n")
            parts = (*message.parts, TextPart(calls))
            return msgspec.structs.replace(message, parts=parts, tool_calls=())
        case _:
            return message


def response_as_user(message: Message) -> Message:
    """A tool's result as the user's words, for templates that don't take it as what it is."""
    before, after = TextPart("<tool_response>"), TextPart("</tool_response>")
    return Message(role="user", parts=(before, *message.parts, after))


def _written(call: ToolCall) -> str:
    body = {"name": call.name, "arguments": arguments_object(call.arguments)}
    return joined(("<tool_call>\n", _json(body), "\n</tool_call>"))


def _json(value: Any, indent: int | None = None) -> str:
    """All of it marked as the client's text."""
    return clients(json.dumps(value, ensure_ascii=False, indent=indent))
