"""A conversation and its tools, in one form for all APIs. Text is str, pictures are references.

They stand below the gateway because engines elsewhere are handed a conversation as it is.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]


class TextPart(msgspec.Struct, frozen=True, tag="text"):
    """Some text of a message."""

    text: str


class ImagePart(msgspec.Struct, frozen=True, tag="image"):
    """A picture by reference: a `data:`, `http:` or `https:` URL. `field` is where the client put
    it, for errors; None: where OpenAI's clients do.
    """

    url: str
    field: str | None = None


Part: TypeAlias = TextPart | ImagePart


class ToolCall(msgspec.Struct, frozen=True):
    """A call the model made earlier in the conversation. `arguments` is JSON text as the client
    sent it.
    """

    id: str
    name: str
    arguments: str


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One turn. `reasoning` is what the model thought in an earlier answer, sent back by the
    client.
    """

    role: Role
    parts: tuple[Part, ...] = ()
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None

    @property
    def text(self) -> str:
        """All text parts, joined by newlines."""
        return "\n".join(part.text for part in self.parts if isinstance(part, TextPart))


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A function the model may call. `parameters` is its JSON schema; None: no parameters given."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool | None = None


class NamedTool(msgspec.Struct, frozen=True):
    """The client requires a call of this tool."""

    name: str


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | NamedTool
