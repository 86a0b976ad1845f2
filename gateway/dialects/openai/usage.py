"""What an answer cost, in OpenAI's `usage` and llama.cpp's `timings`; and how a stream ends."""

import msgspec

from gateway.events import Usage

DONE = b"data: [DONE]\n\n"


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
