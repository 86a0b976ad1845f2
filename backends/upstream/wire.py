"""Request bodies for an upstream in OpenAI's format, with the configured changes.

Answers are always asked for as streams, also where a client wants one body: so a long answer and a
server that hangs are two things, and the other server stops when the client leaves.

Structured output requests in the fields of each kind of server. Pure.

Where a server has no field for a shape, nothing is sent, and the caller checks the answer.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from backends.protocol import (
    Choices,
    Grammar,
    ImagePart,
    JsonObject,
    JsonSchema,
    Message,
    NamedTool,
    Part,
    Regex,
    Shape,
    StructuralTags,
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
from config.upstreams import ServerKind, UpstreamConfig

Spelled: TypeAlias = dict[str, Any]  # fields of a body

# What servers write into their lists as `owned_by`.
OWNERS: Mapping[str, ServerKind] = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llama-server",
    "me": "llama-cpp-python",
    "koboldcpp": "koboldcpp",
    "tabbyAPI": "tabbyapi",
    "library": "ollama",
    "roundhouse": "roundhouse",
    "openai": "openai",
    "openai-internal": "openai",
    "system": "openai",
}


_IN_GBNF = {code: f"\\x{code:02x}" for code in range(32)} | {ord("\\"): r"\\", ord('"'): r"\""}
_IN_REGEX = {ord(one): f"\\{one}" for one in r"\.^$*+?()[]{}|"}


def spelled(shape: Shape, server: ServerKind | None, *, chat: bool = True) -> Spelled | None:
    """The fields that ask `server` for `shape`; None: it can't be asked for it. An unknown server
    (None) gets the client's own fields where it had some, else vLLM's.
    """
    return _SPELLINGS[server](shape, chat)


def gbnf_of(texts: tuple[str, ...]) -> str:
    """A grammar of llama.cpp's whose text is one of `texts`."""
    return "root ::= " + " | ".join(f'"{text.translate(_IN_GBNF)}"' for text in texts)


def regex_of(texts: tuple[str, ...]) -> str:
    """A regex that matches one of `texts`, in any engine's syntax."""
    return "(" + "|".join(text.translate(_IN_REGEX) for text in texts) + ")"


def is_gbnf(text: str) -> bool:
    """Lark has no such arrow."""
    return "::=" in text


# -------------------------------------------------------------------------------- what several have


def _openais(shape: Shape) -> Spelled | None:
    """`response_format`, for JSON alone."""
    match shape:
        case JsonObject():
            return {"response_format": {"type": "json_object"}}
        case JsonSchema(schema=schema, strict=strict):
            named = {"name": "answer", "schema": msgspec.Raw(schema), "strict": strict}
            return {"response_format": {"type": "json_schema", "json_schema": named}}
    return None


def _structured_outputs(shape: Shape) -> Spelled | None:
    """vLLM's, where the client has not used its older fields."""
    match shape:
        case StructuralTags(request=request):
            return {"response_format": msgspec.Raw(request)}
        case Regex(pattern=pattern, field=field):
            return _constraint(field, "regex", pattern)
        case Choices(texts=texts, field=field):
            return _constraint(field, "choice", list(texts))
        case Grammar(text=text, field=field):
            return _constraint(field, "grammar", text)
    return _openais(shape)


def _constraint(field: str, kind: str, value: Any) -> Spelled:
    own = field.partition(".")[0].partition("[")[0]
    return {own: value} if own.startswith("guided_") else {"structured_outputs": {kind: value}}


def _gbnf(shape: Shape) -> Spelled | None:
    """llama.cpp's grammar."""
    match shape:
        case Grammar(text=text) if is_gbnf(text):
            return {"grammar": text}
        case Choices(texts=texts):
            return {"grammar": gbnf_of(texts)}
    return None


# ----------------------------------------------------------------------------------------- servers


def _openai(shape: Shape, _chat: bool) -> Spelled | None:  # noqa: FBT001 - one of a table
    return _openais(shape)


def _vllm(shape: Shape, _chat: bool) -> Spelled | None:  # noqa: FBT001 - one of a table
    return _structured_outputs(shape)


def _unknown(shape: Shape, _chat: bool) -> Spelled | None:  # noqa: FBT001 - one of a table
    if isinstance(shape, Grammar) and shape.field == "grammar":
        return {"grammar": shape.text}
    return _structured_outputs(shape)


def _sglang(shape: Shape, _chat: bool) -> Spelled | None:  # noqa: FBT001 - one of a table
    match shape:
        case Regex(pattern=pattern):
            return {"regex": pattern}
        case Choices(texts=texts):
            return {"regex": regex_of(texts)}
        case Grammar(text=text):
            return {"ebnf": text} if is_gbnf(text) else None
        case StructuralTags(request=request):
            return {"response_format": msgspec.Raw(request)}
    return _openais(shape)


def _llama_server(shape: Shape, chat: bool) -> Spelled | None:  # noqa: FBT001 - one of a table
    match shape:
        case JsonSchema(schema=schema) if not chat:
            return {"json_schema": msgspec.Raw(schema)}
        case JsonObject() if not chat:
            return {"json_schema": {"type": "object"}}
    return _openais(shape) or _gbnf(shape)


def _llama_cpp_python(shape: Shape, chat: bool) -> Spelled | None:  # noqa: FBT001 - one of a table
    """Its `response_format` knows one type, and texts have none."""
    match shape:
        case JsonObject() if chat:
            return {"response_format": {"type": "json_object"}}
        case JsonSchema(schema=schema) if chat:
            return {"response_format": {"type": "json_object", "schema": msgspec.Raw(schema)}}
    return _gbnf(shape)


def _tgi(shape: Shape, _chat: bool) -> Spelled | None:  # noqa: FBT001 - one of a table
    match shape:
        case JsonObject():
            return {"response_format": {"type": "json", "value": {"type": "object"}}}
        case JsonSchema(schema=schema):
            return {"response_format": {"type": "json", "value": msgspec.Raw(schema)}}
        case Regex(pattern=pattern):
            return {"response_format": {"type": "regex", "value": pattern}}
        case Choices(texts=texts):
            return {"response_format": {"type": "regex", "value": regex_of(texts)}}
    return None


def _tabbyapi(shape: Shape, _chat: bool) -> Spelled | None:  # noqa: FBT001 - one of a table
    match shape:
        case JsonObject():
            return {"json_schema": {"type": "object"}}
        case JsonSchema(schema=schema):
            return {"json_schema": msgspec.Raw(schema)}
        case Regex(pattern=pattern):
            return {"regex_pattern": pattern}
        case Choices(texts=texts):
            return {"regex_pattern": regex_of(texts)}
        case Grammar(text=text):
            return None if is_gbnf(text) else {"grammar_string": text}
    return None


_SPELLINGS: Mapping[ServerKind | None, Callable[[Shape, bool], Spelled | None]] = {
    None: _unknown,
    "koboldcpp": _llama_server,
    "llama-cpp-python": _llama_cpp_python,
    "llama-server": _llama_server,
    "ollama": _openai,
    "openai": _openai,
    "roundhouse": _vllm,
    "sglang": _sglang,
    "tabbyapi": _tabbyapi,
    "tgi": _tgi,
    "vllm": _vllm,
}


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
        **conversation(request),
    }
    if request.tools:
        body["tool_choice"] = _choice(request.tool_choice)
        if not request.parallel_tool_calls:
            body["parallel_tool_calls"] = False
    return _encode(body | config.set)


def conversation(request: RemoteChat) -> Body:
    """What a chat's prompt is made of, besides parameters."""
    tools = {"tools": [_tool(tool) for tool in request.tools]} if request.tools else {}
    return {"messages": [_message(message) for message in request.messages], **tools}


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
        unapplied={name: DROPPED for name in given if name in config.drop},
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
    return {**message.further, **body}


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
    return {**call.further, "id": call.id, "type": "function", "function": function}


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
