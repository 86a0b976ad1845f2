"""Requests in one form for all APIs. Dialects make these; aliases and defaults of the wire end
there.

The structs know no engine and no HTTP. Text is str, pictures are still references
(`ImagePart.url`).
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from backends.contract.conversation import (
    ImagePart,
    Message,
    NamedTool,
    Part,
    Role,
    Shape,
    TextPart,
    Tool,
    ToolCall,
    ToolChoice,
)
from backends.contract.protocol import GenerationTerms
from backends.contract.samplers import Sampling


class Unapplied(msgspec.Struct, frozen=True):
    """Something of a request that its answer does not apply, and why. `name`: as the client wrote
    it. `partly`: a looser form of it is applied, as of a schema that no grammar can carry whole.
    """

    name: str
    reason: str = "this API has no such field"
    partly: bool = False


def all_unapplied(*names: str) -> tuple[Unapplied, ...]:
    """Fields that have no meaning here."""
    return tuple(map(Unapplied, names))


class RequestedSampling(msgspec.Struct, frozen=True):
    """The sampling parameters a client named, and only those."""

    values: Sampling = Sampling()
    named: frozenset[str] = frozenset()
    # Biases of all tokens of a text, which the model's own vocabulary knows.
    text_biases: tuple[tuple[str, float], ...] = ()

    def over(self, defaults: Sampling) -> Sampling:
        """`defaults` with the named fields replaced."""
        changes = {name: getattr(self.values, name) for name in self.named}
        return msgspec.structs.replace(defaults, **changes)


class Thinking(msgspec.Struct, frozen=True, kw_only=True):
    """How the client wants the model to reason. None: as the model's template does by itself."""

    enabled: bool | None = None
    effort: str | None = None
    budget: int | None = None  # reasoning tokens at most
    closing: str = ""  # text fed to the model when the budget is spent
    shown: Literal["split", "inline", "hidden"] = "split"  # `inline`: tags stay in the content


class GenerationParams(GenerationTerms, frozen=True, kw_only=True):
    """What chat and text completion have in common: how to generate."""

    sampling: RequestedSampling = RequestedSampling()
    stop_in_reasoning: bool = False  # in chat, stop strings count in reasoning too
    n: int = 1
    logprobs_of: Literal["content", "all"] = "content"  # `all`: of reasoning and markers too
    returns_tokens: bool = False  # the generated tokens are returned
    # seconds the model stays when idle; -1: for good; None: its own ttl
    keep_alive: float | None = None
    shape: Shape | None = None  # of the answer; None: it is free
    streamed: bool = True  # sent as a stream, and not whole
    # What no field here stands for, as the client wrote it: an engine elsewhere may know it.
    further: Mapping[str, Any] = {}
    spelled: Mapping[str, str] = {}  # our fields, as the client called them where it did otherwise
    unapplied: tuple[Unapplied, ...] = ()  # what parsing alone can tell
    strict: bool = False  # a request that is not applied whole is refused
    reports: bool = False  # the answer reports how the parameters were applied


Purpose: TypeAlias = Literal["query", "document"]


class EncodingParams(msgspec.Struct, frozen=True, kw_only=True):
    """What embedding and ranking have in common. `field`: what the client called the texts."""

    model: str  # "" means the one that is loaded, or the first there is
    field: str
    truncate: bool = False  # what is too long is cut at its end, else refused
    most_tokens: int | None = None  # of one text or pair; None: as many as the model reads
    keep_alive: float | None = None  # as `GenerationParams.keep_alive`
    further: Mapping[str, Any] = {}  # as `GenerationParams.further`
    unapplied: tuple[Unapplied, ...] = ()  # as `GenerationParams.unapplied`


class EmbeddingRequest(EncodingParams, frozen=True, kw_only=True):
    """Texts, or token ids as they are, whose vectors are wanted."""

    inputs: tuple[str | tuple[int, ...], ...]
    dimensions: int | None = None  # the first values of each vector; None: all
    prompt: str | None = None  # the name of one of the model's own, in front of every text
    purpose: Purpose | None = None  # as `prompt`, but a model without it goes without


class RerankRequest(EncodingParams, frozen=True, kw_only=True):
    """Documents, and what they are to answer."""

    query: str
    documents: tuple[str, ...]


class ScoreRequest(EncodingParams, frozen=True, kw_only=True):
    """Pairs of texts: how well does the second fit the first?"""

    pairs: tuple[tuple[str, str], ...]


# Tools that this server runs itself, which MCP servers offer.


class Approval(msgspec.Struct, frozen=True):
    """Which calls their user has to allow: all, or none, but those of the tools in `other`."""

    needed: bool = False
    other: frozenset[str] = frozenset()

    def needs(self, tool: str) -> bool:
        """Whether a call of `tool` has to be allowed."""
        return self.needed != (tool in self.other)


class ServedTools(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of an MCP server that a client asks for, and calls by the `label`: by its URL, or
    else the label is its name in the configuration. `headers`: of requests to a URL that the
    configuration leaves to clients; `field`: where the client wrote it, `named_at`: and its name.
    """

    label: str
    url: str = ""
    headers: Mapping[str, str] = {}
    allowed: frozenset[str] | None = None  # None: all
    excluded: frozenset[str] = frozenset()
    only_reading: bool = False  # of them those that change nothing, by their server's word
    approval: Approval = Approval()
    field: str = "tools"
    named_at: str = "tools"


class ServedChoice(msgspec.Struct, frozen=True):
    """A tool of an MCP server must be called; `tool` "": any of its."""

    label: str
    tool: str
    field: str = "tool_choice"


class ApprovedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the model asked for before, and its user allowed now. `id`: of the call."""

    id: str
    label: str
    tool: str
    arguments: str
    field: str = "input"


class CallLimit(msgspec.Struct, frozen=True):
    """How many calls an answer may have of the tools of MCP servers and of those `counted`."""

    most: int
    counted: frozenset[str] = frozenset()


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation to be continued."""

    model: str  # "" means the configured default
    messages: tuple[Message, ...]
    answering: GenerationParams = GenerationParams()
    tools: tuple[Tool, ...] = ()  # that the model is shown
    allowed: frozenset[str] | None = None  # those of them that may be called; None: all
    tool_choice: ToolChoice = "auto"
    served: tuple[ServedTools, ...] = ()
    served_choice: ServedChoice | None = None  # in place of `tool_choice`
    approved: tuple[ApprovedCall, ...] = ()  # they are run before the model goes on
    parallel_tool_calls: bool = True
    call_limit: CallLimit | None = None
    thinking: Thinking = Thinking()
    template_variables: Mapping[str, Any] = {}  # chat_template_kwargs
    # What a client spells like a control token becomes one. None: as the server is configured.
    allow_control_tokens: bool | None = None
    format: str | None = None  # a listed one, in place of that recognised in the model
    continue_final: bool = False  # the last (assistant) message is a prefix, not a finished turn
    opens_turn: bool = True  # the prompt ends where the model's turn begins, not before it

    @property
    def asks_for_form(self) -> bool:
        """The answer has a shape, or calls: only then it may be constrained."""
        demanded = self.tool_choice not in ("auto", "none")
        return demanded or bool(self.tools) or self.answering.shape is not None

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """Those that may be called. The model is shown the others too: a prompt that begins as the
        last one did is in the cache.
        """
        if self.allowed is None:
            return self.tools
        return tuple(tool for tool in self.tools if tool.name in self.allowed)

    @property
    def has_images(self) -> bool:
        """Pictures stand somewhere in the conversation."""
        return any(isinstance(part, ImagePart) for each in self.messages for part in each.parts)

    @property
    def one_call(self) -> bool:
        """The answer ends with its first call. A tool that is named is called exactly once, as with
        OpenAI.
        """
        return not self.parallel_tool_calls or isinstance(self.tool_choice, NamedTool)


# A text, token ids, or both in turn.
Prompt: TypeAlias = str | tuple[int | str, ...]


class FillFile(msgspec.Struct, frozen=True):
    """Another file of the project."""

    name: str
    text: str


class Fill(msgspec.Struct, frozen=True):
    """What is to be filled in: the text between `prefix` and `suffix`, of a file among others."""

    prefix: str
    suffix: str
    files: tuple[FillFile, ...] = ()


class TextRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Raw text completion: one or more prompts."""

    model: str
    prompts: tuple[Prompt, ...]
    answering: GenerationParams = GenerationParams()
    suffix: str | None = None
    fill: Fill | None = None  # in place of the prompt
    returns_prompts: bool = False  # the prompts are returned as the model read them
    echo: bool = False
    add_bos: bool | None = None  # None: as the tokenizer does


# What a request is charged before its prompt is tokenized and its answer is known.

CHARACTERS = 4  # of a token, in English
PICTURE = 500  # tokens
ANSWER = 512  # tokens at most: many clients always send the largest limit that they know


def expected_tokens(request: object) -> int:
    """A guess at what `request` takes, prompts and answers together."""
    match request:
        case ChatRequest(messages=messages, tools=tools, answering=answering):
            parts = [part for message in messages for part in message.parts]
            length = sum(len(part.text) for part in parts if isinstance(part, TextPart))
            length += sum(len(tool.name) + len(tool.description or "") for tool in tools)
            pictures = sum(isinstance(part, ImagePart) for part in parts)
            return length // CHARACTERS + pictures * PICTURE + _expected_answer(answering)
        case TextRequest(prompts=prompts, answering=answering, fill=fill):
            filled = (fill.prefix, fill.suffix) if fill is not None else ()
            answers = max(1, len(prompts)) * _expected_answer(answering)
            return sum(map(_tokens, (*prompts, *filled))) + answers
        case EmbeddingRequest(inputs=inputs):
            return sum(map(_tokens, inputs))
        case RerankRequest(query=query, documents=documents):
            return sum(map(_tokens, documents)) + len(documents) * _tokens(query)
        case ScoreRequest(pairs=pairs):
            return sum(_tokens(text) for pair in pairs for text in pair)
        case _:
            return 0


def _expected_answer(answering: GenerationParams) -> int:
    limit = ANSWER if answering.max_tokens is None else min(answering.max_tokens, ANSWER)
    return answering.n * limit


def _tokens(text: Prompt) -> int:
    if isinstance(text, str):
        return len(text) // CHARACTERS
    return sum(1 if isinstance(part, int) else len(part) // CHARACTERS for part in text)
