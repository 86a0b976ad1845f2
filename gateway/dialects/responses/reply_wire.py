"""The structs of answers: items, the response itself, the events of a stream.

In each event the field that grows stands last but the sequence number, so that the rest of it is
encoded once.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

Progress: TypeAlias = Literal["in_progress", "completed", "incomplete"]
Status: TypeAlias = Literal[
    "queued", "in_progress", "completed", "incomplete", "failed", "cancelled"
]


class CandidateWire(msgspec.Struct, frozen=True):
    """A token that could have been chosen."""

    token: str
    bytes: tuple[int, ...]
    logprob: float


class LogprobWire(CandidateWire, frozen=True, kw_only=True):
    """The chosen token, and what else there was."""

    top_logprobs: tuple[CandidateWire, ...]


class OutputText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    """The text of a message."""

    text: str
    annotations: tuple[()] = ()
    logprobs: Sequence[LogprobWire] = ()


class ReasoningText(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    """What was thought."""

    text: str


class SummaryText(msgspec.Struct, frozen=True, tag_field="type", tag="summary_text"):
    """What was thought, for those who asked for a summary."""

    text: str


class MessageItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """A message."""

    id: str
    status: Progress
    role: Literal["assistant"] = "assistant"
    content: tuple[OutputText, ...] = ()


class ReasoningItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """Some reasoning."""

    id: str
    status: Progress
    summary: tuple[SummaryText, ...] = ()
    content: tuple[ReasoningText, ...] | UnsetType = UNSET
    encrypted_content: str | UnsetType = UNSET  # see `encrypted_content`


class CallItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    """A call; `arguments` is the text of a JSON object."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: Progress


OutputItem: TypeAlias = MessageItem | ReasoningItem | CallItem


class InputDetails(msgspec.Struct, frozen=True):
    """Of the input tokens."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct, frozen=True):
    """Of the output tokens."""

    reasoning_tokens: int


class UsageWire(msgspec.Struct, frozen=True, kw_only=True):
    """What it cost."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ErrorWire(msgspec.Struct, frozen=True, kw_only=True):
    """Why it failed."""

    code: str
    message: str
    param: str | UnsetType = UNSET


class Incomplete(msgspec.Struct, frozen=True):
    """Why it ended early."""

    reason: Literal["max_output_tokens", "content_filter"]


class ConversationId(msgspec.Struct, frozen=True):
    """The conversation it belongs to."""

    id: str


class ResponseWire(msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="response"):
    """The response in any of its states. Times are Unix time."""

    id: str
    created_at: int
    status: Status
    background: bool
    error: ErrorWire | None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    model: str
    output: Sequence[OutputItem] = ()
    parallel_tool_calls: bool
    previous_response_id: str | None = None
    conversation: ConversationId | None = None
    reasoning: Mapping[str, Any]
    store: bool
    temperature: float | None = None
    text: Mapping[str, Any]
    tool_choice: Any
    tools: Sequence[Any]
    top_logprobs: int = 0
    top_p: float | None = None
    truncation: Literal["auto", "disabled"]
    usage: UsageWire | None = None
    user: None = None
    metadata: Mapping[str, str]


class Lifecycle(msgspec.Struct, frozen=True, kw_only=True):
    """Where the response stands: created, in progress, completed, …"""

    type: str
    response: ResponseWire
    sequence_number: int


class ItemEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An item was added, or is done."""

    type: str
    output_index: int
    item: OutputItem
    sequence_number: int


class PartEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an item was added, or is done. One of both indexes counts."""

    type: str
    item_id: str
    output_index: int
    content_index: int | UnsetType = UNSET
    summary_index: int | UnsetType = UNSET
    part: OutputText | ReasoningText | SummaryText
    sequence_number: int


class GrownEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Some more of a text, of reasoning, of arguments."""

    type: str
    item_id: str
    output_index: int
    content_index: int | UnsetType = UNSET
    summary_index: int | UnsetType = UNSET
    logprobs: Sequence[LogprobWire] | UnsetType = UNSET
    delta: str
    sequence_number: int


class WholeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. `text`, or `name` and `arguments`."""

    type: str
    item_id: str
    output_index: int
    content_index: int | UnsetType = UNSET
    summary_index: int | UnsetType = UNSET
    logprobs: Sequence[LogprobWire] | UnsetType = UNSET
    text: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    sequence_number: int
