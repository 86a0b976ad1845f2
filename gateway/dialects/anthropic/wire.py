"""The structs of `/v1/messages` bodies as clients send them. Of an object's fields its `type` says
which count.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta


class SourceWire(msgspec.Struct, frozen=True):
    """Where a picture or a document is."""

    type: str
    media_type: str = ""
    data: str | None = None
    url: str | None = None
    content: "str | list[BlockWire] | None" = None


class BlockWire(msgspec.Struct, frozen=True, kw_only=True):
    """One block of a message, of the system prompt, of a tool's result."""

    type: str
    text: str | None = None
    source: SourceWire | str | None = None  # a text in search results alone
    title: str | None = None
    context: str | None = None
    thinking: str | None = None
    signature: str | None = None  # of thinking: ours, not verified
    data: str | None = None  # of thinking that Anthropic encrypted
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: "str | list[BlockWire] | None" = None
    is_error: bool | None = None


class MessageWire(msgspec.Struct, frozen=True):
    """One turn."""

    role: str
    content: str | list[BlockWire]


class ToolWire(msgspec.Struct, frozen=True, kw_only=True):
    """A tool. Those of any type but "custom" are known to Anthropic's models alone."""

    name: str = ""
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoiceWire(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a tool must be called."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool = False


class ThinkingWire(msgspec.Struct, frozen=True, kw_only=True):
    """How the model is to think."""

    type: str
    budget_tokens: Annotated[int, Meta(ge=1)] | None = None
    display: str | None = None


class FormatWire(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of the answer."""

    type: str
    schema: dict[str, Any] | None = None


class OutputConfigWire(msgspec.Struct, frozen=True):
    """How much effort, and which shape."""

    effort: str | None = None
    format: FormatWire | None = None


class ConversationWire(msgspec.Struct, frozen=True, kw_only=True):
    """What a prompt is made of."""

    messages: list[MessageWire]
    system: str | list[BlockWire] = ""
    tools: list[ToolWire] = []
    tool_choice: ToolChoiceWire | None = None


class AnsweringWire(msgspec.Struct, frozen=True, kw_only=True):
    """How to answer, sampling aside."""

    model: str = ""
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    stop_sequences: list[str] = []
    stream: bool = False
    thinking: ThinkingWire | None = None
    output_config: OutputConfigWire = OutputConfigWire()
    output_format: FormatWire | None = None  # its name before there was output_config
    keep_alive: float | str | None = None  # ours
