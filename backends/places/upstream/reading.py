"""Parses another server's answers, streamed or whole, in OpenAI's format and its variants: chats
and texts, and their errors. Pure.

Reasoning is spelled `reasoning_content` (DeepSeek, vLLM, SGLang, llama.cpp), `reasoning`
(OpenRouter, Ollama, newer vLLM), `reasoning_text` (Copilot), or stands in blocks of the content
(Mistral). `<think>` in the content is text here; the gateway, which knows formats, splits it.
"""

import re
import uuid
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET

from backends.contract.errors import UpstreamError
from backends.contract.protocol import Candidate, TokenLogprob
from backends.contract.remote import (
    FurtherOfCall,
    FurtherOfMessage,
    RemoteCall,
    RemoteDelta,
    RemoteEvent,
    RemoteFurther,
    RemoteUsage,
)
from backends.places.upstream.events import ErrorData
from backends.places.upstream.faults import Unhealthy, broken, converted, decoded, too_large

MOST_CALLS = 1_000  # of one answer


class StreamedFunctionWire(msgspec.Struct, frozen=True):
    """The arguments are JSON text; some servers send the object itself."""

    name: str | None = None
    arguments: str | dict[str, object] | None = None


class _FurtherOfAnswer(msgspec.Struct, frozen=True):
    """What some servers add beside the choices: Perplexity, OpenRouter."""

    citations: Any = None
    provider: Any = None
    related_questions: Any = None
    search_results: Any = None


class _FurtherOfUsage(msgspec.Struct, frozen=True):
    """OpenRouter's and Perplexity's prices."""

    cost: Any = None
    cost_details: Any = None


_EMPTY: tuple[object, ...] = (UNSET, None, "", [], {})


def _further(wire: msgspec.Struct, kind: type[msgspec.Struct]) -> dict[str, Any]:
    found = ((name, getattr(wire, name)) for name in kind.__struct_fields__)
    return {name: value for name, value in found if value not in _EMPTY}


class StreamedCallWire(FurtherOfCall, frozen=True):
    """Some of a call, or all of it."""

    index: int | None = None
    id: str | int | None = None
    function: StreamedFunctionWire | None = None


class _GrowingCall:
    """A call that grows."""

    __slots__ = ("arguments", "id", "index", "key", "name")

    def __init__(self, key: int | None, call_id: str) -> None:
        self.key = key  # the other server's index
        self.id = call_id
        self.index: int | None = None  # ours, once its name is known
        self.name = ""
        self.arguments: list[str] = []


class CallOrder:
    """The tool calls of one choice, put in order. `whole`: each piece is a call of its own.

    Many servers count calls from 1, give all of them the index 0, leave indexes or ids out, repeat
    the name in each piece, or send a call whole. What begins a new call: an id or an index not seen
    before; where there is neither, a name after arguments that are whole.
    """

    def __init__(self) -> None:
        self._open: list[_GrowingCall] = []
        self._named = 0

    def take(self, wire: StreamedCallWire, *, whole: bool = False) -> RemoteCall | None:
        """What a piece adds; None while a call has no name."""
        function = wire.function or StreamedFunctionWire()
        arguments = _text(function.arguments)
        call = None if whole else self._found(wire, function, arguments)
        if call is None:
            call = self._begun(wire)
        call.arguments.append(arguments)
        if call.index is not None:
            return RemoteCall(call.index, arguments=arguments) if arguments else None
        if not function.name:
            return None
        call.name, call.index = function.name, self._named
        self._named += 1
        arguments = "".join(call.arguments)
        return RemoteCall(call.index, call.id, call.name, arguments, _further(wire, FurtherOfCall))

    def _begun(self, wire: StreamedCallWire) -> _GrowingCall:
        if len(self._open) == MOST_CALLS:
            raise too_large(f"more than {MOST_CALLS} tool calls in one answer")
        call_id = str(wire.id) if wire.id else f"call_{uuid.uuid4().hex[:24]}"
        call = _GrowingCall(wire.index, call_id)
        self._open.append(call)
        return call

    def _found(
        self, wire: StreamedCallWire, function: StreamedFunctionWire, arguments: str
    ) -> _GrowingCall | None:
        """The call that a piece goes on with; None: it begins one."""
        if wire.id and (known := self._last(lambda call: call.id == str(wire.id))) is not None:
            return known
        last = self._last(lambda call: wire.index is None or call.key == wire.index)
        if last is None or (wire.id and last.arguments):
            return None
        if function.name and last.index is not None and not wire.id and _is_whole(last):
            return None
        return last

    def _last(self, fits: Callable[[_GrowingCall], bool]) -> _GrowingCall | None:
        return next((call for call in reversed(self._open) if fits(call)), None)


def _text(arguments: str | dict[str, object] | None) -> str:
    if isinstance(arguments, dict):
        return msgspec.json.encode(arguments).decode()
    return arguments or ""


def _is_whole(call: _GrowingCall) -> bool:
    """Its arguments are a JSON value already."""
    try:
        msgspec.json.decode("".join(call.arguments))
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


DONE = b"[DONE]"
MOST_WORDS = 200  # bytes of an error that has no known shape

# Servers' names of finish reasons, by OpenAI's. Others become "stop".
FINISH = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
    "function_call": "tool_calls",  # OpenAI's before tools
    "max_tokens": "length",  # Anthropic's
    "model_context_window_exceeded": "length",
    "model_length": "length",  # Mistral's
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_GIVEN_UP = ("error", "abort", "aborted")  # such an answer has no end
_NOT_YET = ("", "null", None)  # SGLang's and older Ollama's way to say that it goes on


class _Part(msgspec.Struct, frozen=True):
    """A part of a content that is a list."""

    type: str = "text"
    text: str | None = None
    thinking: "str | list[_Part] | None" = None


class _Token(msgspec.Struct, frozen=True):
    token: str = ""
    logprob: float | None = None
    bytes: list[int] | None = None
    top_logprobs: "list[_Token] | None" = None


class _Logprobs(msgspec.Struct, frozen=True):
    """Chat's `content`, or the columns of completions."""

    content: list[_Token] | None = None
    tokens: list[str] | None = None
    token_logprobs: list[float | None] | None = None
    top_logprobs: list[dict[str, float] | None] | None = None


class _TurnWire(FurtherOfMessage, frozen=True):
    """A chunk's `delta`, or a body's `message`."""

    content: str | list[_Part] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_text: str | None = None
    refusal: str | None = None
    tool_calls: list[StreamedCallWire] | None = None
    function_call: StreamedFunctionWire | None = None


class _Choice(msgspec.Struct, frozen=True):
    index: int = 0
    delta: _TurnWire | None = None
    message: _TurnWire | None = None
    text: str | None = None
    logprobs: Any = None  # `_Logprobs`; what isn't costs no answer
    finish_reason: str | None = None
    stop_reason: Any = None


class _Cached(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Thought(msgspec.Struct, frozen=True):
    reasoning_tokens: int | None = None


class _Usage(_FurtherOfUsage, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Cached | None = None
    completion_tokens_details: _Thought | None = None


class Chunk(_FurtherOfAnswer, frozen=True):
    """An event of a stream, or a whole body."""

    choices: list[_Choice] | None = None
    usage: Any = None  # `_Usage`; what isn't costs no answer
    error: Any = None


Read: TypeAlias = Literal["stream", "whole"]

T = TypeVar("T")

_STRING_OR_NOT_A_NUMBER = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\b(?:NaN|Infinity)\b')
_NOTHING = _TurnWire()


class RemoteReader(Protocol):
    """Parses one answer's payloads to events."""

    is_done: bool  # the other server ended the answer

    @property
    def is_whole(self) -> bool:
        """Nothing is missing."""
        ...

    def read(self, payload: bytes) -> list[RemoteEvent]:
        """The events in one payload, or in a whole body. Raises UpstreamError."""
        ...


class AnswerReader:
    """Reads one answer of `choices` choices."""

    def __init__(self, choices: int) -> None:
        self._calls = [CallOrder() for _ in range(choices)]
        self._begun = [False] * choices
        self._finished = [False] * choices
        self._answer: dict[str, Any] = {}  # what stands beside the choices
        self.is_done = False  # the other server ended the answer

    @property
    def is_whole(self) -> bool:
        """Every choice that began has ended, or the stream has: some servers leave choices out."""
        return self.is_done or (any(self._begun) and self._begun == self._finished)

    def read(self, payload: bytes) -> list[RemoteEvent]:
        """The deltas in the payload of an event, or in a whole body. Raises UpstreamError for an
        error in the stream, and for what is no chunk.
        """
        events: list[RemoteEvent] = []
        if payload == DONE:
            self.is_done = True
        elif isinstance(payload, ErrorData):
            raise named_error(payload)
        elif payload:
            self._add(events, _chunk(payload), payload)
        return events

    def _add(self, events: list[RemoteEvent], chunk: Chunk, payload: bytes) -> None:
        if chunk.error is not None:
            raise stream_error(chunk.error)
        if chunk.choices is None and chunk.usage is None and (error := error_in(payload)):
            raise error
        deltas = map(self._delta, chunk.choices or ())
        events += [delta for delta in deltas if delta is not None]
        if (answer := _further(chunk, _FurtherOfAnswer)) and answer != self._answer:
            self._answer = answer  # some servers repeat it in each chunk
            events.append(RemoteDelta(further=RemoteFurther(answer=answer)))
        if (usage := converted(chunk.usage, _Usage, strict=False)) is not None:
            events.append(_usage(usage))

    def _delta(self, choice: _Choice) -> RemoteDelta | None:
        index, message = choice.index, choice.delta or choice.message or _NOTHING
        if not 0 <= index < len(self._calls):
            raise broken(f"a choice with the index {index}, of {len(self._calls)}")
        self._begun[index] = True
        content = message.content if choice.text is None else choice.text
        thought, text = _split(content)
        logprobs = converted(choice.logprobs, _Logprobs, strict=False)
        is_message = choice.message is not None
        finished = self._end(index, choice.finish_reason, is_whole=is_message)
        stop = choice.stop_reason if finished == "stop" else None
        further = _further(message, FurtherOfMessage)
        delta = RemoteDelta(
            choice=index,
            reasoning=message.reasoning_content
            or message.reasoning
            or message.reasoning_text
            or thought,
            content=text or message.refusal or "",
            calls=self._called(index, message, whole=is_message),
            logprobs=_logprobs(logprobs) if logprobs is not None else (),
            finished=finished,
            stop=stop if isinstance(stop, str) else None,
            further=RemoteFurther(message=further) if further else None,
        )
        is_empty = not (
            delta.reasoning or delta.content or delta.calls or delta.logprobs or delta.further
        )
        return None if is_empty and finished is None else delta

    def _called(self, index: int, message: _TurnWire, *, whole: bool) -> tuple[RemoteCall, ...]:
        wires = message.tool_calls or ()
        if message.function_call is not None and not wires:
            wires = [StreamedCallWire(index=0, function=message.function_call)]
        order = self._calls[index]
        return tuple(call for wire in wires if (call := order.take(wire, whole=whole)) is not None)

    def _end(self, index: int, reason: str | None, *, is_whole: bool) -> str | None:
        if self._finished[index]:
            return None  # some servers send it twice
        if reason in _NOT_YET:
            self._finished[index] = is_whole
            return "stop" if is_whole else None
        if reason in _GIVEN_UP:
            raise broken(f"an answer that ended with {reason!r}")
        self._finished[index] = True
        return FINISH.get(reason, "stop")


def _chunk(payload: bytes) -> Chunk:
    try:
        return decoded(payload, Chunk)
    except Unhealthy:
        return decoded(_without_nan(payload), Chunk)


def _without_nan(payload: bytes) -> bytes:
    """Python's `json` writes NaN and Infinity, which JSON doesn't have; null stands for them."""
    return _STRING_OR_NOT_A_NUMBER.sub(
        lambda found: found[0] if found[0].startswith(b'"') else b"null", payload
    )


class _ErrorWire(msgspec.Struct, frozen=True):
    message: str | None = None
    type: str | None = None
    param: str | None = None
    code: Any = None


def stream_error(error: object, kind: str = "server_error") -> UpstreamError:
    """An error inside a stream, or of a body that came with status 200. Its message is still the
    other server's own; `kind`: its type, where it names none.
    """
    if isinstance(error, str):
        return UpstreamError(error, type=kind)
    wire = converted(error, _ErrorWire, strict=False) or _ErrorWire()
    status = wire.code if isinstance(wire.code, int) and 400 <= wire.code <= 599 else 502
    return UpstreamError(
        wire.message or "The upstream failed without an error message.",
        status=status,
        type=wire.type or kind,
        code=wire.code if isinstance(wire.code, str) else None,
        param=wire.param,
    )


def error_in(body: bytes, kind: str = "server_error") -> UpstreamError | None:
    """The error that a JSON object is: OpenAI's envelope, vLLM's older one, FastAPI's `detail`, a
    bare `message`. None: it is none of these. `kind`: see `stream_error`.
    """
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    match found:
        case {"error": dict() | str() as error}:
            return stream_error(error, kind)
        case {"object": "error", **rest}:
            return stream_error(rest, kind)
        case {"detail": str(text)} | {"message": str(text)}:
            return stream_error({**found, "message": text}, kind)
        case {"detail": list() as faults}:
            return stream_error(msgspec.json.encode(faults).decode(), kind)
    return None


def named_error(data: bytes) -> UpstreamError:
    """The error that the data of an event named "error" says, in whatever shape."""
    return error_in(data) or stream_error(data[:MOST_WORDS].decode("utf-8", "replace"))


def _split(content: str | list[_Part] | None) -> tuple[str, str]:
    """Reasoning and text."""
    if not isinstance(content, list):
        return "", content or ""
    thought = "".join(_thinking(part.thinking) for part in content)
    return thought, "".join(part.text or "" for part in content if part.type != "thinking")


def _thinking(thinking: str | list[_Part] | None) -> str:
    if isinstance(thinking, list):
        return "".join(part.text or "" for part in thinking)
    return thinking or ""


def _usage(wire: _Usage) -> RemoteUsage:
    cached, thought = wire.prompt_tokens_details, wire.completion_tokens_details
    return RemoteUsage(
        prompt_tokens=_count(wire.prompt_tokens),
        completion_tokens=_count(wire.completion_tokens),
        cached_tokens=_count(cached.cached_tokens if cached else 0),
        reasoning_tokens=_count(thought.reasoning_tokens if thought else 0),
        further=_further(wire, _FurtherOfUsage),
    )


def _count(number: int | None) -> int:
    return max(0, number or 0)


NO_TOKEN = -1  # other servers send texts, not ids
_UNLIKELY = -9999.0


def _logprobs(wire: _Logprobs) -> tuple[TokenLogprob, ...]:
    if wire.content is not None:
        return tuple(
            TokenLogprob(_candidate(token), tuple(map(_candidate, token.top_logprobs or ())))
            for token in wire.content
        )
    tokens, values = wire.tokens or [], wire.token_logprobs or []
    tops = wire.top_logprobs or [None] * len(tokens)
    return tuple(
        TokenLogprob(_named(token, value), tuple(_named(*pair) for pair in (top or {}).items()))
        for token, value, top in zip(tokens, values, tops, strict=False)
    )


def _candidate(token: _Token) -> Candidate:
    try:
        text = bytes(token.bytes) if token.bytes is not None else token.token.encode()
    except ValueError:
        raise broken("a token of bytes beyond 255") from None
    return Candidate(NO_TOKEN, text, _UNLIKELY if token.logprob is None else token.logprob)


def _named(text: str, logprob: float | None) -> Candidate:
    return Candidate(NO_TOKEN, text.encode(), _UNLIKELY if logprob is None else logprob)
