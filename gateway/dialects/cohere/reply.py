"""Cohere's reply: named events of a stream, or one body; and its errors. Knows no HTTP."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from backends.contract.protocol import TokenLogprob
from gateway.dialects.cohere.request import (
    AnswerMessage,
    CalledFunction,
    CalledTool,
    ChatAnswer,
    Counts,
    FinishReason,
    LogprobWire,
    StreamEvent,
    TextBlock,
    ThinkingBlock,
    UsageWire,
)
from gateway.dialects.dialect import Reply, body, named_frame
from gateway.terms.errors import GatewayError
from gateway.terms.events import (
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


class CohereError(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a failed request. `param` and `code` are ours."""

    message: str
    param: str | None
    code: str | None


def error_wire(error: GatewayError) -> CohereError:
    """The body that answers a request with `error`."""
    return CohereError(message=error.message, param=error.param, code=error.code)


def error_event(error: GatewayError) -> bytes:
    """The last event of a broken stream."""
    why = {"error": error.message, "finish_reason": "ERROR"}
    return _framed(StreamEvent(type="message-end", delta=why))


Kind = Literal["text", "thinking"]
REASONS: dict[str, FinishReason] = {
    "length": "MAX_TOKENS", "tool_calls": "TOOL_CALL", "content_filter": "ERROR"
}  # fmt: skip


class CohereReply(Reply):
    """The answer to one request, as a stream or whole. `logprobs`: they are asked for."""

    id: str
    logprobs: bool
    _waiting: tuple[TokenLogprob, ...] = ()  # of text that is held back
    _logprobs: list[LogprobWire] = msgspec.field(default_factory=list)
    _blocks: list[tuple[Kind, list[str]]] = msgspec.field(default_factory=list)
    _is_open: bool = False  # the last of them
    _calls: list[tuple[ToolOpened, list[str]]] = msgspec.field(default_factory=list)
    _finish: FinishReason = "COMPLETE"

    def opening(self) -> bytes:
        """Whose turn it is."""
        started = {"message": {"role": "assistant", "content": []}}
        return _framed(StreamEvent(type="message-start", id=self.id, delta=started))

    def delta(self, delta: Delta) -> bytes:
        """Some more of the answer."""
        self._waiting += delta.logprobs
        steps = (step for event in delta.events for step in self._step(event))
        return b"".join(map(_framed, steps))

    def closing(self, usage: Usage) -> bytes:
        """The last event: why it ended, and what it cost."""
        cost = _usage(usage)
        ended = {"finish_reason": self._finish, **({"usage": cost} if cost else {})}
        return _framed(StreamEvent(type="message-end", id=self.id, delta=ended))

    def whole(self, usage: Usage) -> bytes:
        """The JSON body."""
        blocks = [_block(kind, "".join(texts)) for kind, texts in self._blocks]
        calls = [
            CalledTool(opened.id, CalledFunction(opened.name, "".join(fragments) or "{}"))
            for opened, fragments in self._calls
        ]
        return body(
            ChatAnswer(
                id=self.id,
                finish_reason=self._finish,
                message=AnswerMessage(content=blocks or UNSET, tool_calls=calls or UNSET),
                usage=_usage(usage),
                logprobs=self._logprobs if self.logprobs else UNSET,
            )
        )

    def _step(self, event: Event) -> Iterator[StreamEvent]:
        match event:
            case Content(text):
                yield from self._said("text", text, self._likelihood())
            case Reasoning(text):
                yield from self._said("thinking", text)
            case ToolOpened(index, call_id, name):
                yield from self._closed()
                self._calls.append((event, []))
                call = CalledTool(call_id, CalledFunction(name, ""))
                yield _step("tool-call-start", index, tool_calls=call)
            case ArgumentsGrown(index, fragment):
                self._calls[index][1].append(fragment)
                grown = {"function": {"arguments": fragment}}
                yield _step("tool-call-delta", index, tool_calls=grown)
            case ToolClosed(index):
                yield StreamEvent(type="tool-call-end", index=index)
            case Finished() as finished:
                self._finish = _reason(finished)
                yield from self._closed()

    def _said(
        self, kind: Kind, text: str, logprobs: LogprobWire | UnsetType = UNSET
    ) -> Iterator[StreamEvent]:
        """Some text, in the block that is open if it is of the kind, else in a new one."""
        if not text:
            return
        if not self._is_open or self._blocks[-1][0] != kind:
            yield from self._closed()
            self._blocks.append((kind, []))
            self._is_open = True
            yield _step("content-start", len(self._blocks) - 1, content={"type": kind, kind: ""})
        self._blocks[-1][1].append(text)
        grown = _step("content-delta", len(self._blocks) - 1, content={kind: text})
        yield replace(grown, logprobs=logprobs)

    def _closed(self) -> Iterator[StreamEvent]:
        if self._is_open:
            self._is_open = False
            yield StreamEvent(type="content-end", index=len(self._blocks) - 1)

    def _likelihood(self) -> LogprobWire | UnsetType:
        if not self._waiting:
            return UNSET
        waiting, self._waiting = self._waiting, ()
        self._logprobs.append(_logprobs(waiting))
        return self._logprobs[-1]


def _framed(event: StreamEvent) -> bytes:
    return named_frame(event.type.encode(), event)


def _step(kind: str, index: int, **message: Any) -> StreamEvent:
    """What comes of one block or call."""
    return StreamEvent(type=kind, index=index, delta={"message": message})


def _block(kind: Kind, text: str) -> TextBlock | ThinkingBlock:
    return TextBlock(text) if kind == "text" else ThinkingBlock(text)


def _reason(finished: Finished) -> FinishReason:
    stopped: FinishReason = "COMPLETE" if finished.stop is None else "STOP_SEQUENCE"
    return REASONS.get(finished.reason, stopped)


def _logprobs(tokens: Sequence[TokenLogprob]) -> LogprobWire:
    chosen = [token.chosen for token in tokens]
    return LogprobWire(
        text=b"".join(candidate.text for candidate in chosen).decode(errors="replace"),
        token_ids=[candidate.token for candidate in chosen],
        logprobs=[candidate.logprob for candidate in chosen],
    )


def _usage(usage: Usage) -> UsageWire | UnsetType:
    """Left out where nobody counted."""
    if not usage.is_counted:
        return UNSET
    counts = Counts(usage.prompt_tokens, usage.completion_tokens)
    return UsageWire(billed_units=counts, tokens=counts, cached_tokens=usage.cached_tokens)
