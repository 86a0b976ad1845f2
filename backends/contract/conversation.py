"""A conversation in one form for all APIs: messages, tools, and the shape an answer is to have.
It stands below the gateway because servers elsewhere are handed a conversation as it is.

Texts are str, pictures are references. A shape's `field` is the client's name of what it sent, for
errors; schemas and structural tags are kept as the JSON text that came, so that a shape can be
hashed and is read in one place, under limits.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec


class JsonObject(msgspec.Struct, frozen=True, kw_only=True, tag="json_object"):
    """Any JSON object."""

    field: str = "response_format"


class JsonSchema(msgspec.Struct, frozen=True, kw_only=True, tag="json_schema"):
    """JSON that satisfies `schema`, which is JSON text.

    `strict`: what can't be enforced while the answer is written is an error; else it is relaxed,
    named and checked afterwards.
    """

    schema: bytes
    strict: bool = False
    field: str = "response_format.json_schema.schema"


class Regex(msgspec.Struct, frozen=True, kw_only=True, tag="regex"):
    """A text that `pattern` matches from its beginning to its end."""

    pattern: str
    field: str = "regex_pattern"


class Grammar(msgspec.Struct, frozen=True, kw_only=True, tag="grammar"):
    """A text of a grammar: llama.cpp's GBNF, known by its `::=`, or Lark as llguidance has it."""

    text: str
    field: str = "grammar"


class Choices(msgspec.Struct, frozen=True, kw_only=True, tag="choices"):
    """One of some texts."""

    texts: tuple[str, ...]
    field: str = "guided_choice"


class StructuralTags(msgspec.Struct, frozen=True, kw_only=True, tag="structural_tag"):
    """Free text in which some markers begin constrained parts.

    `request` is the object's JSON text: `{"type": "structural_tag", ...}` with `structures` and
    `triggers`, or with xgrammar's `format`.
    """

    request: bytes
    field: str = "structural_tag"


Shape: TypeAlias = JsonObject | JsonSchema | Regex | Grammar | Choices | StructuralTags


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
    further: Mapping[str, Any] = {}  # as `Message.further`


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One turn. `reasoning` is what the model thought in an earlier answer, sent back by the
    client; `further`: what the server of a model added to it, which that server alone reads.
    """

    role: Role
    parts: tuple[Part, ...] = ()
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    further: Mapping[str, Any] = {}

    @property
    def text(self) -> str:
        """All text parts, joined by newlines."""
        return "\n".join(part.text for part in self.parts if isinstance(part, TextPart))


INPUT = "input"  # the one parameter of a tool whose input is a text


class ToolInput(msgspec.Struct, frozen=True):
    """What a custom tool's input may be; `shape` None: any text."""

    shape: Grammar | Regex | None = None


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A function the model may call. `parameters` is its JSON schema; None: no parameters given.
    `input`: it takes a text instead, which is to the model its one parameter `INPUT`.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool | None = None
    input: ToolInput | None = None


class NamedTool(msgspec.Struct, frozen=True):
    """The client requires a call of this tool."""

    name: str


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | NamedTool
