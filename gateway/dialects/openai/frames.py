"""Server-sent events as OpenAI writes them: a `data:` line of JSON and an empty line."""

import msgspec

from gateway.events import Usage

DONE = b"data: [DONE]\n\n"
PLACEHOLDER = "\0hole"

_encode = msgspec.json.Encoder().encode


def frame(message: msgspec.Struct) -> bytes:
    """One event."""
    return b"data: " + _encode(message) + b"\n\n"


def body(message: msgspec.Struct) -> bytes:
    """One JSON document."""
    return _encode(message)


class FrameTemplate:
    """A frame in which only one text differs from time to time: all but the text is encoded once.

    Made from a message that has `PLACEHOLDER` for that text. Nothing that a client chose may stand
    behind it.
    """

    def __init__(self, message: msgspec.Struct) -> None:
        self._head, found, self._tail = frame(message).rpartition(_encode(PLACEHOLDER))
        assert found, "the message has a placeholder"

    def render(self, text: str) -> bytes:
        """The frame with `text` in its place."""
        return b"".join((self._head, _encode(text), self._tail))


# -------------------------------------------------------------------------------------------- usage
# What an answer cost, in OpenAI's `usage` and llama.cpp's `timings`.


class PromptDetails(msgspec.Struct, frozen=True):
    """Of the prompt tokens."""

    cached_tokens: int


class CompletionDetails(msgspec.Struct, frozen=True):
    """Of the completion tokens."""

    reasoning_tokens: int


class UsageWire(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's `usage`."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """llama.cpp's `timings`, and our `queued_ms`. `prompt_n` leaves out the cached `cache_n`."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float
    queued_ms: float


def usage_wire(usage: Usage) -> UsageWire:
    """`usage` as OpenAI counts."""
    return UsageWire(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptDetails(usage.cached_tokens),
        completion_tokens_details=CompletionDetails(usage.reasoning_tokens),
    )


def timings(usage: Usage) -> Timings:
    """`usage` as llama.cpp times."""
    computed = usage.prompt_tokens - usage.cached_tokens
    return Timings(
        cache_n=usage.cached_tokens,
        prompt_n=computed,
        prompt_ms=_milliseconds(usage.prefill_seconds),
        prompt_per_second=_rate(computed, usage.prefill_seconds),
        predicted_n=usage.completion_tokens,
        predicted_ms=_milliseconds(usage.decode_seconds),
        predicted_per_second=_rate(usage.completion_tokens, usage.decode_seconds),
        queued_ms=_milliseconds(usage.queue_seconds),
    )


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _rate(tokens: int, seconds: float) -> float:
    """Tokens per second; 0 where no time was taken, because JSON has no infinity."""
    return round(tokens / seconds, 3) if seconds > 0 else 0.0
