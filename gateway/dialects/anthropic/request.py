"""Parses a `/v1/messages` body. Knows no model: whether it supports images, reasoning or tools is
checked by the pipeline.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from backends.shapes import JsonSchema
from gateway.dialects.anthropic.messages import is_bookkeeping, read_system, read_turn
from gateway.dialects.anthropic.wire import (
    AnsweringWire,
    BlockWire,
    ConversationWire,
    FormatWire,
    ThinkingWire,
    ToolChoiceWire,
    ToolWire,
)
from gateway.dialects.fields import Fields, read_fields, unread
from gateway.dialects.parameters import SamplingWire, read_keep_alive, read_sampling, read_stop
from gateway.request import ChatRequest, GenerationParams, Message, NamedTool, Thinking, Tool
from gateway.request import ToolChoice as Choice

# Fields that change nothing about an answer here, and why.
HARMLESS = {
    "cache_control": "prompts are always cached",
    "diagnostics": "about Anthropic's cache",
    "inference_geo": "the answer is made here",
    "service_tier": "there is one",
    "speed": "there is one",
    "user_profile_id": "who the user is; nobody is watched here",
    "workspace_id": "whose books it goes to",
}


class MessagesExchange(msgspec.Struct, frozen=True, kw_only=True):
    """A request, and the form of its answer. `ignored`: fields without a meaning here."""

    request: ChatRequest
    stream: bool = False
    ignored: tuple[str, ...] = ()


_FIELDS = HARMLESS.keys() | {
    name
    for shape in (AnsweringWire, ConversationWire, SamplingWire)
    for name in shape.__struct_fields__
}


def read_messages(body: bytes) -> MessagesExchange:
    """What the body means. Raises InvalidRequest, which names the field."""
    fields = read_fields(body)
    wire, talk = fields.read(AnsweringWire), fields.read(ConversationWire)
    messages = _messages(fields, talk)
    return MessagesExchange(
        request=ChatRequest(
            model=wire.model,
            messages=messages,
            answering=_answering(fields, wire),
            tools=tuple(_tool(fields, f"tools[{k}]", tool) for k, tool in enumerate(talk.tools)),
            tool_choice=_choice(fields, talk),
            parallel_tool_calls=not (
                talk.tool_choice and talk.tool_choice.disable_parallel_tool_use
            ),
            thinking=_thinking(fields, wire),
            continue_final=_continues(messages[-1]),
        ),
        stream=wire.stream,
        ignored=(*fields.beyond(frozenset(_FIELDS)), *_ignored(fields, talk)),
    )


def _messages(fields: Fields, talk: ConversationWire) -> tuple[Message, ...]:
    if not talk.messages:
        raise fields.wrong("messages", "At least one message is required.")
    messages = [
        message
        for k, turn in enumerate(talk.messages)
        for message in read_turn(fields, f"messages[{k}]", turn)
    ]
    if _is_silent(messages[-1]) and len(messages) > 1:
        messages.pop()  # an empty prefill: an answer like any other
    return (*read_system(fields, talk.system), *messages)


def _is_silent(last: Message) -> bool:
    return last.role == "assistant" and not (last.parts or last.reasoning or last.tool_calls)


def _continues(last: Message) -> bool:
    """A trailing turn of the assistant is the beginning of the answer."""
    return last.role == "assistant" and not last.tool_calls


def _ignored(fields: Fields, talk: ConversationWire) -> Iterator[str]:
    """What has no meaning here, named once however often it stands in the body."""
    yield from unread(fields.values, ConversationWire)
    yield from unread(fields.values, AnsweringWire)
    system = talk.system if isinstance(talk.system, list) else []
    yield from (f"system[{k}]" for k, block in enumerate(system) if is_bookkeeping(block))
    if any(block.type == "redacted_thinking" for block in _all_blocks(talk)):
        yield "messages[].content[].redacted_thinking"


def _all_blocks(talk: ConversationWire) -> Iterator[BlockWire]:
    return (
        block
        for message in talk.messages
        if isinstance(message.content, list)
        for block in message.content
    )


# ------------------------------------------------------------------------------------------ options


def _answering(fields: Fields, wire: AnsweringWire) -> GenerationParams:
    return GenerationParams(
        sampling=read_sampling(fields),
        max_tokens=wire.max_tokens,
        stop=read_stop(fields, wire.stop_sequences, "stop_sequences"),
        keep_alive=read_keep_alive(fields, wire.keep_alive),
        shape=_shape(fields, wire),
        spelled={"stop": "stop_sequences", **fields.otherwise()},
    )


def _shape(fields: Fields, wire: AnsweringWire) -> JsonSchema | None:
    if (asked := wire.output_config.format) is not None:
        return _schema(fields, "output_config.format", asked)
    if wire.output_format is not None:
        return _schema(fields, "output_format", wire.output_format)
    return None


def _schema(fields: Fields, path: str, wire: FormatWire) -> JsonSchema:
    if wire.type != "json_schema" or wire.schema is None:
        raise fields.wrong(path, "Expected the type 'json_schema' and a schema.")
    schema = msgspec.json.encode(wire.schema)
    return JsonSchema(schema=schema, strict=True, field=f"{path}.schema")


def _thinking(fields: Fields, wire: AnsweringWire) -> Thinking:
    """Without a request for thinking there is none, and none is shown: much client code reads the
    first block as text.
    """
    effort = wire.output_config.effort
    match wire.thinking:
        case None | ThinkingWire(type="disabled"):
            return Thinking(enabled=False, effort=effort, shown="hidden")
        case ThinkingWire(type="enabled" | "adaptive" | "between_tools") as asked:
            return Thinking(
                enabled=True,
                effort=effort,
                budget=asked.budget_tokens,
                shown="hidden" if asked.display == "omitted" else "split",
            )
        case ThinkingWire(type=kind):
            message = f"Expected 'enabled', 'adaptive' or 'disabled', got {kind!r:.64}."
            raise fields.wrong("thinking.type", message)


# -------------------------------------------------------------------------------------------- tools


def _tool(fields: Fields, path: str, wire: ToolWire) -> Tool:
    if wire.type not in (None, "custom"):
        message = (
            f"The tool {wire.type!r:.64} is known to Anthropic's models alone; "
            "send tools with an input_schema."
        )
        raise fields.wrong(f"{path}.type", message)
    if not wire.name:
        raise fields.wrong(f"{path}.name", "A tool needs a name.")
    return Tool(
        name=wire.name,
        description=wire.description,
        parameters=_schema_of(fields, path, wire),
        strict=wire.strict,
    )


def _schema_of(fields: Fields, path: str, wire: ToolWire) -> dict[str, Any]:
    if wire.input_schema is None:
        raise fields.wrong(f"{path}.input_schema", "This field is required.")
    return wire.input_schema


def _choice(fields: Fields, talk: ConversationWire) -> Choice:
    match talk.tool_choice:
        case None:
            return "auto" if talk.tools else "none"
        case ToolChoiceWire(type="auto" | "none" as mode):
            return "auto" if mode == "auto" else "none"
        case ToolChoiceWire(type="any") if talk.tools:
            return "required"
        case ToolChoiceWire(type="any"):
            raise fields.wrong("tool_choice", "A call can't be required without tools.")
        case ToolChoiceWire(type="tool", name=str(name)):
            if all(tool.name != name for tool in talk.tools):
                message = f"There is no tool named {name!r:.64} in tools."
                raise fields.wrong("tool_choice.name", message)
            return NamedTool(name)
    raise fields.wrong("tool_choice", "Expected 'auto', 'any', 'none', or 'tool' with a name.")
