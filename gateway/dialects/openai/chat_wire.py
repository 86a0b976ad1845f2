"""The structs of chat answers: chunks of a stream, and the whole body.

Absent is UNSET, null is None: clients break on either in the place of the other. No chunk may get
a key `type`, `event` or `timings` that can be null, because Open WebUI drops such a chunk.
"""

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from gateway.dialects.openai.logprobs import ChatLogprobs
from gateway.dialects.openai.usage import ProgressWire, Timings, UsageWire
from gateway.events import FinishReason, Parameters


class FunctionDelta(msgspec.Struct, frozen=True, kw_only=True):
    """The name comes once and alone; arguments come later, piece by piece."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Some of a call. `id` and `type` are in its first delta only: clients concatenate them."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class ChatDelta(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a message. Empty beside the finish reason."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[ToolCallDelta, ...] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """`finish_reason` is null until the choice ends. The stop string that ended it is vLLM's
    `stop_reason` and TabbyAPI's `stop_str`. `schema_fault`: how the content misses the schema that
    was asked for, in what the grammar couldn't carry.
    """

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | UnsetType = UNSET
    finish_reason: FinishReason | None = None
    stop_reason: str | UnsetType = UNSET
    stop_str: str | UnsetType = UNSET
    schema_fault: str | UnsetType = UNSET


class ChatChunk(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="chat.completion.chunk"
):
    """One event of a stream. `choices` has one entry, or none beside the usage."""

    id: str
    created: int
    model: str
    system_fingerprint: str | UnsetType = UNSET
    choices: tuple[ChunkChoice, ...]
    usage: UsageWire | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    prompt_progress: ProgressWire | UnsetType = UNSET
    parameters: Parameters | UnsetType = UNSET


class FunctionWhole(msgspec.Struct, frozen=True):
    """`arguments` is the text of a JSON object."""

    name: str
    arguments: str


class ToolCallWhole(msgspec.Struct, frozen=True, tag_field="type", tag="function"):
    """One call of the message."""

    id: str
    function: FunctionWhole


class MessageWhole(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. `content` is null when there are only tool calls."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[ToolCallWhole, ...] | UnsetType = UNSET


class WholeChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One of the answers asked for."""

    index: int
    message: MessageWhole
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason
    stop_reason: str | UnsetType = UNSET
    stop_str: str | UnsetType = UNSET
    schema_fault: str | UnsetType = UNSET


class ChatCompletion(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="chat.completion"
):
    """The whole body."""

    id: str
    created: int
    model: str
    system_fingerprint: str | UnsetType = UNSET
    choices: tuple[WholeChoice, ...]
    usage: UsageWire | UnsetType = UNSET
    timings: Timings | UnsetType = UNSET
    parameters: Parameters | UnsetType = UNSET
