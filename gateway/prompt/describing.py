"""Tools for a model whose template knows none: shown in a message, called in the Hermes style.

The style (`<tools>`, `<tool_call>`, `<tool_response>`) is the one that most models without a format
of their own have seen in training: https://huggingface.co/NousResearch/Hermes-2-Pro-Llama-3-8B
"""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.prompt.shape import arguments_object, tool_shape
from gateway.prompt.traced import clients, joined, text_of
from gateway.request import ImagePart, Message, TextPart, Tool, ToolCall

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
    """`messages` whose leading system message also tells of `tools`; a new one if there is none."""
    if not tools:
        return tuple(messages)
    signatures = joined((_json(tool_shape(tool)) for tool in tools), "\n")
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


def _json(value: Any) -> str:
    """All of it the client's: it tells of nothing else."""
    return clients(json.dumps(value, ensure_ascii=False))
