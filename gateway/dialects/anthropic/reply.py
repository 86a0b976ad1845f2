"""Anthropic's answers: a message as blocks in sequence, each started, extended and ended; the model
list and errors. Knows no HTTP.

A stream and a whole body are made of the same events, so that a stream put together by a client
equals the body it would have got. A block that says nothing is never begun.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from config.values import alike
from gateway.dialects.anthropic.editing import ContextManaged
from gateway.dialects.anthropic.request import MessagesExchange
from gateway.dialects.dialect import Reply, body, named_frame
from gateway.dialects.models import ModelCard
from gateway.terms.errors import GatewayError, ThreadNotHeld
from gateway.terms.events import (
    ArgumentsGrown,
    Content,
    Delta,
    Event,
    Finished,
    FinishReason,
    Reasoning,
    ServedTool,
    ToolAnswered,
    ToolClosed,
    ToolOpened,
    Usage,
    given_object,
)

# By status, as Anthropic's API has them; its 529 is our 503.
TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class ThreadDetails(msgspec.Struct, frozen=True):
    """By which a client knows to send the whole conversation."""

    error_code: str = ThreadNotHeld.code or ""
    unsupported: tuple[str, ...] = ("thread",)


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """`param` and `code` are ours."""

    type: str
    message: str
    param: str | None
    code: str | None
    details: ThreadDetails | UnsetType = UNSET


class ErrorEnvelope(msgspec.Struct, frozen=True):
    """The body of a failed request, and the last event of a broken stream."""

    error: ErrorDetail
    type: Literal["error"] = "error"


def error_wire(error: GatewayError) -> ErrorEnvelope:
    """The body that answers a request with `error`."""
    kind = TYPES.get(error.status_hint, "api_error")
    details = ThreadDetails() if isinstance(error, ThreadNotHeld) else UNSET
    return ErrorEnvelope(alike(ErrorDetail, error)(type=kind, details=details))


def error_event(error: GatewayError) -> bytes:
    """The last event of a broken stream."""
    return named_frame(b"error", error_wire(error))


StopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """A part of the answer."""

    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """A part of the reasoning. Clients send the signature back with it; it is not verified."""

    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A call. `input` is a JSON object."""

    id: str
    name: str
    input: msgspec.Raw


class McpToolUseBlock(msgspec.Struct, frozen=True, tag_field="type", tag="mcp_tool_use"):
    """A call of an MCP server's tool, which was run here."""

    id: str
    name: str
    server_name: str
    input: msgspec.Raw


class McpToolResultBlock(msgspec.Struct, frozen=True, tag_field="type", tag="mcp_tool_result"):
    """And what it answered."""

    tool_use_id: str
    is_error: bool
    content: tuple[TextBlock, ...]


Block: TypeAlias = TextBlock | ThinkingBlock | ToolUseBlock | McpToolUseBlock | McpToolResultBlock


class OutputDetails(msgspec.Struct, frozen=True):
    """Of the output tokens."""

    thinking_tokens: int


class UsageWire(msgspec.Struct, frozen=True, kw_only=True):
    """The token counts. `input_tokens` excludes cached tokens."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens_details: OutputDetails | UnsetType = UNSET


class MessageWhole(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """The answer; in a stream's first event without content."""

    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: tuple[Block, ...]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: UsageWire
    context_management: ContextManaged | UnsetType = UNSET


class MessageStart(msgspec.Struct, frozen=True, tag_field="type", tag="message_start"):
    """The first event."""

    message: MessageWhole


class BlockStart(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_start"):
    """A block begins, empty."""

    index: int
    content_block: Block


class TextDelta(msgspec.Struct, frozen=True, tag_field="type", tag="text_delta"):
    """A further part of a text block."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    """A further part of a thinking block."""

    thinking: str


class SignatureDelta(msgspec.Struct, frozen=True, tag_field="type", tag="signature_delta"):
    """The last delta of a thinking block."""

    signature: str


class InputDelta(msgspec.Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    """A further part of a call's input, as JSON text."""

    partial_json: str


Increment: TypeAlias = TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockDelta(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    """A further part of a block."""

    index: int
    delta: Increment


class BlockStop(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    """A block ends."""

    index: int


class Ending(msgspec.Struct, frozen=True):
    """Why the answer ended; null: it has not."""

    stop_reason: StopReason | None = None
    stop_sequence: str | None = None


class MessageDelta(msgspec.Struct, frozen=True, tag_field="type", tag="message_delta"):
    """The last event but one: the stop reason and the usage."""

    delta: Ending
    usage: UsageWire
    context_management: ContextManaged | UnsetType = UNSET


class MessageStop(msgspec.Struct, frozen=True, tag_field="type", tag="message_stop"):
    """The last event."""


class Ping(msgspec.Struct, frozen=True, tag_field="type", tag="ping"):
    """No content; keeps the connection open."""


class Count(msgspec.Struct, frozen=True):
    """The number of tokens of a prompt."""

    input_tokens: int


PING = named_frame(b"ping", Ping())
MCP_ID = "mcptoolu_"
NO_INPUT = msgspec.Raw(b"{}")

_STOPS: dict[FinishReason, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}


_GROWN: Mapping[type[Block], Callable[[str], Increment]] = {
    TextBlock: TextDelta,
    ThinkingBlock: ThinkingDelta,
    ToolUseBlock: InputDelta,
    McpToolUseBlock: InputDelta,
}


def _filled(block: Block, text: str, signature: str) -> Block:
    match block:
        case TextBlock():
            return TextBlock(text)
        case ThinkingBlock():
            return ThinkingBlock(text, signature)
        case ToolUseBlock() | McpToolUseBlock():
            return msgspec.structs.replace(block, input=given_object(text))
        case McpToolResultBlock():
            return block


def _use_block(opened: ToolOpened, served: ServedTool | None) -> Block:
    """A call, without its input. `served`: the tool is run here."""
    if served is None:
        return ToolUseBlock(opened.id, opened.name, NO_INPUT)
    return McpToolUseBlock(f"{MCP_ID}{opened.id}", served.name, served.label, NO_INPUT)


def _result_block(answered: ToolAnswered) -> McpToolResultBlock:
    name = f"{MCP_ID}{answered.id}"
    return McpToolResultBlock(name, answered.is_error, (TextBlock(answered.text),))


class MessagesReply(Reply):
    """The answer to one request, as a stream or whole. `prompt_tokens` are sent when it begins;
    what was cached is not known then. `served`: tools that are run here, by their functions' names.

    At most one block is open; calls are sent one after the other.
    """

    exchange: MessagesExchange
    id: str
    model: str
    prompt_tokens: int
    served: Mapping[str, ServedTool] = {}
    _ending: Ending = Ending()
    _open: type[Block] | None = None
    # Each as it began, and its text.
    _blocks: list[tuple[Block, list[str]]] = msgspec.field(default_factory=list)

    def opening(self) -> bytes:
        """The message without content."""
        usage = UsageWire(input_tokens=self.prompt_tokens, output_tokens=0)
        return named_frame(b"message_start", MessageStart(self._message((), usage)))

    def delta(self, delta: Delta) -> bytes:
        """Some more of the answer."""
        frames = [self._frames(event) for event in delta.events]
        for answered in delta.answered:
            frames += [self._begin(_result_block(answered)), self._end()]
        return b"".join(frames)

    def _frames(self, event: Event) -> bytes:
        match event:
            case Content(text):
                return self._grow_text(TextBlock(""), text)
            case Reasoning(text):
                hidden = self.exchange.request.thinking.shown == "hidden"
                return b"" if hidden else self._grow_text(ThinkingBlock("", ""), text)
            case ToolOpened(name=name):
                return self._begin(_use_block(event, self.served.get(name)))
            case ArgumentsGrown(fragment=fragment):
                return self._grow(fragment)
            case ToolClosed():
                return self._end()
            case Finished():
                self._ending = _ending(event)
                return self._end()

    def _grow_text(self, empty: Block, text: str) -> bytes:
        begun = b"" if self._open is type(empty) or not text else self._begin(empty)
        return begun + self._grow(text)

    def _grow(self, text: str) -> bytes:
        """Some more of the block that is open."""
        if not text:
            return b""
        assert self._open is not None, "a block is open"
        self._blocks[-1][1].append(text)
        return self._grown(_GROWN[self._open](text))

    def _grown(self, increment: Increment) -> bytes:
        return named_frame(b"content_block_delta", BlockDelta(self._index, increment))

    @property
    def _index(self) -> int:
        return len(self._blocks) - 1

    def _begin(self, block: Block) -> bytes:
        """A new block, behind the end of the one before."""
        ended = self._end()
        self._blocks.append((block, []))
        self._open = type(block)
        return ended + named_frame(b"content_block_start", BlockStart(self._index, block))

    def _end(self) -> bytes:
        """The end of the block that is open, if there is one."""
        if self._open is None:
            return b""
        is_thinking, self._open = self._open is ThinkingBlock, None
        signed = self._grown(SignatureDelta(self.id)) if is_thinking else b""
        return signed + named_frame(b"content_block_stop", BlockStop(self._index))

    def closing(self, usage: Usage) -> bytes:
        """Why it ended, what it cost, and the end."""
        last = MessageDelta(self._ending, _usage(usage), self.exchange.managed)
        return named_frame(b"message_delta", last) + named_frame(b"message_stop", MessageStop())

    def whole(self, usage: Usage) -> bytes:
        """The JSON body."""
        blocks = [_filled(block, "".join(texts), self.id) for block, texts in self._blocks]
        whole = self._message(tuple(blocks), _usage(usage))
        return body(msgspec.structs.replace(whole, context_management=self.exchange.managed))

    def _message(self, content: tuple[Block, ...], usage: UsageWire) -> MessageWhole:
        ended = alike(MessageWhole, self._ending)
        return ended(id=self.id, model=self.model, content=content, usage=usage)


def _ending(last: Finished) -> Ending:
    if last.stop is not None:
        return Ending("stop_sequence", last.stop)
    return Ending(_STOPS[last.reason])


def _usage(usage: Usage) -> UsageWire:
    return UsageWire(
        input_tokens=usage.computed_tokens,
        output_tokens=usage.completion_tokens,
        cache_read_input_tokens=usage.cached_tokens,
        output_tokens_details=OutputDetails(usage.reasoning_tokens),
    )


class Support(msgspec.Struct, frozen=True):
    """Whether a feature is supported."""

    supported: bool


YES, NO = Support(supported=True), Support(supported=False)
EFFORTS = ("low", "medium", "high", "xhigh", "max")
PartlySupported: TypeAlias = Mapping[str, Any]  # `supported`, and which of its parts are


class ModelCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The capabilities of a model, by Anthropic's names, without features that only its service
    has. Where a feature has parts, each of them says `supported` as well.
    """

    image_input: Support
    structured_outputs: Support
    thinking: PartlySupported
    effort: PartlySupported
    batch: Support = NO
    citations: Support = NO
    code_execution: Support = NO
    context_management: PartlySupported
    pdf_input: Support = NO
    server_tools: PartlySupported


class ModelWire(msgspec.Struct, frozen=True, kw_only=True):
    """One model. `max_input_tokens` is its context; `capabilities` are null while they are not
    known.
    """

    id: str
    display_name: str
    created_at: str
    max_input_tokens: int | None
    max_tokens: int | None
    capabilities: ModelCapabilities | None
    lifecycle: Literal["active"] = "active"
    type: Literal["model"] = "model"


class ModelPage(msgspec.Struct, frozen=True, kw_only=True):
    """All of them are on one page."""

    data: Sequence[ModelWire]
    first_id: str | None
    last_id: str | None
    has_more: bool = False


def model_wire(card: ModelCard, efforts: Sequence[str], *, keeps_to_schemas: bool) -> ModelWire:
    """One model. `efforts`: those that its template takes."""
    created = datetime.fromtimestamp(card.created, UTC)
    able = card.capabilities
    return ModelWire(
        id=card.id,
        display_name=card.id,
        created_at=created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        max_input_tokens=card.context_length,
        max_tokens=card.context_length,
        capabilities=None
        if able is None
        else _capabilities(able, efforts, keeps_to_schemas=keeps_to_schemas),
    )


def _capabilities(
    able: Sequence[str], taken: Sequence[str], *, keeps_to_schemas: bool
) -> ModelCapabilities:
    thinks = "reasoning" in able
    types = dict.fromkeys(("enabled", "adaptive", "between_tools"), Support(thinks))
    efforts = {name: Support(name in taken) for name in EFFORTS}
    edits = {"clear_thinking_20251015": YES, "clear_tool_uses_20250919": YES}
    return ModelCapabilities(
        image_input=Support("vision" in able),
        structured_outputs=Support(keeps_to_schemas),
        thinking={"supported": thinks, "types": {**types, "disabled": YES}},
        effort={"supported": bool(taken), **efforts},
        context_management={"supported": True, **edits, "compact_20260112": NO},
        server_tools={"supported": False, "code_execution": NO, "web_search": NO},
    )


def model_page(models: Sequence[ModelWire]) -> ModelPage:
    """A list of `models`, in their order."""
    return ModelPage(
        data=models,
        first_id=models[0].id if models else None,
        last_id=models[-1].id if models else None,
    )
