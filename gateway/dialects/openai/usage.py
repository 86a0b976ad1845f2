"""OpenAI's `usage` and llama.cpp's `timings` of an answer; and how a stream ends."""

from collections.abc import Callable
from typing import TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from backends.protocol import PromptProgress
from gateway.events import Usage

UsageSoFar: TypeAlias = Callable[[], Usage]

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
    """llama.cpp's `timings`, and our `queued_ms`. `prompt_n` leaves out the cached `cache_n`.

    The first token comes with the prompt: `predicted_ms` and the rates are of those behind it
    (llama.cpp, server_slot_stats).
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    queued_ms: float


def usage_wire(usage: Usage) -> UsageWire | UnsetType:
    """`usage` as OpenAI counts; left out where nobody counted."""
    if not usage.is_counted:
        return UNSET
    return UsageWire(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptDetails(usage.cached_tokens),
        completion_tokens_details=CompletionDetails(usage.reasoning_tokens),
    )


def usage_so_far(usage: UsageSoFar | None) -> UsageWire | UnsetType:
    """Where it is wanted and known: another server may count at the end alone."""
    found = usage() if usage is not None else None
    return usage_wire(found) if found is not None and found.prompt_tokens else UNSET


def timings(usage: Usage) -> Timings | UnsetType:
    """`usage` as llama.cpp times; left out where nobody counted the tokens."""
    if not usage.is_counted:
        return UNSET
    computed = usage.prompt_tokens - usage.cached_tokens
    steps = max(0, usage.completion_tokens - 1)
    prompt_ms, predicted_ms = usage.prefill_seconds * 1000, usage.decode_seconds * 1000
    return Timings(
        cache_n=usage.cached_tokens,
        prompt_n=computed,
        prompt_ms=prompt_ms,
        prompt_per_token_ms=_share(prompt_ms, computed),
        prompt_per_second=_share(1000.0 * computed, prompt_ms),
        predicted_n=usage.completion_tokens,
        predicted_ms=predicted_ms,
        predicted_per_token_ms=_share(predicted_ms, steps),
        predicted_per_second=_share(1000.0 * steps, predicted_ms),
        queued_ms=usage.queue_seconds * 1000,
    )


class ProgressWire(msgspec.Struct, frozen=True):
    """llama-server's `prompt_progress`: of `total` tokens `processed`, the cached among them."""

    total: int
    cache: int
    processed: int
    time_ms: float


def progress_wire(progress: PromptProgress) -> ProgressWire:
    """`progress` as llama-server reports it."""
    seconds = progress.seconds
    return ProgressWire(progress.total, progress.cached, progress.done, seconds * 1000)


def _share(amount: float, parts: float) -> float:
    """0 where there are no parts, because JSON has no infinity."""
    return amount / parts if parts > 0 else 0.0
