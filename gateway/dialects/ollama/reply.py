"""Ollama's reply: lines of JSON, the last one with `done`. Knows no HTTP.

Calls are sent whole, each in a line of its own. All times on the wire are nanoseconds.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from backends.protocol import Candidate, TokenLogprob
from gateway.dialects.frames import PLACEHOLDER, FrameTemplate, body, line
from gateway.dialects.ollama.errors import error_line
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


class CalledWire(msgspec.Struct, frozen=True):
    """A call; `arguments` is a JSON object."""

    index: int
    name: str
    arguments: msgspec.Raw


class CallWire(msgspec.Struct, frozen=True):
    """One call of the message."""

    id: str
    function: CalledWire


class MessageWire(msgspec.Struct, frozen=True, kw_only=True):
    """Some of the message, or all of it."""

    role: Literal["assistant"] = "assistant"
    content: str = ""
    thinking: str | UnsetType = UNSET
    tool_calls: tuple[CallWire, ...] | UnsetType = UNSET


class CandidateWire(msgspec.Struct, frozen=True):
    """A token that could have been chosen."""

    token: str
    bytes: tuple[int, ...]
    logprob: float


class LogprobWire(CandidateWire, frozen=True, kw_only=True):
    """The chosen token, and what else there was."""

    top_logprobs: tuple[CandidateWire, ...]


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer cost. Durations are nanoseconds; `prompt_eval_count` has the cached tokens."""

    total_duration: int
    load_duration: int
    prompt_eval_count: int
    prompt_eval_duration: int
    eval_count: int
    eval_duration: int


class ChunkWire(msgspec.Struct, frozen=True, kw_only=True):
    """One line, or the whole body. `message` is chat's, `response` and `thinking` generate's."""

    model: str
    created_at: str
    message: MessageWire | UnsetType = UNSET
    response: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    logprobs: Sequence[LogprobWire] | UnsetType = UNSET
    done: bool = False
    done_reason: str | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class _Call:
    """A call while it grows."""

    def __init__(self, opened: ToolOpened) -> None:
        self._opened = opened
        self._fragments: list[str] = []

    def grow(self, fragment: str) -> None:
        self._fragments.append(fragment)

    def whole(self) -> CallWire:
        arguments = msgspec.Raw("".join(self._fragments).encode() or b"{}")
        called = CalledWire(self._opened.index, self._opened.name, arguments)
        return CallWire(self._opened.id, called)


class OllamaReply:
    """The answer to one request, as a stream or whole; see `gateway.http.exchange.Reply`."""

    def __init__(
        self, *, model: str, created_at: str, chat: bool, hides_thinking: bool, load_seconds: float
    ) -> None:
        """`chat`: the reply is a `message`; else a `response`. `created_at`: RFC 3339."""
        self._model = model
        self._created_at = created_at
        self._chat = chat
        self._hides_thinking = hides_thinking
        self._load_seconds = load_seconds
        self._reason = "stop"
        self._growing: dict[int, _Call] = {}
        self._content: list[str] = []
        self._thinking: list[str] = []
        self._calls: list[CallWire] = []
        self._logprobs: list[LogprobWire] = []
        self._templates: Mapping[type[Event], FrameTemplate] = {
            Content: FrameTemplate(line(self._chunk(content=PLACEHOLDER))),
            Reasoning: FrameTemplate(line(self._chunk(thinking=PLACEHOLDER))),
        }

    def opening(self) -> bytes:
        """Nothing is sent yet."""
        return b""

    def delta(self, delta: Delta) -> bytes:
        """Some more of the answer."""
        match delta.events:
            case (Content(text),) if text and not delta.logprobs:
                return self._templates[Content].render(text)
        lines = b"".join([self._lines_of(event) for event in delta.events])
        if delta.logprobs:
            lines += line(self._chunk(logprobs=_logprobs(delta.logprobs)))
        return lines

    def _lines_of(self, event: Event) -> bytes:
        match event:
            case Content(text) | Reasoning(text) if text and not self._hides(event):
                return self._templates[type(event)].render(text)
            case Finished():
                self._end(event)
                return b""
        called = self._called(event)
        return line(self._chunk(calls=(called,))) if called is not None else b""

    def _hides(self, event: Event) -> bool:
        return self._hides_thinking and isinstance(event, Reasoning)

    def _called(self, event: Event) -> CallWire | None:
        """The call that `event` completes."""
        match event:
            case ToolOpened(index):
                self._growing[index] = _Call(event)
            case ArgumentsGrown(index, fragment):
                self._growing[index].grow(fragment)
            case ToolClosed(index):
                return self._growing.pop(index).whole()
        return None

    def _end(self, event: Finished) -> None:
        self._reason = "length" if event.reason == "length" else "stop"

    def closing(self, usage: Usage) -> bytes:
        """The last line: why it ended, what it cost."""
        return line(self._ended(self._chunk(content=""), usage))

    def failed(self, error: GatewayError) -> bytes:
        """The last line of a broken stream."""
        return error_line(error)

    def add(self, delta: Delta) -> None:
        """Keep some more for `whole`."""
        self._logprobs += _logprobs(delta.logprobs)
        for event in delta.events:
            match event:
                case Content(text):
                    self._content.append(text)
                case Reasoning(text):
                    self._thinking += () if self._hides_thinking else (text,)
                case Finished():
                    self._end(event)
                case _ if (called := self._called(event)) is not None:
                    self._calls.append(called)

    def whole(self, usage: Usage) -> bytes:
        """The JSON body."""
        chunk = self._chunk(
            content="".join(self._content),
            thinking="".join(self._thinking),
            calls=tuple(self._calls),
            logprobs=tuple(self._logprobs),
        )
        return body(self._ended(chunk, usage))

    def present(self, *, gone: bool) -> bytes:
        """The whole answer to a request that only asks for a model to be there, or to go."""
        chunk = self._chunk(content="")
        reason = "unload" if gone else "load"
        return body(msgspec.structs.replace(chunk, done=True, done_reason=reason))

    def _ended(self, chunk: ChunkWire, usage: Usage) -> ChunkWire:
        cost = msgspec.structs.asdict(_cost(usage, self._load_seconds))
        return msgspec.structs.replace(chunk, done=True, done_reason=self._reason, **cost)

    def _chunk(
        self,
        *,
        content: str = "",
        thinking: str = "",
        calls: tuple[CallWire, ...] = (),
        logprobs: Sequence[LogprobWire] = (),
    ) -> ChunkWire:
        chunk = ChunkWire(
            model=self._model, created_at=self._created_at, logprobs=logprobs or UNSET
        )
        if self._chat:
            message = MessageWire(
                content=content, thinking=thinking or UNSET, tool_calls=calls or UNSET
            )
            return msgspec.structs.replace(chunk, message=message)
        return msgspec.structs.replace(chunk, response=content, thinking=thinking or UNSET)


def _cost(usage: Usage, load_seconds: float) -> Cost:
    seconds = usage.queue_seconds + load_seconds + usage.prefill_seconds + usage.decode_seconds
    return Cost(
        total_duration=_nanoseconds(seconds),
        load_duration=_nanoseconds(load_seconds),
        prompt_eval_count=usage.prompt_tokens,
        prompt_eval_duration=_nanoseconds(usage.prefill_seconds),
        eval_count=usage.completion_tokens,
        eval_duration=_nanoseconds(usage.decode_seconds),
    )


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _logprobs(logprobs: Sequence[TokenLogprob]) -> list[LogprobWire]:
    return [
        LogprobWire(
            *_candidate(one.chosen),
            top_logprobs=tuple(CandidateWire(*_candidate(other)) for other in one.top),
        )
        for one in logprobs
    ]


def _candidate(one: Candidate) -> tuple[str, tuple[int, ...], float]:
    return one.text.decode(errors="replace"), tuple(one.text), max(one.logprob, -1e9)
