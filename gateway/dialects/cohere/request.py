"""Parses bodies of `/v2/chat`. Knows no model."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from backends.shapes import JsonObject, JsonSchema, Shape
from gateway.dialects.cohere.wire import BlockWire, ChatWire, FormatWire, MessageWire, ThinkingWire
from gateway.dialects.fields import Fields, fields_of, json_object, unread
from gateway.dialects.parameters import SamplingWire, read_keep_alive, read_sampling, read_stop
from gateway.request import (
    ChatRequest,
    GenerationParams,
    ImagePart,
    Message,
    Part,
    TextPart,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
)

NAMES: Mapping[str, str] = {"p": "top_p", "k": "top_k", "stop_sequences": "stop"}  # to ours
_FIELDS = frozenset((*ChatWire.__struct_fields__, *SamplingWire.__struct_fields__))


class CohereExchange(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation, and the form of its answer. `ignored`: fields without a meaning here."""

    request: ChatRequest
    stream: bool
    ignored: tuple[str, ...] = ()


def read_chat(content: bytes) -> CohereExchange:
    """What a body of `/v2/chat` means. Raises InvalidRequest, which names the field."""
    fields = _fields(json_object(content))
    wire = fields.read(ChatWire)
    if not wire.messages:
        raise fields.wrong("messages", "At least one message is required.")
    if wire.documents:
        raise fields.wrong("documents", "Not available; write them into a message.")
    ignored = (*fields.beyond(_FIELDS), *unread(fields.values, ChatWire))
    return CohereExchange(
        request=ChatRequest(
            model=wire.model,
            messages=tuple(
                _message(fields, f"messages[{k}]", message)
                for k, message in enumerate(wire.messages)
            ),
            answering=_answering(fields, wire, ignored),
            tools=tuple(_tools(wire)),
            tool_choice=_choice(fields, wire),
            thinking=_thinking(wire.thinking),
        ),
        stream=wire.stream,
        ignored=ignored,
    )


def _fields(body: Mapping[str, Any]) -> Fields:
    fields = fields_of({NAMES.get(name, name): value for name, value in body.items()})
    theirs = {ours: name for name, ours in NAMES.items() if name in body}
    return Fields(fields.values, {**fields.spelled, **theirs})


def _answering(fields: Fields, wire: ChatWire, ignored: tuple[str, ...]) -> GenerationParams:
    return GenerationParams(
        sampling=read_sampling(fields),
        max_tokens=wire.max_tokens,
        stop=read_stop(fields, wire.stop),
        logprobs=0 if wire.logprobs else None,
        keep_alive=read_keep_alive(fields, wire.keep_alive),
        shape=_shape(wire.response_format),
        streamed=wire.stream,
        spelled=fields.otherwise(),
        unread=ignored,
    )


def _shape(wire: FormatWire) -> Shape | None:
    if wire.json_schema is not None:
        schema = msgspec.json.encode(wire.json_schema)
        return JsonSchema(schema=schema, field="response_format.json_schema")
    return JsonObject(field="response_format") if wire.type == "json_object" else None


def _tools(wire: ChatWire) -> Iterator[Tool]:
    for tool in wire.tools:
        function = tool.function
        yield Tool(
            name=function.name,
            description=function.description,
            parameters=function.parameters,
            strict=wire.strict_tools or None,
        )


def _choice(fields: Fields, wire: ChatWire) -> ToolChoice:
    if wire.tool_choice == "REQUIRED" and not wire.tools:
        raise fields.wrong("tool_choice", "A call can't be required without tools.")
    if wire.tool_choice == "REQUIRED":
        return "required"
    return "auto" if wire.tools and wire.tool_choice is None else "none"


def _thinking(wire: ThinkingWire | None) -> Thinking:
    if wire is None:
        return Thinking()
    return Thinking(enabled=wire.type == "enabled", budget=wire.token_budget)


# ----------------------------------------------------------------------------------------- messages


def _message(fields: Fields, path: str, wire: MessageWire) -> Message:
    """Raises InvalidRequest."""
    if wire.role == "tool" and wire.tool_call_id is None:
        raise fields.wrong(f"{path}.tool_call_id", "This field is required.")
    plan = (TextPart(wire.tool_plan),) if wire.tool_plan else ()
    blocks = _blocks(wire.content)
    thoughts = "".join(block.thinking for block in blocks)
    parts = (_part(fields, f"{path}.content[{k}]", block) for k, block in enumerate(blocks))
    calls = wire.tool_calls or ()
    return Message(
        role=wire.role,
        parts=(*plan, *(part for part in parts if part is not None)),
        reasoning=thoughts or None,
        tool_calls=tuple(
            ToolCall(call.id, call.function.name, call.function.arguments) for call in calls
        ),
        tool_call_id=wire.tool_call_id,
    )


def _blocks(content: str | Sequence[BlockWire] | None) -> Sequence[BlockWire]:
    if isinstance(content, str):
        return [BlockWire(type="text", text=content)] if content else []
    return content or []


def _part(fields: Fields, path: str, block: BlockWire) -> Part | None:
    match block:
        case BlockWire(type="thinking"):
            return None
        case BlockWire(type="text", text=text):
            return TextPart(text)
        case BlockWire(type="image_url", image_url=image) if image is not None:
            return ImagePart(image.url, field=f"{path}.image_url.url")
        case BlockWire(type="document", document=document) if document is not None:
            found = document.data
            return TextPart(
                found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
            )
    names = "'text', 'thinking', 'image_url' or 'document', with the field of that name"
    raise fields.wrong(f"{path}.type", f"Expected {names}, got {block.type!r:.64}.")
