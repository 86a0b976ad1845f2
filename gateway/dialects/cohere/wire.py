"""Cohere's bodies of conversations, in and out."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

FinishReason: TypeAlias = Literal["COMPLETE", "STOP_SEQUENCE", "MAX_TOKENS", "TOOL_CALL", "ERROR"]

# ----------------------------------------------------------------------------------------------- in


class ImageWire(msgspec.Struct, frozen=True):
    """A picture: a `data:`, `http:` or `https:` URL."""

    url: str


class DocumentWire(msgspec.Struct, frozen=True):
    """What a tool found: a text, or an object of any fields."""

    data: str | dict[str, Any]


class BlockWire(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a message; `type` says which field it has."""

    type: str
    text: str = ""
    thinking: str = ""
    image_url: ImageWire | None = None
    document: DocumentWire | None = None


class FunctionCallWire(msgspec.Struct, frozen=True):
    """What was called, with JSON text."""

    name: str
    arguments: str = "{}"


class CallWire(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the model made."""

    id: str
    function: FunctionCallWire
    type: Literal["function"] = "function"


class MessageWire(msgspec.Struct, frozen=True, kw_only=True):
    """One turn. `tool_plan`: what the assistant said before its calls."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[BlockWire] | None = None
    tool_calls: list[CallWire] | None = None
    tool_plan: str | None = None
    tool_call_id: str | None = None


class FunctionWire(msgspec.Struct, frozen=True, kw_only=True):
    """A function the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class ToolWire(msgspec.Struct, frozen=True, kw_only=True):
    """One tool. There is no other type."""

    function: FunctionWire
    type: Literal["function"] = "function"


class ThinkingWire(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the model is to reason, and for how many tokens at most."""

    type: Literal["enabled", "disabled"]
    token_budget: Annotated[int, Meta(ge=1)] | None = None


class FormatWire(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of the answer."""

    type: Literal["text", "json_object"] = "text"
    json_schema: dict[str, Any] | None = None


class ChatWire(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation to be continued, sampling aside; by our names."""

    messages: list[MessageWire]
    model: str = ""
    stream: bool = False
    tools: list[ToolWire] = []
    strict_tools: bool = False
    tool_choice: Literal["REQUIRED", "NONE"] | None = None
    documents: list[Any] = []
    response_format: FormatWire = FormatWire()
    thinking: ThinkingWire | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    stop: list[str] = []
    logprobs: bool = False
    keep_alive: float | str | None = None


# ---------------------------------------------------------------------------------------------- out


class TextBlock(msgspec.Struct, frozen=True, tag="text"):
    """Some text of the answer."""

    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, tag="thinking"):
    """Some text of the model's reasoning."""

    thinking: str


class CalledFunction(msgspec.Struct, frozen=True):
    """A function's name and its arguments: JSON text."""

    name: str
    arguments: str


class CalledTool(msgspec.Struct, frozen=True, tag_field="type", tag="function"):
    """A call."""

    id: str
    function: CalledFunction


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
    """What it cost."""

    billed_units: Counts
    tokens: Counts
    cached_tokens: int


class LogprobWire(msgspec.Struct, frozen=True, kw_only=True):
    """How likely tokens of the answer were."""

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


class MessageDelta(msgspec.Struct, frozen=True):
    """What an event adds to the message."""

    message: dict[str, Any]


class EndDelta(msgspec.Struct, frozen=True):
    """Why the answer ended, and what it cost."""

    finish_reason: FinishReason
    usage: UsageWire | UnsetType = UNSET


class MessageStart(msgspec.Struct, frozen=True, tag="message-start"):
    """An answer begins."""

    id: str
    delta: MessageDelta


class ContentStart(msgspec.Struct, frozen=True, tag="content-start"):
    """A block begins."""

    index: int
    delta: MessageDelta


class ContentDelta(msgspec.Struct, frozen=True, tag="content-delta"):
    """Some more of a block."""

    index: int
    delta: MessageDelta
    logprobs: LogprobWire | UnsetType = UNSET


class ContentEnd(msgspec.Struct, frozen=True, tag="content-end"):
    """A block is whole."""

    index: int


class CallStart(msgspec.Struct, frozen=True, tag="tool-call-start"):
    """A call begins."""

    index: int
    delta: MessageDelta


class CallDelta(msgspec.Struct, frozen=True, tag="tool-call-delta"):
    """Some more of a call's arguments."""

    index: int
    delta: MessageDelta


class CallEnd(msgspec.Struct, frozen=True, tag="tool-call-end"):
    """A call is whole."""

    index: int


class MessageEnd(msgspec.Struct, frozen=True, tag="message-end"):
    """The answer is over."""

    id: str
    delta: EndDelta


StreamEvent: TypeAlias = (
    MessageStart
    | ContentStart
    | ContentDelta
    | ContentEnd
    | CallStart
    | CallDelta
    | CallEnd
    | MessageEnd
)
