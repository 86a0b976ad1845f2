"""Request bodies for an upstream that speaks Anthropic's Messages.

https://docs.anthropic.com/en/api/messages. That API refuses fields it doesn't know, so what it has
no field for is left out and reported.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from backends.conversation import ImagePart, Message, NamedTool, Part, TextPart, Tool, ToolCall
from backends.remote import RemoteChanges, RemoteChat, RemoteRequest
from backends.shapes import JsonSchema
from backends.upstream.messages.signatures import Signatures
from backends.upstream.wire import DROPPED
from config.upstreams import UpstreamConfig

Body: TypeAlias = dict[str, Any]  # JSON's own shape; it leaves this module as bytes only

NO_FIELD = "Anthropic's API has no such field"
LEAST_BUDGET = 1_024  # tokens of thinking; the API takes no fewer
# Efforts of others that it has no name for.
_EFFORTS = {"minimal": "low"}
_NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9_-]")
# What says the same as its own parameters, by OpenAI's names and others', or nothing: a prompt is
# continued where the conversation ends with the assistant.
_RENAMED = {
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
}
_SAID_OTHERWISE = frozenset(
    ("add_generation_prompt", "continue_final_message", "reasoning_effort", "user")
)
# Its own, which clients may send by its names.
_OWN = frozenset(
    ("cache_control", "container", "context_management", "inference_geo", "mcp_servers")
)

_encode = msgspec.json.Encoder().encode


def messages_body(
    request: RemoteChat, model: str, config: UpstreamConfig, signatures: Signatures
) -> bytes:
    """The body of a `messages` request."""
    system, turns = _turns(request.messages, signatures)
    body: Body = {"max_tokens": config.max_tokens, **_parameters(request, config)}
    body |= {"model": model, "messages": turns}
    if system:
        body["system"] = system
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
        body["tool_choice"] = _choice(request)
    return _encode({**body, "stream": True, **config.set})


def messages_changes(request: RemoteRequest, config: UpstreamConfig) -> RemoteChanges:
    """How a request is changed on its way."""
    left_out = {
        name: NO_FIELD for name in request.parameters if not _has_word(name, request, config)
    }
    left_out |= {name: DROPPED for name in request.parameters if name in config.drop}
    names = {name: _theirs(name, config) for name in request.parameters}
    is_json = isinstance(request.shape, JsonSchema) and "output_config" not in config.drop
    return RemoteChanges(
        left_out=left_out,
        replaced={name: config.set[own] for name, own in names.items() if own in config.set},
        holds_shape=request.shape is None or is_json,
    )


def _theirs(name: str, config: UpstreamConfig) -> str:
    return config.rename.get(name) or _RENAMED.get(name, name)


def _has_word(name: str, request: RemoteRequest, config: UpstreamConfig) -> bool:
    if name in config.rename or name in _RENAMED or name in _SAID_OTHERWISE or name in _OWN:
        return True
    if not isinstance(request, RemoteChat):
        return False
    if name == "chat_template_kwargs":
        return bool(request.parameters[name] == {"enable_thinking": request.thinking.enabled})
    return name == request.thinking.budget_name and request.thinking.budget is not None


def _parameters(request: RemoteChat, config: UpstreamConfig) -> Body:
    """Its own parameters, and what a configuration calls otherwise."""
    given = {name: value for name, value in request.parameters.items() if name not in config.drop}
    body: Body = {
        _theirs(name, config): value
        for name, value in given.items()
        if name in config.rename or name in _RENAMED or name in _OWN
    }
    if (user := given.get("user")) is not None:
        body["metadata"] = {"user_id": user}
    if output := _output(request, config):
        body["output_config"] = output
    if (thinking := _thinking(request, body.get("max_tokens", config.max_tokens))) is not None:
        body["thinking"] = thinking
    return {name: value for name, value in body.items() if name not in config.drop}


def _output(request: RemoteChat, config: UpstreamConfig) -> Body:
    found: Body = {}
    if isinstance(request.shape, JsonSchema):
        schema = msgspec.Raw(request.shape.schema)
        found["format"] = {"type": "json_schema", "schema": schema}
    effort = request.thinking.effort
    if effort not in (None, "none") and "reasoning_effort" not in config.drop:
        found["effort"] = _EFFORTS.get(effort or "", effort)
    return found


def _thinking(request: RemoteChat, most: int) -> Body | None:
    """A budget is part of the `most` tokens of an answer, and smaller; without one the model
    decides itself.
    """
    asked = request.thinking
    if asked.enabled is False or asked.effort == "none":
        return {"type": "disabled"}
    if asked.budget is not None:
        budget = min(asked.budget, most - 1)
        if budget < LEAST_BUDGET:
            return {"type": "disabled"}
        return {"type": "enabled", "budget_tokens": budget}
    return {"type": "adaptive"} if asked.enabled or asked.effort is not None else None


# ------------------------------------------------------------------------------------ conversations


def _turns(messages: Sequence[Message], signatures: Signatures) -> tuple[list[Body], list[Body]]:
    """The system's blocks, wherever they stood; and turns of users and assistants, that take
    turns: what follows another of the same role is one with it.
    """
    system: list[Body] = []
    turns: list[Body] = []
    for message in messages:
        if message.role == "system":
            system += _blocks(message.parts)
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _BLOCKS[message.role](message, signatures)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return system, turns


def _said(message: Message, _: Signatures) -> list[Body]:
    return _blocks(message.parts)


def _answered(message: Message, signatures: Signatures) -> list[Body]:
    thought: list[Body] = []
    if message.reasoning and (signature := signatures.of(message.reasoning)) is not None:
        block = {"type": "thinking", "thinking": message.reasoning, "signature": signature}
        thought.append(block)
    return [*thought, *_blocks(message.parts), *map(_call, message.tool_calls)]


def _result(message: Message, _: Signatures) -> list[Body]:
    block: Body = {"type": "tool_result", "tool_use_id": _id(message.tool_call_id or "")}
    if content := _blocks(message.parts):
        block["content"] = content
    return [block]


_BLOCKS: Mapping[str, Callable[[Message, Signatures], list[Body]]] = {
    "user": _said,
    "assistant": _answered,
    "tool": _result,
}


def _blocks(parts: Sequence[Part]) -> list[Body]:
    """It takes no empty text."""
    return [block for part in parts for block in _part(part)]


def _part(part: Part) -> Iterator[Body]:
    match part:
        case TextPart(text) if text.strip():
            yield {"type": "text", "text": text}
        case ImagePart(url):
            yield {"type": "image", "source": _source(url)}


def _source(url: str) -> Body:
    if not url.startswith("data:"):
        return {"type": "url", "url": url}
    head, _, data = url.removeprefix("data:").partition(",")
    media_type = head.partition(";")[0] or "image/png"
    return {"type": "base64", "media_type": media_type, "data": data}


def _call(call: ToolCall) -> Body:
    return {"type": "tool_use", "id": _id(call.id), "name": call.name, "input": _input(call)}


def _input(call: ToolCall) -> Body:
    """What is no object is sent as it was written."""
    try:
        decoded = msgspec.json.decode(call.arguments or "{}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        decoded = None
    return decoded if isinstance(decoded, dict) else {"arguments": call.arguments}


def _id(call_id: str) -> str:
    """It takes letters, digits, `_` and `-`."""
    return _NOT_IN_AN_ID.sub("_", call_id)


# -------------------------------------------------------------------------------------------- tools


def _tool(tool: Tool) -> Body:
    schema = {"type": "object", **(tool.parameters or {"properties": {}})}
    fields = {
        "name": tool.name,
        "description": tool.description,
        "input_schema": schema,
        "strict": tool.strict,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _choice(request: RemoteChat) -> Body:
    match request.tool_choice:
        case NamedTool(name):
            choice: Body = {"type": "tool", "name": name}
        case "required":
            choice = {"type": "any"}
        case mode:
            choice = {"type": mode}
    if not request.parallel_tool_calls and choice["type"] != "none":
        choice["disable_parallel_tool_use"] = True
    return choice
