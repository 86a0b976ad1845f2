"""What crosses between the gateway and a model that another server runs
(`backends.places.upstream.upstream.UpstreamModel`).

That server renders, tokenizes, generates and splits answers: a parsed request goes over, and the
model's events come back. Frozen structs, as in `backends.contract.protocol`.

    async with container.chat(request) as answer:   # the answer has begun, or it raised
        async for events in answer:                 # all that arrived together
            for event in events: ...
    # here the other server no longer works for this request

A text that is to be split here goes over `complete`.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec
from msgspec import UNSET, Meta

from backends.contract.conversation import Message, Shape, Tool, ToolChoice
from backends.contract.protocol import TokenLogprob

# Ids of the Roundhouses that a request came through, separated by commas.
HOPS = "x-roundhouse-hops"
MOST_HOPS = 8
MAX_NAME = 256  # characters of a model's name there
TRACE_HEADERS = ("traceparent", "tracestate")  # W3C Trace Context


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The client behind a call: the request's id, and the key it came with."""

    request_id: str = ""
    key: str = ""
    hops: str = ""  # the header of that name, this server last; "": the client is no Roundhouse
    trace: Mapping[str, str] = {}  # `TRACE_HEADERS` that the other server gets
    # Called with the upstream's name and the URL of its server that has begun to answer.
    served_by: Callable[[str, str], None] = lambda _upstream, _url: None

    def __repr__(self) -> str:
        """All but the key, since representations end in logs."""
        return f"Caller(request_id={self.request_id!r})"


UNKNOWN_CALLER = Caller()


class RemoteOrigin(msgspec.Struct, frozen=True):
    """The Roundhouse that a model runs at, or the one that knows the server it runs at; and its
    name there. `hops`: servers on the way there.
    """

    server: Annotated[str, Meta(min_length=1, max_length=64)]
    model: Annotated[str, Meta(max_length=MAX_NAME)]
    hops: Annotated[int, Meta(ge=0)] = 0


class RemoteFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a model that another server has. None: not known."""

    context_length: int | None = None
    capabilities: tuple[str, ...] | None = None  # "tools", "reasoning", "vision"
    roundhouse: bool = False
    origin: RemoteOrigin | None = None  # of a Roundhouse's


class RemoteTarget(RemoteFacts, frozen=True, kw_only=True):
    """Where a model is, and what is known of it."""

    upstream: str  # its name in the configuration
    model: str  # what the upstream calls it
    fallbacks: tuple[str, ...] = ()  # our models that are asked instead
    fetches_images: bool = True  # pictures may be handed on as URLs
    runs_here: bool = False  # by a process of this server, in this machine's memory


RemoteState: TypeAlias = Literal["unloaded", "loading", "loaded", "draining", "failed"]


class RemoteStanding(msgspec.Struct, frozen=True, kw_only=True):
    """How a model does at the Roundhouse that runs it, as its list last reported."""

    state: RemoteState
    percent: int | None = None  # of a load in progress
    why_failed: str | None = None
    memory: str = ""  # the arithmetic, as a sentence
    missing: int = 0  # bytes that its load would have to take from other models
    in_use: int = 0  # requests under way
    waiting: int = 0  # requests in its line


class RemoteCalling(msgspec.Struct, frozen=True, kw_only=True):
    """Any request. `parameters`: JSON by OpenAI's names; fields that the client spelled
    differently, or that are not read here, by their own names.
    """

    parameters: Mapping[str, Any] = {}
    caller: Caller = UNKNOWN_CALLER


class RemoteRequest(RemoteCalling, frozen=True, kw_only=True):
    """What chats and texts have in common."""

    shape: Shape | None = None  # of the answer
    n: int = 1


class RemoteThinking(msgspec.Struct, frozen=True, kw_only=True):
    """How the model is to reason; None: as it does by itself. The parameters say the same in fields
    that not every server has; there the budget is called `budget_name`.
    """

    enabled: bool | None = None
    effort: str | None = None
    budget: int | None = None  # reasoning tokens at most
    budget_name: str = "thinking_budget"


class RemoteChat(RemoteRequest, frozen=True, kw_only=True):
    """A conversation to be continued. Pictures are still references."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    thinking: RemoteThinking = RemoteThinking()


class RemoteText(RemoteRequest, frozen=True, kw_only=True):
    """Raw text completion: one or more prompts, each a text or token ids."""

    prompts: tuple[str | tuple[int, ...], ...]


class RemoteEmbedding(RemoteCalling, frozen=True, kw_only=True):
    """Texts or token ids whose vectors are wanted."""

    inputs: tuple[str | tuple[int, ...], ...]


class RemoteRerank(RemoteCalling, frozen=True, kw_only=True):
    """Documents whose scores for `query` are wanted, of all of them."""

    query: str
    documents: tuple[str, ...]


class RemoteEncoding(msgspec.Struct, frozen=True, kw_only=True):
    """A text whose tokens are wanted. `special`: texts of control tokens become them; `add_bos`:
    where it is usual.
    """

    text: str
    special: bool = True
    add_bos: bool = True
    caller: Caller = UNKNOWN_CALLER


class RemoteVectors(msgspec.Struct, frozen=True, kw_only=True):
    """For each text, in their order, what `EncoderContainer.encode` gives: a vector, or a score."""

    vectors: tuple[bytes, ...]
    prompt_tokens: int = 0  # 0: the other server doesn't report it


class RemoteCall(msgspec.Struct, frozen=True):
    """Some of a tool call. Calls are counted from 0; each begins with its id and name, given once,
    and its `arguments` add up to the call's. `further`: see `RemoteFurther`; with its name.
    """

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    further: Mapping[str, Any] = {}


class FurtherOfCall(msgspec.Struct, frozen=True, kw_only=True):
    """What some servers add to a call, and want back: Gemini's signatures, LiteLLM's fields."""

    extra_content: Any = UNSET
    thought_signature: Any = UNSET
    provider_specific_fields: Any = UNSET


class FurtherOfMessage(FurtherOfCall, frozen=True, kw_only=True):
    """And to a message: OpenRouter, Gemini, Perplexity, LiteLLM, OpenAI."""

    annotations: Any = UNSET
    audio: Any = UNSET
    citations: Any = UNSET
    images: Any = UNSET
    reasoning_details: Any = UNSET
    thinking_blocks: Any = UNSET


class RemoteFurther(msgspec.Struct, frozen=True):
    """Fields that the server adds to an answer and that mean nothing here: they are for the client,
    who may send them back. `message`: of the message, `answer`: beside the choices.
    """

    message: Mapping[str, Any] = {}
    answer: Mapping[str, Any] = {}


class RemoteDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Some more of one choice: reasoning, then content, then calls. `finished`: the finish reason
    in OpenAI's words, once and last.
    """

    choice: int = 0
    reasoning: str = ""
    content: str = ""
    calls: tuple[RemoteCall, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finished: str | None = None
    stop: str | None = None  # the stop string that was found
    further: RemoteFurther | None = None


class RemoteUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer cost, all choices together, by the other server's count."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    further: Mapping[str, Any] = {}  # such as its price


RemoteEvent: TypeAlias = RemoteDelta | RemoteUsage


# The events of an answer, those together that arrived together.
RemoteEvents: TypeAlias = AsyncIterator[Sequence[RemoteEvent]]


class RemoteChanges(msgspec.Struct, frozen=True, kw_only=True):
    """What of a request's parameters is not handed on as it is."""

    unapplied: Mapping[str, str] = {}  # by their names there, and why
    replaced: Mapping[str, Any] = {}  # and by what
    holds_shape: bool = True  # the other server is asked to keep the answer to its shape


class PassedAnswer(msgspec.Struct, frozen=True):
    """An answer of a model's own server, as it is."""

    status: int
    headers: Sequence[tuple[bytes, bytes]]
    body: AsyncIterator[bytes]


@runtime_checkable
class Passing(Protocol):
    """A container whose own server takes other requests, too."""

    def passed(
        self, method: str, path: str, headers: Mapping[str, str], content: bytes
    ) -> AbstractAsyncContextManager[PassedAnswer]:
        """The answer of its server to any request. Raises UpstreamError."""
        ...
