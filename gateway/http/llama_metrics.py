"""llama-server's numbers by its own names, for its dashboards: over all models, without labels.

What it counts of its decoding (`n_decode_total`, `n_busy_slots_per_decode`) and of its drafts is
not known above the engines, and left out.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec

from gateway.events import Usage
from gateway.registry import ModelStatus


class Number(msgspec.Struct, frozen=True):
    """One metric of llama-server (tools/server/README.md, `GET /metrics`)."""

    name: str
    kind: Literal["counter", "gauge"]
    about: str
    value: float


class LlamaMetrics:
    """Counts what answers cost. Rates are of all answers since the start."""

    def __init__(self) -> None:
        self._prompt = self._cached = self._predicted = self._longest = 0
        self._prompt_seconds = self._predicted_seconds = 0.0
        self._steps = 0  # of answers: the first token comes with the prompt
        self._statuses: Callable[[], Sequence[ModelStatus]] = tuple

    def watch(self, statuses: Callable[[], Sequence[ModelStatus]]) -> None:
        """Tell of running and waiting requests as well, as they are when somebody asks."""
        self._statuses = statuses

    def count(self, usage: Usage) -> None:
        """An answer is over."""
        self._prompt += usage.prompt_tokens - usage.cached_tokens
        self._cached += usage.cached_tokens
        self._predicted += usage.completion_tokens
        self._longest = max(self._longest, usage.prompt_tokens + usage.completion_tokens)
        self._prompt_seconds += usage.prefill_seconds
        self._predicted_seconds += usage.decode_seconds
        self._steps += max(0, usage.completion_tokens - 1)

    def text(self) -> bytes:
        """Prometheus' text format."""
        return "".join(
            f"# HELP llamacpp:{one.name} {one.about}\n"
            f"# TYPE llamacpp:{one.name} {one.kind}\n"
            f"llamacpp:{one.name} {float(one.value)!r}\n"
            for one in self._numbers()
        ).encode()

    def _numbers(self) -> Iterator[Number]:
        statuses = self._statuses()
        reading, writing = self._prompt_seconds, self._predicted_seconds
        yield Number("prompt_tokens_total", "counter", "Prompt tokens computed.", self._prompt)
        yield Number(
            "prompt_tokens_cached_total", "counter", "Prompt tokens found cached.", self._cached
        )
        yield Number("prompt_seconds_total", "counter", "Seconds of computing prompts.", reading)
        yield Number("tokens_predicted_total", "counter", "Tokens generated.", self._predicted)
        yield Number("tokens_predicted_seconds_total", "counter", "Seconds of generating.", writing)
        yield Number("n_tokens_max", "counter", "The longest prompt and answer.", self._longest)
        yield Number(
            "prompt_tokens_seconds",
            "gauge",
            "Prompt tokens computed in a second.",
            _rate(self._prompt, reading),
        )
        yield Number(
            "predicted_tokens_seconds",
            "gauge",
            "Tokens generated in a second.",
            _rate(self._steps, writing),
        )
        running = sum(status.in_use for status in statuses)
        waiting = sum(status.waiting for status in statuses)
        yield Number("requests_processing", "gauge", "Requests under way.", running)
        yield Number("requests_deferred", "gauge", "Requests in line.", waiting)


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
