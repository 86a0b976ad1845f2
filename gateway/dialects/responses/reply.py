"""The reply of the responses API: a response's states, its events and its body. Knows no HTTP and
no store.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from backends.contract.protocol import TokenLogprob
from backends.contract.samplers import Sampling
from config.values import alike
from gateway.dialects.dialect import Reply, body
from gateway.dialects.models import ErrorDetail, envelope
from gateway.dialects.responses.answer_items import (
    CompactionItem,
    GrowingItem,
    Kind,
    OutputItem,
    PlacedItem,
    Progress,
    event,
)
from gateway.dialects.responses.items import ConversationWire
from gateway.dialects.responses.mcp_calls import McpCall, list_events, list_item
from gateway.dialects.responses.mcp_items import McpListItem, listed_before
from gateway.dialects.responses.request import ResponsesExchange
from gateway.dialects.responses.tools import Offered
from gateway.terms.errors import GatewayError
from gateway.terms.events import (
    ArgumentsGrown,
    Content,
    Delta,
    Event,
    Finished,
    ListedServer,
    Reasoning,
    ServedTool,
    ToolAnswered,
    ToolClosed,
    ToolOpened,
    Usage,
)

Status: TypeAlias = Literal[
    "queued", "in_progress", "completed", "incomplete", "failed", "cancelled"
]


class InputDetails(msgspec.Struct, frozen=True):
    """Of the input tokens."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct, frozen=True):
    """Of the output tokens."""

    reasoning_tokens: int


class UsageWire(msgspec.Struct, frozen=True, kw_only=True):
    """The usage."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ErrorWire(msgspec.Struct, frozen=True, kw_only=True):
    """The error of a failed response."""

    code: str
    message: str
    param: str | UnsetType = UNSET


class Incomplete(msgspec.Struct, frozen=True):
    """The reason why a response is incomplete."""

    reason: Literal["max_output_tokens", "content_filter"]


class ResponseWire(msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="response"):
    """The response in any of its states. Times are Unix time."""

    id: str
    created_at: int
    completed_at: int | None = None
    status: Status
    background: bool
    error: ErrorWire | None = None
    incomplete_details: Incomplete | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    model: str
    output: Sequence[OutputItem] = ()
    parallel_tool_calls: bool
    previous_response_id: str | None = None
    conversation: ConversationWire | None = None
    reasoning: Mapping[str, Any]
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: Literal["default"] = "default"
    store: bool
    temperature: float
    text: Mapping[str, Any]
    tool_choice: Any
    tools: Sequence[Any]
    top_logprobs: int = 0
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    truncation: Literal["auto", "disabled"]
    usage: UsageWire | None = None
    user: None = None
    metadata: Mapping[str, str]


class Lifecycle(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the response: created, in progress, completed, …"""

    type: str
    response: ResponseWire
    sequence_number: int


class ErrorEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An error on its own, as Open Responses has it before the failed response."""

    type: Literal["error"] = "error"
    error: ErrorDetail
    sequence_number: int


FAILED = "server_error"  # the code of a failed response: clients know a closed list of them
_CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}


class ResponsesReply(Reply):
    """The response to one request, as a stream or whole.

    It exists before a model answers, so that it can also fail before. `id` as clients know it;
    `created` and `clock` are Unix time; `new_id` names items.
    """

    exchange: ResponsesExchange
    id: str
    created: int
    new_id: Callable[[], str]
    clock: Callable[[], float] = time.time
    _numbers: "count[int]" = msgspec.field(default_factory=count)
    _is_open: bool = False
    _current: GrowingItem | None = None
    _served: Mapping[str, ServedTool] = {}
    _running: dict[int, McpCall] = msgspec.field(default_factory=dict)  # by the call's index
    _done: list[OutputItem] = msgspec.field(default_factory=list)
    _reason: Incomplete | None = None
    # Fields of the response, since it has begun.
    _became: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def _reasoning(self) -> Kind:
        if self.exchange.summarizes:
            return "summary"
        return "raw" if self.exchange.standard else "reasoning"

    def answered_by(self, model: str, sampling: Sampling | None = None) -> "ResponsesReply":
        """Now it is known who answers, and with which parameters."""
        used = {} if sampling is None else {name: getattr(sampling, name) for name in SHOWN}
        self._became |= {"model": model, **used}
        return self

    def queued(self) -> bytes:
        """The first event of one that runs in the background."""
        self._is_open = True
        self._became["status"] = "queued"
        return self._life("created") + self._life("queued")

    def opening(self) -> bytes:
        """It exists, and it runs."""
        created = b"" if self._is_open else self._life("created")
        self._is_open = True
        self._became["status"] = "in_progress"
        return (
            created
            + self._life("in_progress")
            + b"".join(self._beginning(place, item) for place, item in enumerate(self._done))
        )

    def compacted(self, summary: str) -> None:
        """It begins with a summary of what came before, which its model was given instead."""
        self._done.insert(0, CompactionItem.of(summary, self.new_id))

    def serves(self, tools: Mapping[str, ServedTool], listed: Sequence[ListedServer]) -> None:
        """It has `tools` that run here, of servers that were `listed`. Before it is opened."""
        self._served, before = tools, listed_before(self.exchange.whole)
        self._done += [
            list_item(self.new_id(), server) for server in listed if server.label not in before
        ]

    def _beginning(self, place: int, item: OutputItem) -> bytes:
        """An item that is there from the beginning."""
        if isinstance(item, McpListItem):
            return b"".join(list_events(item, place, self._numbers))
        placed = PlacedItem(item.id, place, self._numbers)
        return placed.item_event("added", item) + placed.item_event("done", item)

    def delta(self, delta: Delta) -> bytes:
        """Some more of it."""
        waiting = delta.logprobs
        frames = []
        for one in delta.events:
            frames.append(self._frames(one, waiting))
            waiting = () if isinstance(one, Content) else waiting
        frames += map(self._answered, delta.answered)
        return b"".join(frames)

    @property
    def _kind(self) -> Kind | None:
        return self._current.kind if self._current else None

    def _frames(self, one: Event, logprobs: tuple[TokenLogprob, ...]) -> bytes:
        match one:
            case Content(text) if text:
                return self._grow_text("message", text, logprobs)
            case Reasoning(text) if text and self.exchange.request.thinking.shown != "hidden":
                return self._grow_text(self._reasoning, text, ())
            case ToolOpened():
                return self._begin(one)
            case ArgumentsGrown(fragment=fragment) if fragment and self._current is not None:
                return self._current.fragment(fragment)
            case ToolClosed():
                return self._end("completed")
            case Finished():
                return self._finish(one, logprobs)
        return b""

    def _answered(self, answer: ToolAnswered) -> bytes:
        if (call := self._running.pop(answer.index, None)) is None:
            return b""
        self._done[call.place], events = call.answered(answer)
        return events

    def _cut_calls(self) -> bytes:
        """Of tools that have not answered, and will not."""
        cut, self._running = self._running, {}
        return b"".join([call.cut() for call in cut.values()])

    def _grow_text(self, kind: Kind, text: str, logprobs: tuple[TokenLogprob, ...]) -> bytes:
        begun = b"" if self._kind == kind else self._begin(kind)
        assert self._current is not None, "it has begun"
        return begun + self._current.grow(text, logprobs)

    def _begin(self, what: Kind | ToolOpened) -> bytes:
        ended = self._leave()
        self._current = self._item(what, self.new_id(), len(self._done))
        return ended + b"".join(self._current.opening())

    def _item(self, what: Kind | ToolOpened, id: str, place: int) -> GrowingItem:
        """A text of a kind, or a call."""
        if not isinstance(what, ToolOpened):
            packs = self.exchange.packs_reasoning
            return GrowingItem(id, place, self._numbers, what, packs=packs)
        if (tool := self._served.get(what.name)) is not None:
            is_approved = any(what.id == each.id for each in self.exchange.request.approved)
            kind: Kind = "approval" if tool.waits and not is_approved else "mcp"
            approved = what.id if is_approved else None
            return McpCall(id, place, self._numbers, kind, what, tool=tool, approved=approved)
        unknown = Offered("function", what.name)
        offered = self.exchange.opened.offered.get(what.name, unknown)
        return GrowingItem(id, place, self._numbers, offered.kind, what, offered)

    def _leave(self) -> bytes:
        """Something else follows: a call that is still open broke off."""
        broken = self._current is not None and self._current.call is not None
        return self._end("incomplete" if broken else "completed")

    def _end(self, status: Progress) -> bytes:
        if self._current is None:
            return b""
        item, self._current = self._current, None
        events = b"".join(item.closing(status))
        self._done.append(item.item(status))
        if isinstance(item, McpCall) and item.is_run:
            assert item.call is not None, "it is one"
            self._running[item.call.index] = item
        return events

    def _finish(self, last: Finished, logprobs: tuple[TokenLogprob, ...]) -> bytes:
        if self._current is not None and self._kind == "message":
            self._current.keep("", logprobs)  # the end token's
        if self.exchange.generates and last.reason in ("length", "content_filter"):
            is_length = last.reason == "length"
            self._reason = Incomplete("max_output_tokens" if is_length else "content_filter")
        ended = self._end("incomplete") if self._reason else self._leave()
        return ended + self._cut_calls()

    def closing(self, usage: Usage) -> bytes:
        """The whole response; how it ended is the event's name."""
        self._settle(usage)
        return self._life(self._wire.status)

    def failed(self, error: GatewayError) -> bytes:
        """The last event of a broken stream."""
        ended, code = self._broken_off(), _CODES.get(error.status_hint, FAILED)
        wire = ErrorWire(code=code, message=error.message, param=error.param or UNSET)
        self._end_as("failed", error=wire)
        told = self._error(error) if self.exchange.standard else b""
        return ended + told + self._life("failed")

    def _error(self, error: GatewayError) -> bytes:
        """An event that OpenAI's client ends at: it would lose the one behind it."""
        detail = envelope(error).error
        return event(ErrorEvent(error=detail, sequence_number=next(self._numbers)))

    def whole(self, usage: Usage) -> bytes:
        """The JSON body."""
        self._settle(usage)
        return self.document()

    def document(self) -> bytes:
        """The response as it is now."""
        return body(self._wire)

    def output(self) -> bytes:
        """Its items, as JSON."""
        return body(self._done)

    @property
    def has_failed(self) -> bool:
        """Its last event said so."""
        return self._became.get("status") == "failed"

    def cancelled(self) -> bytes:
        """The last event of a stream that its client ended: incomplete, and its status says why."""
        ended = self._broken_off()
        self._end_as("cancelled")
        return ended + self._life("incomplete")

    def _broken_off(self) -> bytes:
        opened = b"" if self._is_open else self.opening()
        return opened + self._end("incomplete") + self._cut_calls()

    def _settle(self, usage: Usage) -> None:
        status: Status = "incomplete" if self._reason else "completed"
        self._end_as(
            status,
            completed_at=int(self.clock()) if status == "completed" else None,
            incomplete_details=self._reason,
            usage=usage_wire(usage),
        )

    def _end_as(self, status: Status, **fields: Any) -> None:
        self._became |= {"status": status, "output": tuple(self._done), **fields}

    @property
    def _wire(self) -> ResponseWire:
        return replace(_begun(self.exchange, self.id, self.created), **self._became)

    def _life(self, name: str) -> bytes:
        return event(
            Lifecycle(
                type=f"response.{name}",
                response=self._wire,
                sequence_number=next(self._numbers),
            )
        )


def _begun(exchange: ResponsesExchange, id: str, created: int) -> ResponseWire:
    request, echoed = exchange.request, exchange.echoed
    sampling = request.answering.sampling
    named = {name: getattr(sampling.values, name) for name in SHOWN if name in sampling.named}
    return alike(ResponseWire, exchange)(
        id=id,
        created_at=created,
        status="in_progress",
        max_output_tokens=request.answering.max_tokens,
        max_tool_calls=_of(int, echoed.get("max_tool_calls")),
        model=request.model,
        parallel_tool_calls=request.parallel_tool_calls,
        previous_response_id=exchange.previous,
        conversation=ConversationWire(exchange.conversation) if exchange.conversation else None,
        reasoning={"effort": None, "summary": None, **echoed.get("reasoning", {})},
        safety_identifier=_of(str, echoed.get("safety_identifier")),
        prompt_cache_key=_of(str, echoed.get("prompt_cache_key")),
        text=_text(echoed.get("text", {})),
        tool_choice=_choice(echoed.get("tool_choice", "auto")),
        tools=[_tool(each) for each in echoed.get("tools", ())],
        top_logprobs=request.answering.logprobs or 0,
        truncation="auto" if exchange.truncates else "disabled",
        metadata=_metadata(echoed.get("metadata", {}), exchange.opened.left_out),
        **{**SHOWN, **named},
    )


# The sampling parameters that a response has, and what OpenAI takes where nobody chose.
SHOWN = {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
_FUNCTION = {"description": None, "parameters": None, "strict": None}
Value = TypeVar("Value", int, str)


def _of(kind: type[Value], given: object) -> Value | None:
    """A field that nothing here is done with came unread."""
    return given if type(given) is kind else None  # True is no number


def _text(given: Mapping[str, Any]) -> Mapping[str, Any]:
    shape = given.get("format") or {"type": "text"}
    if shape.get("type") == "json_schema":
        shape = {"description": None, **shape, "strict": bool(shape.get("strict"))}
    rest = {name: value for name, value in given.items() if value is not None}
    return {**rest, "format": shape}


def _choice(given: Any) -> Any:
    if isinstance(given, dict) and given.get("type") == "allowed_tools":
        return {"mode": "auto", **given}
    return "auto" if given is None else given


def _tool(given: Mapping[str, Any]) -> Mapping[str, Any]:
    is_function = given.get("type", "function") == "function"
    return {**_FUNCTION, **given} if is_function else given


LEFT_OUT = "roundhouse_left_out"


def _metadata(given: Mapping[str, str], left_out: Sequence[str]) -> Mapping[str, str]:
    """The client's own, and the types of the tools that the model was not shown."""
    return {**given, LEFT_OUT: ", ".join(left_out)[:512]} if left_out else given


def usage_wire(usage: Usage) -> UsageWire:
    """The usage of an answer."""
    return UsageWire(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputDetails(usage.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputDetails(usage.reasoning_tokens),
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    )
