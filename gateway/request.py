"""What a client meant, whichever API it spoke. Dialects make these; aliases and defaults of the
wire end there.

The structs know no engine and no HTTP. Text is str, pictures are still references
(`ImagePart.url`).
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from backends.protocol import Sampling
from gateway.shapes import Shape

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
    """A function the model may call. `parameters` is its JSON schema; None: no parameters told."""

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool | None = None


class NamedTool(msgspec.Struct, frozen=True):
    """The client demands a call of this tool."""

    name: str


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | NamedTool


class RequestedSampling(msgspec.Struct, frozen=True):
    """The sampling parameters a client named, and only those."""

    values: Sampling = Sampling()
    named: frozenset[str] = frozenset()

    def over(self, defaults: Sampling) -> Sampling:
        """`defaults` with the named fields replaced."""
        changes = {name: getattr(self.values, name) for name in self.named}
        return msgspec.structs.replace(defaults, **changes)


class Thinking(msgspec.Struct, frozen=True, kw_only=True):
    """How the client wants the model to reason. None: as the model's template does by itself."""

    enabled: bool | None = None
    effort: str | None = None
    budget: int | None = None  # reasoning tokens at most
    closing: str = ""  # what the model is made to say when the budget is spent
    shown: Literal["split", "inline", "hidden"] = "split"  # `inline`: tags stay in the content


class GenerationParams(msgspec.Struct, frozen=True, kw_only=True):
    """What chat and text completion have in common: how to generate."""

    sampling: RequestedSampling = RequestedSampling()
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_in_reasoning: bool = False  # in chat, stop strings count in reasoning too
    n: int = 1
    logprobs: int | None = None  # alternatives per token; None: no logprobs
    # seconds the model stays when idle; -1: for good; None: its own ttl
    keep_alive: float | None = None
    shape: Shape | None = None  # of the answer; None: it is free
    spelled: Mapping[str, str] = {}  # our fields, as the client called them where it did otherwise
    unread: tuple[str, ...] = ()  # fields without a meaning here, as the client wrote them
    strict: bool = False  # what an engine ignores is refused
    reports: bool = False  # the answer tells what became of the parameters


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation to be continued."""

    model: str  # "" means the configured default
    messages: tuple[Message, ...]
    answering: GenerationParams = GenerationParams()
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    thinking: Thinking = Thinking()
    template_variables: Mapping[str, Any] = {}  # chat_template_kwargs
    # What a client spells like a control token becomes one. None: as the server is configured.
    allow_control_tokens: bool | None = None
    continue_final: bool = False  # the last (assistant) message is a prefix, not a finished turn


class TextRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Raw text completion: one or more prompts, each a text or token ids."""

    model: str
    prompts: tuple[str | tuple[int, ...], ...]
    answering: GenerationParams = GenerationParams()
    suffix: str | None = None
    echo: bool = False
    add_bos: bool | None = None  # None: as the tokenizer does
