"""The reply of the responses API: a response's states, its events and its body. Knows no HTTP and
no store.

The structs of answers: items, the response itself, the events of a stream.

In each event the field that grows stands last but the sequence number, so that the rest of it is
encoded once.

The items of an answer while they grow, and their events.

At most one item is open. The kinds of items differ by what stands in a table: the names of their
events, and whether they have parts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from backends.protocol import Candidate, TokenLogprob
from gateway.dialects.dialect import PLACEHOLDER, FrameTemplate, body, named_frame
from gateway.dialects.responses.items import packed
from gateway.dialects.responses.request import ResponsesExchange
from gateway.errors import GatewayError
from gateway.events import (
    ArgumentsGrown,
    Content,
    Delta,
    Event,
    Finished,
    Reasoning,
    ToolClosed,
    ToolOpened,
    Usage,
)

Progress: TypeAlias = Literal["in_progress", "completed", "incomplete"]
Status: TypeAlias = Literal[
    "queued", "in_progress", "completed", "incomplete", "failed", "cancelled"
]


class CandidateWire(msgspec.Struct, frozen=True):
    """A candidate token."""

    token: str
    bytes: tuple[int, ...]
    logprob: float


class LogprobWire(CandidateWire, frozen=True, kw_only=True):
    """The chosen token and the other candidates."""

    top_logprobs: tuple[CandidateWire, ...]


class OutputText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    """The text of a message."""

    text: str
    annotations: tuple[()] = ()
    logprobs: Sequence[LogprobWire] = ()


class ReasoningText(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    """The text of the reasoning."""

    text: str


class SummaryText(msgspec.Struct, frozen=True, tag_field="type", tag="summary_text"):
    """The text of the reasoning, for requests with a summary."""

    text: str


class MessageItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """A message."""

    id: str
    status: Progress
    role: Literal["assistant"] = "assistant"
    content: tuple[OutputText, ...] = ()


class ReasoningItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """A reasoning item."""

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
    """The state of the response: created, in progress, completed, …"""

    type: str
    response: ResponseWire
    sequence_number: int


class ItemEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An item was added or completed."""

    type: str
    output_index: int
    item: OutputItem
    sequence_number: int


class PartEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A part of an item was added or completed. One of the two indexes applies."""

    type: str
    item_id: str
    output_index: int
    content_index: int | UnsetType = UNSET
    summary_index: int | UnsetType = UNSET
    part: OutputText | ReasoningText | SummaryText
    sequence_number: int


class GrownEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A further part of a text, of reasoning or of arguments."""

    type: str
    item_id: str
    output_index: int
    content_index: int | UnsetType = UNSET
    summary_index: int | UnsetType = UNSET
    logprobs: Sequence[LogprobWire] | UnsetType = UNSET
    delta: str
    sequence_number: int


class WholeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The whole content: `text`, or `name` and `arguments`."""

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


Kind: TypeAlias = Literal["message", "reasoning", "summary", "call"]


class Form(msgspec.Struct, frozen=True):
    """The wire form of a kind of item: the prefix of its id, the stem of the names of its events,
    the name of its parts' events ("": it has none), and of the index of its part.
    """

    prefix: str
    stem: str
    part: str = ""
    index: Literal["content_index", "summary_index", ""] = ""


FORMS: Mapping[Kind, Form] = {
    "message": Form("msg_", "output_text", "content_part", "content_index"),
    "reasoning": Form("rs_", "reasoning_text", "content_part", "content_index"),
    "summary": Form("rs_", "reasoning_summary_text", "reasoning_summary_part", "summary_index"),
    "call": Form("fc_", "function_call_arguments"),
}


def event(message: Any) -> bytes:
    """An event under the name of its type."""
    return named_frame(message.type.encode(), message)


class Numbers:
    """The sequence numbers of one stream."""

    def __init__(self) -> None:
        self._next = 0

    def take(self) -> int:
        number = self._next
        self._next += 1
        return number


class GrowingItem:
    """One item. `id` is unique among all responses."""

    def __init__(
        self,
        kind: Kind,
        id: str,
        place: int,
        numbers: Numbers,
        call: ToolOpened | None = None,
        *,
        packs: bool = False,
    ) -> None:
        """`place`: its index among the items of the answer; `packs`: see `encrypted_content`."""
        self.kind = kind
        self._packs = packs
        self._form = FORMS[kind]
        self._id = self._form.prefix + id
        self._place = place
        self._numbers = numbers
        self._call = call
        self._texts: list[str] = []
        self._logprobs: list[LogprobWire] = []
        self._index: dict[str, Any] = {self._form.index: 0} if self._form.index else {}
        self._template: FrameTemplate | None = None

    def keep(self, text: str, logprobs: tuple[TokenLogprob, ...] = ()) -> list[LogprobWire]:
        """Some more of it, without an event."""
        self._texts.append(text)
        wires = [_logprob(one) for one in logprobs]
        self._logprobs += wires
        return wires

    def opening(self) -> Iterator[bytes]:
        """It begins, empty."""
        yield self._item_event("added", self.item("in_progress"))
        if self._form.part:
            yield self._part_event("added", "")

    def grow(self, text: str, logprobs: tuple[TokenLogprob, ...] = ()) -> bytes:
        """Some more of it: the event of nearly every token."""
        wires = self.keep(text, logprobs)
        if wires:
            return event(self._grown(text, wires, self._numbers.take()))
        if self._template is None:
            # The number is the last field: what is behind it is put back with each number.
            whole = event(self._grown(PLACEHOLDER, [], 0))
            self._template = FrameTemplate(whole.removesuffix(b"0}\n\n"))
        return self._template.render(text) + b"%d}\n\n" % self._numbers.take()

    def _grown(self, text: str, logprobs: list[LogprobWire], number: int) -> GrownEvent:
        return GrownEvent(
            type=f"response.{self._form.stem}.delta",
            item_id=self._id,
            output_index=self._place,
            logprobs=logprobs if self.kind == "message" else UNSET,
            delta=text,
            sequence_number=number,
            **self._index,
        )

    def closing(self, status: Progress) -> Iterator[bytes]:
        """It is over, and this is all of it."""
        text = "".join(self._texts)
        yield event(self._whole(text))
        if self._form.part:
            yield self._part_event("done", text)
        yield self._item_event("done", self.item(status))

    def _whole(self, text: str) -> WholeEvent:
        is_call = self._call is not None
        return WholeEvent(
            type=f"response.{self._form.stem}.done",
            item_id=self._id,
            output_index=self._place,
            logprobs=self._logprobs if self.kind == "message" else UNSET,
            text=UNSET if is_call else text,
            name=self._call.name if self._call else UNSET,
            arguments=text or "{}" if is_call else UNSET,
            sequence_number=self._numbers.take(),
            **self._index,
        )

    def _item_event(self, what: str, item: OutputItem) -> bytes:
        return event(
            ItemEvent(
                type=f"response.output_item.{what}",
                output_index=self._place,
                item=item,
                sequence_number=self._numbers.take(),
            )
        )

    def _part_event(self, what: str, text: str) -> bytes:
        return event(
            PartEvent(
                type=f"response.{self._form.part}.{what}",
                item_id=self._id,
                output_index=self._place,
                part=self._part(text),
                sequence_number=self._numbers.take(),
                **self._index,
            )
        )

    def _part(self, text: str) -> OutputText | ReasoningText | SummaryText:
        match self.kind:
            case "reasoning":
                return ReasoningText(text)
            case "summary":
                return SummaryText(text)
            case _:
                return self._output_text(text)

    def _output_text(self, text: str) -> OutputText:
        return OutputText(text=text, logprobs=tuple(self._logprobs) if text else ())

    def item(self, status: Progress) -> OutputItem:
        """As it is now; without its text while it is in progress."""
        text = "" if status == "in_progress" else "".join(self._texts)
        if self._call is not None:
            return CallItem(
                id=self._id,
                call_id=self._call.id,
                name=self._call.name,
                arguments=text if status == "in_progress" else text or "{}",
                status=status,
            )
        if self.kind == "message":
            content = () if status == "in_progress" else (self._output_text(text),)
            return MessageItem(id=self._id, status=status, content=content)
        return self._reasoning(text, status)

    def _reasoning(self, text: str, status: Progress) -> ReasoningItem:
        is_over = status != "in_progress"
        content = packed(text) if self._packs and is_over else UNSET
        if self.kind == "summary":
            summary = (SummaryText(text),) if is_over else ()
            return ReasoningItem(
                id=self._id, status=status, summary=summary, encrypted_content=content
            )
        thought = (ReasoningText(text),) if is_over else ()
        return ReasoningItem(id=self._id, status=status, content=thought, encrypted_content=content)


def _logprob(one: TokenLogprob) -> LogprobWire:
    others = tuple(CandidateWire(*_candidate(other)) for other in one.top)
    return LogprobWire(*_candidate(one.chosen), top_logprobs=others)


def _candidate(one: Candidate) -> tuple[str, tuple[int, ...], float]:
    return one.text.decode(errors="replace"), tuple(one.text), max(one.logprob, -1e9)


FAILED = "server_error"  # the code of a failed response: clients know a closed list of them
_CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}


class ResponsesReply:
    """The response to one request, as a stream or whole; see `gateway.http.exchange.Reply`.

    It exists before a model answers, so that it can also fail before.
    """

    def __init__(
        self, exchange: ResponsesExchange, *, id: str, created: int, new_id: Callable[[], str]
    ) -> None:
        """`id` as clients know it; `created` is Unix time; `new_id` names items."""
        self._hides_reasoning = exchange.request.thinking.shown == "hidden"
        self._reasoning: Kind = "summary" if exchange.summarizes else "reasoning"
        self._new_id = new_id
        self._packs = exchange.packs_reasoning
        self._numbers = Numbers()
        self._is_open = False
        self._current: GrowingItem | None = None
        self._done: list[OutputItem] = []
        self._reason: Incomplete | None = None
        self._wire = _begun(exchange, id, created)

    @property
    def id(self) -> str:
        """The response's."""
        return self._wire.id

    def answered_by(self, model: str) -> "ResponsesReply":
        """Now it is known who answers."""
        self._wire = msgspec.structs.replace(self._wire, model=model)
        return self

    # -------------------------------------------------------------------------------- a stream

    def queued(self) -> bytes:
        """The first event of one that runs in the background."""
        self._is_open = True
        self._wire = msgspec.structs.replace(self._wire, status="queued")
        return self._life("created") + self._life("queued")

    def opening(self) -> bytes:
        """It exists, and it runs."""
        created = b"" if self._is_open else self._life("created")
        self._is_open = True
        self._wire = msgspec.structs.replace(self._wire, status="in_progress")
        return created + self._life("in_progress")

    def delta(self, delta: Delta) -> bytes:
        """Some more of it."""
        match delta.events:
            case (Content(text),) if text and self._kind == "message":
                assert self._current is not None, "its kind is known"
                return self._current.grow(text, delta.logprobs)
        waiting = delta.logprobs
        frames = []
        for one in delta.events:
            frames.append(self._frames(one, waiting))
            waiting = () if isinstance(one, Content) else waiting
        return b"".join(frames)

    @property
    def _kind(self) -> Kind | None:
        return self._current.kind if self._current else None

    def _frames(self, one: Event, logprobs: tuple[TokenLogprob, ...]) -> bytes:
        match one:
            case Content(text) if text:
                return self._grow_text("message", text, logprobs)
            case Reasoning(text) if text and not self._hides_reasoning:
                return self._grow_text(self._reasoning, text, ())
            case ToolOpened():
                return self._begin("call", one)
            case ArgumentsGrown(fragment=fragment) if fragment and self._current is not None:
                return self._current.grow(fragment)
            case ToolClosed():
                return self._end("completed")
            case Finished():
                return self._finish(one, logprobs)
        return b""

    def _grow_text(self, kind: Kind, text: str, logprobs: tuple[TokenLogprob, ...]) -> bytes:
        begun = b"" if self._kind == kind else self._begin(kind)
        assert self._current is not None, "it has begun"
        return begun + self._current.grow(text, logprobs)

    def _begin(self, kind: Kind, call: ToolOpened | None = None) -> bytes:
        ended = self._end("completed")
        self._current = GrowingItem(
            kind, self._new_id(), len(self._done), self._numbers, call, packs=self._packs
        )
        return ended + b"".join(self._current.opening())

    def _end(self, status: Progress) -> bytes:
        if self._current is None:
            return b""
        item, self._current = self._current, None
        self._done.append(item.item(status))
        return b"".join(item.closing(status))

    def _finish(self, last: Finished, logprobs: tuple[TokenLogprob, ...]) -> bytes:
        if self._current is not None and self._kind == "message":
            self._current.keep("", logprobs)  # the end token's
        if last.reason in ("length", "content_filter"):
            is_length = last.reason == "length"
            self._reason = Incomplete("max_output_tokens" if is_length else "content_filter")
        return self._end("incomplete" if self._reason else "completed")

    def closing(self, usage: Usage) -> bytes:
        """The whole response; how it ended is the event's name."""
        self._settle(usage)
        return self._life(self._wire.status)

    def failed(self, error: GatewayError) -> bytes:
        """The last event of a broken stream."""
        opened = b"" if self._is_open else self.opening()
        ended = self._end("incomplete")
        self.fail(error)
        return opened + ended + self._life("failed")

    # ---------------------------------------------------------------------------------- whole

    def add(self, delta: Delta) -> None:
        """Keep some more for `whole`. The events are those of a stream, which are dropped."""
        self.delta(delta)

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

    def fail(self, error: GatewayError) -> None:
        """It ends with `error`."""
        wire = ErrorWire(
            code=_CODES.get(error.status_hint, FAILED),
            message=error.message,
            param=error.param or UNSET,
        )
        self._wire = msgspec.structs.replace(
            self._wire, status="failed", error=wire, output=tuple(self._done)
        )

    def cancel(self) -> None:
        """It ends because its client said so."""
        self._end("incomplete")
        self._wire = msgspec.structs.replace(
            self._wire, status="cancelled", output=tuple(self._done)
        )

    def _settle(self, usage: Usage) -> None:
        status: Status = "incomplete" if self._reason else "completed"
        self._wire = msgspec.structs.replace(
            self._wire,
            status=status,
            incomplete_details=self._reason,
            output=tuple(self._done),
            usage=_usage(usage),
        )

    def _life(self, name: str) -> bytes:
        return event(
            Lifecycle(
                type=f"response.{name}",
                response=self._wire,
                sequence_number=self._numbers.take(),
            )
        )


def _begun(exchange: ResponsesExchange, id: str, created: int) -> ResponseWire:
    request, echoed = exchange.request, exchange.echoed
    sampling = request.answering.sampling
    named = {name: getattr(sampling.values, name) for name in sampling.named}
    return ResponseWire(
        id=id,
        created_at=created,
        status="in_progress",
        background=exchange.background,
        instructions=exchange.instructions,
        max_output_tokens=request.answering.max_tokens,
        model=request.model,
        parallel_tool_calls=request.parallel_tool_calls,
        previous_response_id=exchange.previous,
        conversation=ConversationId(exchange.conversation) if exchange.conversation else None,
        reasoning={"effort": None, "summary": None, **echoed.get("reasoning", {})},
        store=exchange.store,
        temperature=named.get("temperature"),
        text={"format": {"type": "text"}, **echoed.get("text", {})},
        tool_choice=echoed.get("tool_choice", "auto"),
        tools=echoed.get("tools", ()),
        top_logprobs=request.answering.logprobs or 0,
        top_p=named.get("top_p"),
        truncation="auto" if exchange.truncates else "disabled",
        metadata=echoed.get("metadata", {}),
    )


def _usage(usage: Usage) -> UsageWire:
    return UsageWire(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputDetails(usage.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputDetails(usage.reasoning_tokens),
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    )
