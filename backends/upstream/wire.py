"""Request bodies for an upstream in OpenAI's format, with the configured changes.

Answers are always asked for as streams, also where a client wants one body: so a long answer and a
server that hangs are two things, and the other server stops when the client leaves.
"""

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
from backends.remote import (
    RemoteChanges,
    RemoteChat,
    RemoteEmbedding,
    RemoteRequest,
    RemoteRerank,
    RemoteText,
)
from backends.upstream.shapes import spelled
from config.upstreams import ServerKind, UpstreamConfig

Body: TypeAlias = dict[str, Any]  # JSON's own shape; it leaves this module as bytes only

DROPPED = "the configuration of the upstream drops it"

_encode = msgspec.json.Encoder().encode


def chat_body(
    request: RemoteChat, model: str, config: UpstreamConfig, server: ServerKind | None = None
) -> bytes:
    """The body of a `chat/completions` request. `server`: None: of an unknown kind."""
    body: Body = {
        **_shared(request, config),
        **changed(_shape(request, server, chat=True), config),
        "model": model,
        "messages": [_message(message) for message in request.messages],
    }
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
        body["tool_choice"] = _choice(request.tool_choice)
        if not request.parallel_tool_calls:
            body["parallel_tool_calls"] = False
    return _encode(body | config.set)


def text_body(
    request: RemoteText, model: str, config: UpstreamConfig, server: ServerKind | None = None
) -> bytes:
    """The body of a `completions` request. `server`: None: of an unknown kind."""
    prompts = request.prompts
    prompt = prompts[0] if len(prompts) == 1 else prompts
    body = {**_shared(request, config), **changed(_shape(request, server, chat=False), config)}
    return _encode({**body, "model": model, "prompt": prompt} | config.set)


def embedding_body(request: RemoteEmbedding, model: str, config: UpstreamConfig) -> bytes:
    """The body of an `embeddings` request."""
    inputs = request.inputs
    given = inputs[0] if len(inputs) == 1 and isinstance(inputs[0], str) else inputs
    return _encode(
        {**changed(request.parameters, config), "model": model, "input": given} | config.set
    )


def rerank_body(request: RemoteRerank, model: str, config: UpstreamConfig) -> bytes:
    """The body of a `rerank` request: the scores of all documents are wanted."""
    asked: Body = {"model": model, "query": request.query, "documents": request.documents}
    every = {"top_n": len(request.documents)}
    return _encode({**changed(request.parameters, config), **every, **asked} | config.set)


def _shared(request: RemoteRequest, config: UpstreamConfig) -> Body:
    """Parameters; known fields go over those that are not read here."""
    given = changed(request.parameters, config)
    if request.n > 1:
        given["n"] = request.n
    given["stream"] = True
    given["stream_options"] = {"include_usage": True}
    return {name: value for name, value in given.items() if name not in config.drop}


def chat_changes(
    request: RemoteRequest, config: UpstreamConfig, server: ServerKind | None = None
) -> RemoteChanges:
    """How a chat, or a text, is changed on its way."""
    shape = _shape(request, server, chat=isinstance(request, RemoteChat))
    given = {**request.parameters, **shape}
    return RemoteChanges(
        left_out={name: DROPPED for name in given if name in config.drop},
        replaced=overridden(request.parameters, config),
        holds_shape=request.shape is None or bool(shape.keys() - set(config.drop)),
    )


def overridden(parameters: Mapping[str, Any], config: UpstreamConfig) -> Body:
    """The parameters that the configuration sets, by our names."""
    names = {name: config.rename.get(name, name) for name in parameters}
    return {name: config.set[theirs] for name, theirs in names.items() if theirs in config.set}


def _shape(request: RemoteRequest, server: ServerKind | None, *, chat: bool) -> Body:
    """Nothing where the server can't be asked for it."""
    return (spelled(request.shape, server, chat=chat) or {}) if request.shape else {}


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
    given = {name: value for name, value in function.items() if value is not None}
    return {"type": "function", "function": given}


def _choice(choice: ToolChoice) -> str | Body:
    match choice:
        case NamedTool(name):
            return {"type": "function", "function": {"name": name}}
        case str():
            return choice
