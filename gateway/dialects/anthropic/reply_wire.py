"""The structs of answers: blocks, the whole message, the events of a stream."""

from typing import Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

StopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Some of the answer."""

    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """Some reasoning. Clients send the signature back with it; it is not verified."""

    thinking: str
    signature: str


class ToolUseBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A call. `input` is a JSON object."""

    id: str
    name: str
    input: msgspec.Raw


Block: TypeAlias = TextBlock | ThinkingBlock | ToolUseBlock


class OutputDetails(msgspec.Struct, frozen=True):
    """Of the output tokens."""

    thinking_tokens: int


class UsageWire(msgspec.Struct, frozen=True, kw_only=True):
    """`input_tokens` are those that were not found in the cache."""

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


class MessageStart(msgspec.Struct, frozen=True, tag_field="type", tag="message_start"):
    """The first event."""

    message: MessageWhole


class BlockStart(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_start"):
    """A block begins, empty."""

    index: int
    content_block: Block


class TextDelta(msgspec.Struct, frozen=True, tag_field="type", tag="text_delta"):
    """Some more of a text block."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    """Some more of a thinking block."""

    thinking: str


class SignatureDelta(msgspec.Struct, frozen=True, tag_field="type", tag="signature_delta"):
    """The last delta of a thinking block."""

    signature: str


class InputDelta(msgspec.Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    """Some more of a call's input, as JSON text."""

    partial_json: str


Increment: TypeAlias = TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockDelta(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    """Some more of a block."""

    index: int
    delta: Increment


class BlockStop(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    """A block is over."""

    index: int


class Ending(msgspec.Struct, frozen=True):
    """Why the answer ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, tag_field="type", tag="message_delta"):
    """The last event but one: why it ended, and what all of it cost."""

    delta: Ending
    usage: UsageWire


class MessageStop(msgspec.Struct, frozen=True, tag_field="type", tag="message_stop"):
    """The last event."""


class Ping(msgspec.Struct, frozen=True, tag_field="type", tag="ping"):
    """Nothing new."""


class Count(msgspec.Struct, frozen=True):
    """How many tokens a prompt has."""

    input_tokens: int
