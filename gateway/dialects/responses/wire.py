"""The structs of `/v1/responses` bodies as clients send them. Items stay JSON objects: they are
kept, and listed again, as they came; `items` reads them.
"""

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

Alternatives: TypeAlias = Annotated[int, Meta(ge=0, le=20)]
Item: TypeAlias = dict[str, Any]
# A client's own notes, within OpenAI's limits.
Metadata: TypeAlias = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16),
]


class PartWire(msgspec.Struct, frozen=True):
    """One part of a message; `type` says which of the fields count."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None


class ItemWire(msgspec.Struct, frozen=True, kw_only=True):
    """One item; `type` says which of the fields count. One with a role is a message."""

    type: str | None = None
    role: str | None = None
    content: str | list[PartWire] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[PartWire] | None = None
    summary: list[PartWire] = []
    encrypted_content: str | None = None
    text: str | None = None  # of a part that stands among the items
    image_url: str | None = None
    status: str | None = None  # what is sent is over


class InputWire(msgspec.Struct, frozen=True):
    """The items as they are read."""

    input: list[ItemWire]


class FunctionWire(msgspec.Struct, frozen=True):
    """A function, as chat completions nest it."""

    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolWire(msgspec.Struct, frozen=True, kw_only=True):
    """A tool, flat or nested. Only functions can be called here."""

    type: str = "function"
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    function: FunctionWire | None = None


class NamedToolWire(msgspec.Struct, frozen=True):
    """One of the allowed tools."""

    name: str = ""
    type: str = "function"


class ToolChoiceWire(msgspec.Struct, frozen=True):
    """The forms of `tool_choice` that are objects."""

    type: str
    name: str = ""
    mode: str = "auto"
    tools: list[NamedToolWire] = []


class ReasoningWire(msgspec.Struct, frozen=True):
    """How to reason, and whether that is sent as a summary."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None  # its name before


class FormatWire(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of the answer."""

    type: str = "text"
    name: str | None = None  # OpenAI asks for one
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextWire(msgspec.Struct, frozen=True):
    """How the answer is to be written."""

    format: FormatWire = FormatWire()
    verbosity: str | None = None


class ConversationWire(msgspec.Struct, frozen=True):
    """A conversation, by its id."""

    id: str


class CreateWire(msgspec.Struct, frozen=True, kw_only=True):
    """All of a body but the sampling parameters."""

    model: str = ""
    input: str | list[Item] = ""
    instructions: str | None = None
    tools: list[ToolWire] = []
    tool_choice: str | ToolChoiceWire | None = None
    parallel_tool_calls: bool = True
    reasoning: ReasoningWire = ReasoningWire()
    text: TextWire = TextWire()
    truncation: str = "disabled"
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    top_logprobs: Alternatives = 0
    include: list[str] = []
    metadata: Metadata = {}
    stream: bool = False
    store: bool = True
    background: bool = False
    previous_response_id: str | None = None
    conversation: str | ConversationWire | None = None
    stop: str | list[str] = []  # ours, as `keep_alive`
    keep_alive: float | str | None = None
