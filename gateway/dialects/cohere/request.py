"""Reads Cohere's bodies: conversations (`/v2/chat`), texts to embed (`/v2/embed`), and the tokens
of its first version. It knows no model.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.dialects.dialect import body
from gateway.dialects.encoding import (
    PURPOSES,
    BilledInput,
    CohereVersion,
    EncodingWire,
    Token,
    positive,
    read_encoding,
    written,
)
from gateway.dialects.fields import (
    Fields,
    fields_of,
    json_object,
    read_fields,
)
from gateway.dialects.parameters import (
    AnswerWire,
    FunctionWire,
    read_answering,
    read_choice_mode,
)
from gateway.terms.events import Encodings
from gateway.terms.request import (
    ChatRequest,
    EmbeddingRequest,
    ImagePart,
    Message,
    Part,
    TextPart,
    Thinking,
    Tool,
    ToolCall,
    all_unapplied,
)

FinishReason: TypeAlias = Literal["COMPLETE", "STOP_SEQUENCE", "MAX_TOKENS", "TOOL_CALL", "ERROR"]


class ImageWire(msgspec.Struct, frozen=True):
    """An image: a `data:`, `http:` or `https:` URL."""

    url: str


class DocumentWire(msgspec.Struct, frozen=True):
    """A tool's result: a text, or an object with any fields."""

    data: str | dict[str, Any]


class BlockWire(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a message. `type` determines which field is set."""

    type: str
    text: str = ""
    thinking: str = ""
    image_url: ImageWire | None = None
    document: DocumentWire | None = None


class CalledFunction(msgspec.Struct, frozen=True):
    """The called function, with its arguments as JSON text."""

    name: str
    arguments: str | None = None


class CalledTool(msgspec.Struct, frozen=True, tag_field="type", tag="function"):
    """A call that the model made."""

    id: str
    function: CalledFunction


class MessageWire(msgspec.Struct, frozen=True, kw_only=True):
    """One turn. `tool_plan`: the assistant's text before its calls."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[BlockWire] | None = None
    tool_calls: list[CalledTool] | None = None
    tool_plan: str | None = None
    tool_call_id: str | None = None


class ToolWire(msgspec.Struct, frozen=True, kw_only=True):
    """A tool. `function` is the only type."""

    function: FunctionWire
    type: Literal["function"] = "function"


class ThinkingWire(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the model reasons, and the token limit of the reasoning."""

    type: Literal["enabled", "disabled"]
    token_budget: Annotated[int, Meta(ge=1)] | None = None


class FormatWire(msgspec.Struct, frozen=True, kw_only=True):
    """The format of the answer."""

    type: Literal["text", "json_object"] = "text"
    json_schema: dict[str, Any] | None = None


class ChatWire(AnswerWire, frozen=True, kw_only=True):
    """A conversation to be continued, sampling aside; by our names."""

    messages: list[MessageWire]
    tools: Sequence[ToolWire] = ()
    strict_tools: bool = False
    tool_choice: Literal["REQUIRED", "NONE"] | None = None
    documents: Sequence[Any] = ()
    response_format: FormatWire = FormatWire()
    thinking: ThinkingWire | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool = False


class TextBlock(msgspec.Struct, frozen=True, tag="text"):
    """A text block of the answer."""

    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, tag="thinking"):
    """A block of the model's reasoning."""

    thinking: str


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer."""

    role: Literal["assistant"] = "assistant"
    content: Sequence[TextBlock | ThinkingBlock] | UnsetType = UNSET
    tool_calls: Sequence[CalledTool] | UnsetType = UNSET


class Counts(msgspec.Struct, frozen=True):
    """Tokens."""

    input_tokens: int
    output_tokens: int


class UsageWire(msgspec.Struct, frozen=True, kw_only=True):
    """The usage."""

    billed_units: Counts
    tokens: Counts
    cached_tokens: int


class LogprobWire(msgspec.Struct, frozen=True, kw_only=True):
    """The log probabilities of the answer's tokens."""

    text: str
    token_ids: Sequence[int]
    logprobs: Sequence[float]


class ChatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a whole answer."""

    id: str
    finish_reason: FinishReason
    message: AnswerMessage
    usage: UsageWire | UnsetType = UNSET
    logprobs: Sequence[LogprobWire] | UnsetType = UNSET


class StreamEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream: `message-start`; of each block `content-start`, `content-delta` and
    `content-end`, of each call the same with `tool-call`; `message-end`. `delta`: what it adds to
    the message, at the end why that ended and what it cost.
    """

    type: str
    id: str | UnsetType = UNSET
    index: int | UnsetType = UNSET
    delta: Mapping[str, Any] | UnsetType = UNSET
    logprobs: LogprobWire | UnsetType = UNSET


NAMES: Mapping[str, str] = {"p": "top_p", "k": "top_k", "stop_sequences": "stop"}  # to ours


def read_chat(content: bytes) -> ChatRequest:
    """What a body of `/v2/chat` means. Raises InvalidRequest, which names the field."""
    fields = fields_of(json_object(content), names=NAMES)
    wire = fields.read(ChatWire)
    if not wire.messages:
        raise fields.wrong("messages", "At least one message is required.")
    if wire.documents:
        raise fields.wrong("documents", "Not available; write them into a message.")
    return ChatRequest(
        model=wire.model,
        messages=tuple(
            _message(fields, f"messages[{k}]", message) for k, message in enumerate(wire.messages)
        ),
        answering=read_answering(fields, wire)(logprobs=0 if wire.logprobs else None),
        tools=tuple(
            _tool(fields, f"tools[{k}].function", tool.function, strict=wire.strict_tools)
            for k, tool in enumerate(wire.tools)
        ),
        tool_choice=read_choice_mode(
            fields,
            "tool_choice",
            wire.tool_choice and wire.tool_choice.lower(),
            has_tools=bool(wire.tools),
        ),
        thinking=_thinking(wire.thinking),
    )


def _tool(fields: Fields, path: str, wire: FunctionWire, *, strict: bool) -> Tool:
    tool = wire.tool(fields, path)
    return msgspec.structs.replace(tool, strict=True) if strict else tool


def _thinking(wire: ThinkingWire | None) -> Thinking:
    if wire is None:
        return Thinking()
    return Thinking(enabled=wire.type == "enabled", budget=wire.token_budget)


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
            ToolCall(call.id, call.function.name, call.function.arguments or "{}") for call in calls
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


TYPES = {"float": False, "base64": True}  # whether their vectors are written as base64


class TextContent(msgspec.Struct, frozen=True, kw_only=True):
    """A part of one input to embed."""

    type: str
    text: str = ""


class EmbedInput(msgspec.Struct, frozen=True):
    """One input to embed."""

    content: list[TextContent]


class EmbedWire(EncodingWire, frozen=True, kw_only=True):
    """Texts to embed."""

    texts: list[str] | None = None
    inputs: list[EmbedInput] | None = None
    images: Sequence[str] = ()
    input_type: str | None = None
    embedding_types: Sequence[str] = ()  # none: float
    output_dimension: int | None = None
    max_tokens: int | None = None
    truncate: Literal["NONE", "START", "END"] = "END"


class TypedVectors(msgspec.Struct, frozen=True, kw_only=True):
    """The embeddings in each requested type."""

    floats: Sequence[list[float] | str] | UnsetType = msgspec.field(default=UNSET, name="float")
    base64: Sequence[list[float] | str] | UnsetType = UNSET


class EmbedMeta(msgspec.Struct, frozen=True, kw_only=True):
    """The usage."""

    api_version: CohereVersion
    billed_units: BilledInput


class Embedded(msgspec.Struct, frozen=True, kw_only=True):
    """The embeddings of all texts, in their order."""

    id: str
    embeddings: TypedVectors
    texts: Sequence[str]
    meta: EmbedMeta
    response_type: Literal["embeddings_by_type"] = "embeddings_by_type"


class TokenizeWire(msgspec.Struct, frozen=True, kw_only=True):
    """A text to tokenize."""

    text: str
    model: str = ""


class Tokenized(msgspec.Struct, frozen=True):
    """The tokens of a text, and the text of each."""

    tokens: Sequence[int]
    token_strings: Sequence[str]


class DetokenizeWire(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens to convert to text."""

    tokens: list[Token]
    model: str = ""


class Detokenized(msgspec.Struct, frozen=True):
    """The text of tokens."""

    text: str


class CohereEmbedding(msgspec.Struct, frozen=True, kw_only=True):
    """A request, and the forms of its vectors."""

    request: EmbeddingRequest
    texts: tuple[str, ...]
    types: tuple[str, ...]


def read_embed(content: bytes) -> CohereEmbedding:
    """What a body of `/v2/embed` means. Raises InvalidRequest, which names the field."""
    fields = read_fields(content)
    wire = fields.read(EmbedWire)
    _refuse(fields, wire)
    field = "inputs" if wire.texts is None else "texts"
    texts = _texts(fields, wire)
    purpose = PURPOSES.get((wire.input_type or "").lower())
    other = all_unapplied("input_type") if wire.input_type and purpose is None else ()
    return CohereEmbedding(
        request=read_encoding(EmbeddingRequest, fields, wire, field, unapplied=other)(
            inputs=texts,
            dimensions=positive(fields, "output_dimension", wire.output_dimension),
            purpose=purpose,
            truncate=wire.truncate == "END",
            most_tokens=positive(fields, "max_tokens", wire.max_tokens),
        ),
        texts=texts,
        types=tuple(wire.embedding_types) or ("float",),
    )


def _refuse(fields: Fields, wire: EmbedWire) -> None:
    """What would change the vectors and isn't here."""
    if wire.images:
        raise fields.wrong("images", "Not supported: embeddings of images.")
    if wire.truncate == "START":
        raise fields.wrong("truncate", "Texts are cut at their end alone: 'END' or 'NONE'.")
    for kind in wire.embedding_types:
        fields.meant("embedding_types", kind, TYPES)


def _texts(fields: Fields, wire: EmbedWire) -> tuple[str, ...]:
    if wire.texts:
        return tuple(wire.texts)
    if not wire.inputs:
        raise fields.wrong("texts", "At least one text is required.")
    for k, given in enumerate(wire.inputs):
        if any(part.type != "text" for part in given.content):
            raise fields.wrong(f"inputs[{k}].content", "Texts alone are embedded.")
    return tuple("\n".join(part.text for part in given.content) for given in wire.inputs)


def embed_body(exchange: CohereEmbedding, encoded: Encodings, id: str) -> bytes:
    """The JSON body of vectors."""
    billed = BilledInput(encoded.prompt_tokens)
    forms = {
        kind: [written(vector, base64=TYPES[kind]) for vector in encoded.vectors]
        for kind in exchange.types
    }
    return body(
        Embedded(
            id=id,
            embeddings=TypedVectors(
                floats=forms.get("float", UNSET), base64=forms.get("base64", UNSET)
            ),
            texts=exchange.texts,
            meta=EmbedMeta(api_version=CohereVersion("2"), billed_units=billed),
        )
    )
