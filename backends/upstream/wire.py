"""What is sent to an upstream: requests as OpenAI's bodies, with the configured changes."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from backends.conversation import (
    ImagePart,
    Message,
    NamedTool,
    Part,
    TextPart,
    Tool,
    ToolCall,
    ToolChoice,
)
from backends.remote import RemoteChat, RemoteRequest, RemoteText
from config.upstreams import UpstreamConfig

Body: TypeAlias = dict[str, Any]  # JSON's own shape; it leaves this module as bytes only

_encode = msgspec.json.Encoder().encode


def chat_body(request: RemoteChat, model: str, config: UpstreamConfig) -> bytes:
    """The body of a `chat/completions` request."""
    body: Body = {
        **_shared(request, config),
        "model": model,
        "messages": [_message(message) for message in request.messages],
    }
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
        body["tool_choice"] = _choice(request.tool_choice)
        if not request.parallel_tool_calls:
            body["parallel_tool_calls"] = False
    return _encode(body | config.set)


def text_body(request: RemoteText, model: str, config: UpstreamConfig) -> bytes:
    """The body of a `completions` request."""
    prompts = request.prompts
    prompt = prompts[0] if len(prompts) == 1 else prompts
    return _encode({**_shared(request, config), "model": model, "prompt": prompt} | config.set)


def _shared(request: RemoteRequest, config: UpstreamConfig) -> Body:
    """Parameters; what counts goes over fields that nobody read."""
    given = changed(request.parameters, config)
    if request.n > 1:
        given["n"] = request.n
    if request.streamed:
        given["stream"] = True
        given["stream_options"] = {"include_usage": True}
    else:
        given.pop("stream", None)
    return {name: value for name, value in given.items() if name not in config.drop}


def changed(parameters: Mapping[str, Any], config: UpstreamConfig) -> Body:
    """The parameters under the upstream's names, without those it doesn't take."""
    return {
        config.rename.get(name, name): value
        for name, value in parameters.items()
        if name not in config.drop
    }


def _message(message: Message) -> Body:
    body: Body = {"role": message.role, "content": _content(message.parts)}
    if message.reasoning:
        body["reasoning_content"] = message.reasoning
    if message.tool_calls:
        body["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        body["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        body["name"] = message.name
    return body


def _content(parts: tuple[Part, ...]) -> str | list[Body] | None:
    match parts:
        case ():
            return None
        case (TextPart(text),):
            return text
        case _:
            return [_part(part) for part in parts]


def _part(part: Part) -> Body:
    match part:
        case TextPart(text):
            return {"type": "text", "text": text}
        case ImagePart(url):
            return {"type": "image_url", "image_url": {"url": url}}


def _call(call: ToolCall) -> Body:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _tool(tool: Tool) -> Body:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
    told = {name: value for name, value in function.items() if value is not None}
    return {"type": "function", "function": told}


def _choice(choice: ToolChoice) -> str | Body:
    match choice:
        case NamedTool(name):
            return {"type": "function", "function": {"name": name}}
        case str():
            return choice
