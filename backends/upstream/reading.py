"""Parses another server's chunks and bodies, in OpenAI's format and its variants.

Reasoning is spelled `reasoning_content` (DeepSeek, vLLM, SGLang, llama.cpp), `reasoning`
(OpenRouter, Ollama, newer vLLM), `reasoning_text` (Copilot), or stands in blocks of the content
(Mistral). `<think>` in the content is text here; the gateway, which knows formats, splits it.
"""

import re
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from backends.errors import UpstreamError
from backends.protocol import Candidate, TokenLogprob
from backends.remote import RemoteCall, RemoteDelta, RemoteEvent, RemoteUsage
from backends.upstream.calls import CallOrder, StreamedCallWire, StreamedFunctionWire
from backends.upstream.faults import broken
from backends.upstream.sse import ErrorData

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


class _TurnWire(msgspec.Struct, frozen=True):
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


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Cached | None = None
    completion_tokens_details: _Thought | None = None


class Chunk(msgspec.Struct, frozen=True):
    """An event of a stream, or a whole body."""

    choices: list[_Choice] | None = None
    usage: Any = None  # `_Usage`; what isn't costs no answer
    error: Any = None


Read: TypeAlias = Literal["stream", "whole"]

T = TypeVar("T")

_decode = msgspec.json.Decoder(Chunk).decode
_STRING_OR_NOT_A_NUMBER = re.compile(rb'"(?:[^"\\]|\\.)*"|-?\b(?:NaN|Infinity)\b')
_NOTHING = _TurnWire()


class AnswerReader:
    """Reads one answer of `choices` choices."""

    def __init__(self, choices: int) -> None:
        self._calls = [CallOrder() for _ in range(choices)]
        self._begun = [False] * choices
        self._finished = [False] * choices
        self.is_done = False  # the other server ended the answer

    @property
    def is_whole(self) -> bool:
        """Every choice that began has ended, or the stream has: some servers leave choices out."""
        return self.is_done or (any(self._begun) and self._begun == self._finished)

    def read(self, payloads: Sequence[bytes]) -> list[RemoteEvent]:
        """The deltas in the payloads of some events. Raises UpstreamError for an error in the
        stream, and for what is no chunk.
        """
        events: list[RemoteEvent] = []
        for payload in payloads:
            if payload == DONE:
                self.is_done = True
            elif isinstance(payload, ErrorData):
                raise named_error(payload)
            elif payload:
                self._add(events, _decoded(payload), payload)
        return events

    def _add(self, events: list[RemoteEvent], chunk: Chunk, payload: bytes) -> None:
        if chunk.error is not None:
            raise stream_error(chunk.error)
        if chunk.choices is None and chunk.usage is None and (error := error_in(payload)):
            raise error
        deltas = map(self._delta, chunk.choices or ())
        events += [delta for delta in deltas if delta is not None]
        if (usage := _lenient(chunk.usage, _Usage)) is not None:
            events.append(_usage(usage))

    def _delta(self, choice: _Choice) -> RemoteDelta | None:
        index, message = choice.index, choice.delta or choice.message or _NOTHING
        if not 0 <= index < len(self._calls):
            raise broken(f"a choice with the index {index}, of {len(self._calls)}")
        self._begun[index] = True
        content = message.content if choice.text is None else choice.text
        if (
            type(content) is str
            and content
            and choice.finish_reason in _NOT_YET
            and choice.message is None
            and choice.logprobs is None
            and message.tool_calls is None
            and not (message.reasoning_content or message.reasoning or message.reasoning_text)
        ):
            return RemoteDelta(choice=index, content=content)  # nearly every chunk
        return self._whole_delta(index, choice, message, content)

    def _whole_delta(
        self, index: int, choice: _Choice, message: _TurnWire, content: str | list[_Part] | None
    ) -> RemoteDelta | None:
        thought, text = _split(content)
        logprobs = _lenient(choice.logprobs, _Logprobs)
        is_message = choice.message is not None
        finished = self._end(index, choice.finish_reason, is_whole=is_message)
        stop = choice.stop_reason if finished == "stop" else None
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
        )
        is_empty = not (delta.reasoning or delta.content or delta.calls or delta.logprobs)
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


def _decoded(payload: bytes) -> Chunk:
    try:
        return _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if (whole := _without_nan(payload)) != payload:
            return _decoded(whole)
        raise broken(f"what can't be read ({error})") from None
    except RecursionError:
        raise broken("what can't be read (nested too deeply)") from None


def _without_nan(payload: bytes) -> bytes:
    """Python's `json` writes NaN and Infinity, which JSON doesn't have; null stands for them."""
    return _STRING_OR_NOT_A_NUMBER.sub(
        lambda found: found[0] if found[0].startswith(b'"') else b"null", payload
    )


def _lenient(value: object, kind: type[T]) -> T | None:
    """None for what isn't a `kind`: an answer goes on without its counts or probabilities."""
    if value is None:
        return None
    try:
        return msgspec.convert(value, kind, strict=False)
    except (msgspec.ValidationError, RecursionError):
        return None


class _ErrorWire(msgspec.Struct, frozen=True):
    message: str | None = None
    type: str | None = None
    param: str | None = None
    code: Any = None


def stream_error(error: object) -> UpstreamError:
    """An error inside a stream, or of a body that came with status 200. Its message is still the
    other server's own.
    """
    if isinstance(error, str):
        return UpstreamError(error)
    wire = _lenient(error, _ErrorWire) or _ErrorWire()
    status = wire.code if isinstance(wire.code, int) and 400 <= wire.code <= 599 else 502
    return UpstreamError(
        wire.message or "The upstream failed without a word.",
        status=status,
        type=wire.type or "server_error",
        code=wire.code if isinstance(wire.code, str) else None,
        param=wire.param,
    )


def error_in(body: bytes) -> UpstreamError | None:
    """The error that a JSON object is: OpenAI's envelope, vLLM's older one, FastAPI's `detail`, a
    bare `message`. None: it is none of these.
    """
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    match decoded:
        case {"error": dict() | str() as error}:
            return stream_error(error)
        case {"object": "error", **rest}:
            return stream_error(rest)
        case {"detail": str(text)} | {"message": str(text)}:
            return stream_error({**decoded, "message": text})
        case {"detail": list() as faults}:
            return stream_error(msgspec.json.encode(faults).decode())
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
