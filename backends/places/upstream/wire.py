"""Requests for an upstream in OpenAI's format, with the configured changes: chats, texts, vectors
and scores; and the calls of its tokenizer and its template, with their answers. Pure.

Answers are always asked for as streams, also where a client wants one body: so a long answer and a
server that hangs are two things, and the other server stops when the client leaves. Structured
output is requested in the fields of each kind of server. Where a server has no field for a shape,
nothing is sent, and the caller checks the answer.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from backends.contract.conversation import (
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
from backends.contract.errors import UpstreamError
from backends.contract.remote import (
    Caller,
    RemoteChanges,
    RemoteChat,
    RemoteEmbedding,
    RemoteEncoding,
    RemoteRequest,
    RemoteRerank,
    RemoteText,
)
from backends.contract.spelling import from_bytes, from_pieces
from backends.places.upstream.faults import broken, decoded
from backends.places.upstream.reading import RemoteReader
from config.upstreams import ServerKind, UpstreamConfig

Body: TypeAlias = dict[str, Any]  # JSON's own shape; it leaves this module as bytes only

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


# By the kinds of shapes that a server can be asked for, the fields that ask.
Spelling: TypeAlias = Mapping[type, Callable[[Any], Body | None]]


def spelled(shape: Shape | None, server: ServerKind | None, *, chat: bool = True) -> Body:
    """The fields that ask `server` for `shape`; none where it can't be asked for it. An unknown
    server (None) gets the client's own fields where it had some, else vLLM's.
    """
    spelling = _SPELLINGS[server] if chat else _OF_TEXTS.get(server, _SPELLINGS[server])
    spell = spelling.get(type(shape))
    return (spell(shape) or {}) if spell is not None else {}


def gbnf_of(texts: tuple[str, ...]) -> str:
    """A grammar of llama.cpp's whose text is one of `texts`."""
    return "root ::= " + " | ".join(f'"{text.translate(_IN_GBNF)}"' for text in texts)


def regex_of(texts: tuple[str, ...]) -> str:
    """A regex that matches one of `texts`, in any engine's syntax."""
    return "(" + "|".join(text.translate(_IN_REGEX) for text in texts) + ")"


def is_gbnf(text: str) -> bool:
    """Lark has no such arrow."""
    return "::=" in text


def _pattern(shape: Regex | Choices) -> str:
    return shape.pattern if isinstance(shape, Regex) else regex_of(shape.texts)


def _schema(shape: JsonObject | JsonSchema) -> msgspec.Raw:
    return msgspec.Raw(shape.schema if isinstance(shape, JsonSchema) else b'{"type":"object"}')


def _format(kind: str, **rest: Any) -> Body:
    return {"response_format": {"type": kind, **rest}}


def _named(shape: JsonSchema) -> Body:
    named = {"name": "answer", "schema": msgspec.Raw(shape.schema), "strict": shape.strict}
    return _format("json_schema", json_schema=named)


def _constraint(shape: Regex | Choices | Grammar, kind: str, value: Any) -> Body:
    """vLLM's, where the client has not used its older fields."""
    own = shape.field.partition(".")[0].partition("[")[0]
    return {own: value} if own.startswith("guided_") else {"structured_outputs": {kind: value}}


_JSON: tuple[type, ...] = (JsonObject, JsonSchema)
_MATCHED: tuple[type, ...] = (Regex, Choices)

_OPENAI: Spelling = {JsonObject: lambda _: _format("json_object"), JsonSchema: _named}
_TAGS: Spelling = {StructuralTags: lambda shape: {"response_format": msgspec.Raw(shape.request)}}
_VLLM: Spelling = {
    **_OPENAI,
    **_TAGS,
    Regex: lambda shape: _constraint(shape, "regex", shape.pattern),
    Choices: lambda shape: _constraint(shape, "choice", list(shape.texts)),
    Grammar: lambda shape: _constraint(shape, "grammar", shape.text),
}
_SGLANG: Spelling = {
    **_OPENAI,
    **_TAGS,
    **dict.fromkeys(_MATCHED, lambda shape: {"regex": _pattern(shape)}),
    Grammar: lambda shape: {"ebnf": shape.text} if is_gbnf(shape.text) else None,
}
_GBNF: Spelling = {
    Choices: lambda shape: {"grammar": gbnf_of(shape.texts)},
    Grammar: lambda shape: {"grammar": shape.text} if is_gbnf(shape.text) else None,
}
_LLAMA_SERVER: Spelling = {**_OPENAI, **_GBNF}
_BARE_SCHEMA: Spelling = dict.fromkeys(_JSON, lambda shape: {"json_schema": _schema(shape)})

_SPELLINGS: Mapping[ServerKind | None, Spelling] = {
    None: {
        **_VLLM,
        Grammar: lambda shape: (
            {"grammar": shape.text}
            if shape.field == "grammar"
            else _constraint(shape, "grammar", shape.text)
        ),
    },
    "koboldcpp": _LLAMA_SERVER,
    "llama-cpp-python": {  # its `response_format` knows one type
        **_LLAMA_SERVER,
        JsonSchema: lambda shape: _format("json_object", schema=_schema(shape)),
    },
    "llama-server": _LLAMA_SERVER,
    "ollama": _OPENAI,
    "openai": _OPENAI,
    "roundhouse": _VLLM,
    "sglang": _SGLANG,
    "tabbyapi": {
        **_BARE_SCHEMA,
        **dict.fromkeys(_MATCHED, lambda shape: {"regex_pattern": _pattern(shape)}),
        Grammar: lambda shape: None if is_gbnf(shape.text) else {"grammar_string": shape.text},
    },
    "tgi": {
        **dict.fromkeys(_JSON, lambda shape: _format("json", value=_schema(shape))),
        **dict.fromkeys(_MATCHED, lambda shape: _format("regex", value=_pattern(shape))),
    },
    "vllm": _VLLM,
}
# What has other fields for the shape of a text than of a chat.
_OF_TEXTS: Mapping[ServerKind | None, Spelling] = {
    "koboldcpp": {**_BARE_SCHEMA, **_GBNF},
    "llama-cpp-python": _GBNF,
    "llama-server": {**_BARE_SCHEMA, **_GBNF},
}


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it is sent. `conversation` stands for those that want the same replica."""

    path: str  # below the base URL: "/chat/completions"
    at_root: bool = False  # beside the base URL's "/v1" instead
    body: bytes = b""
    choices: int = 1
    caller: Caller
    conversation: int | None = None
    reader: Callable[[], RemoteReader] | None = None  # None: OpenAI's format
    model: str = ""  # by the upstream's name


DROPPED = "the configuration of the upstream drops it"

_encode = msgspec.json.Encoder().encode


def chat_body(
    request: RemoteChat, model: str, config: UpstreamConfig, server: ServerKind | None = None
) -> bytes:
    """The body of a `chat/completions` request. `server`: None: of an unknown kind."""
    body: Body = {
        **_shared(request, config),
        **changed(spelled(request.shape, server), config),
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
    shape = changed(spelled(request.shape, server, chat=False), config)
    body = {**_shared(request, config), **shape, "model": model, "prompt": prompt}
    return _encode(body | config.set)


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
    shape = spelled(request.shape, server, chat=isinstance(request, RemoteChat))
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


def changed(parameters: Mapping[str, Any], config: UpstreamConfig) -> Body:
    """The parameters under the upstream's names, without those it doesn't take."""
    return {
        config.rename.get(name, name): value
        for name, value in parameters.items()
        if name not in config.drop
    }


def present(**fields: Any) -> Body:
    """Those that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def _message(message: Message) -> Body:
    body: Body = {"role": message.role, "content": _content(message.parts)}
    body |= present(
        reasoning_content=message.reasoning or None,
        tool_calls=[_call(call) for call in message.tool_calls] or None,
        tool_call_id=message.tool_call_id,
        name=message.name,
    )
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
    given = {"parameters": tool.parameters, "strict": tool.strict}
    function = present(name=tool.name, description=tool.description, **given)
    return {"type": "function", "function": function}


def _choice(choice: ToolChoice) -> str | Body:
    match choice:
        case NamedTool(name):
            return {"type": "function", "function": {"name": name}}
        case str():
            return choice


UNREADABLE = "a body without tokens or text"

# What servers of a kind lack. Ollama, OpenAI and their like have none of it.
_NO_TOKENS = frozenset({"ollama", "openai", "tgi"})
_NO_PIECES = _NO_TOKENS | {"koboldcpp", "llama-cpp-python", "sglang", "tabbyapi"}
_NO_TEMPLATE = _NO_TOKENS | {"koboldcpp", "llama-cpp-python"}
_DETOKENIZES = frozenset({"vllm", "sglang", "tabbyapi"})  # renders by tokens there and back


class _Id(msgspec.Struct, frozen=True):
    """`piece`: llama-server's; a list of bytes where they are no text."""

    id: int
    piece: str | list[int] | None = None


class _Encoded(msgspec.Struct, frozen=True):
    """`ids`: KoboldCpp's; `token_strs`: vLLM's, in the vocabulary's own spelling."""

    tokens: list[int | _Id] | None = None
    ids: list[int] | None = None
    token_strs: list[str] | None = None


class _Count(msgspec.Struct, frozen=True):
    input_tokens: int


class TokenCalls(msgspec.Struct, frozen=True):
    """The calls of a model's tokenizer and template, as its server has them. Each raises
    UpstreamError where it has none. None: of an unknown kind.
    """

    _caller: Caller
    _model: str
    _server: ServerKind | None

    def _call(self, path: str, body: Body, *, at_root: bool = True) -> Question:
        encoded, model = _encode(body), self._model
        return Question(path=path, at_root=at_root, body=encoded, caller=self._caller, model=model)

    def _prompt(self, request: RemoteChat) -> Body:
        return {"model": self._model, **conversation(request), **request.parameters}

    def encode(self, request: RemoteEncoding, *, pieces: bool = False) -> Question:
        """For the tokens of a text; with `pieces`, and the bytes of each. vLLM's and llama-server's
        calls have the same path, and neither minds the other's fields: a server of an unknown kind
        is sent both.
        """
        _refuse(self._server, _NO_PIECES if pieces else _NO_TOKENS)
        text, special, bos = request.text, request.special, request.add_bos
        match self._server:
            case "tabbyapi":
                named = {"text": text, "add_bos_token": bos, "encode_special_tokens": special}
                return self._call("/token/encode", named, at_root=False)
            case "koboldcpp":
                return self._call("/api/extra/tokencount", {"prompt": text, "special": special})
            case "llama-cpp-python":
                return self._call("/extras/tokenize", {"model": self._model, "input": text})
        body: Body = {"model": self._model, "prompt": text, "add_special_tokens": bos}
        body |= {"content": text, "add_special": bos, "parse_special": special}
        body |= {"with_pieces": True, "return_token_strs": True} if pieces else {}
        return self._call("/tokenize", body)

    def encode_chat(self, request: RemoteChat) -> Question:
        """For the tokens of a conversation."""
        _refuse(self._server, _NO_TEMPLATE)
        body = self._prompt(request)
        if self._server == "tabbyapi":
            return self._call("/token/encode", {**body, "text": body["messages"]}, at_root=False)
        return self._call("/tokenize", body)

    def render(self, request: RemoteChat) -> Question | None:
        """For a conversation's prompt as text. None: its tokens are to be read back."""
        _refuse(self._server, _NO_TEMPLATE)
        if self._server in _DETOKENIZES:
            return None
        return self._call("/apply-template", self._prompt(request))

    def decode(self, tokens: tuple[int, ...]) -> Question:
        """For the text of tokens."""
        _refuse(self._server, _NO_TOKENS)
        match self._server:
            case "tabbyapi":
                return self._call("/token/decode", {"tokens": tokens}, at_root=False)
            case "koboldcpp":
                return self._call("/api/extra/detokenize", {"ids": tokens})
            case "llama-cpp-python":
                return self._call("/extras/detokenize", {"model": self._model, "tokens": tokens})
        return self._call("/detokenize", {"model": self._model, "tokens": tokens})


def read_tokens(body: bytes) -> tuple[int, ...]:
    """Raises Unhealthy."""
    found = decoded(body, _Encoded, UNREADABLE)
    tokens = found.ids if found.tokens is None else found.tokens
    if tokens is None:
        raise broken("no tokens")
    return tuple(one.id if isinstance(one, _Id) else one for one in tokens)


def read_spelled(body: bytes, text: str) -> tuple[tuple[int, ...], tuple[bytes, ...]]:
    """The tokens of `text`, and the bytes of each. Raises Unhealthy, and UpstreamError where the
    server gives no pieces.
    """
    found, tokens = decoded(body, _Encoded, UNREADABLE), read_tokens(body)
    pieces = [one.piece for one in found.tokens or () if isinstance(one, _Id)]
    if len(pieces) == len(tokens) and None not in pieces:
        return tokens, tuple(_piece(one) for one in pieces if one is not None)
    if found.token_strs is None or len(found.token_strs) != len(tokens):
        raise lacking("call for the texts of tokens")
    return tokens, _unspelled(found.token_strs, text.encode("utf-8", "replace"))


def _piece(piece: str | list[int]) -> bytes:
    if isinstance(piece, str):
        return piece.encode("utf-8", "replace")
    try:
        return bytes(piece)
    except ValueError:
        raise broken("a token of bytes beyond 255") from None


def _unspelled(spelled: Sequence[str], text: bytes) -> tuple[bytes, ...]:
    """Bytes of a vocabulary's tokens. Which spelling it has is known by the text that they make."""
    for read in (from_bytes, from_pieces):
        found = tuple(one for token in spelled if (one := read(token)) is not None)
        if len(found) == len(spelled) and b"".join(found).strip() == text.strip():
            return found
    return tuple(one.encode("utf-8", "replace") for one in spelled)


def read_text(body: bytes) -> str:
    """Raises Unhealthy."""
    found = decoded(body, dict[str, Any], UNREADABLE)
    for name in ("prompt", "content", "text", "result"):  # vLLM, llama-server, TabbyAPI, KoboldCpp
        if isinstance(text := found.get(name), str):
            return text
    raise broken("no text")


def read_count(body: bytes) -> int:
    """Raises Unhealthy."""
    return max(0, decoded(body, _Count, UNREADABLE).input_tokens)


def lacking(what: str) -> UpstreamError:
    """The error where a server has no such call."""
    text = f"The model runs on another server, which has no {what}."
    kind = "invalid_request_error"
    return UpstreamError(text, status=400, type=kind, code=None, param="model")


def _refuse(server: ServerKind | None, unable: frozenset[str]) -> None:
    if server in unable:
        raise lacking("tokenizing route" if server in _NO_TOKENS else "route for chat tokens")
