"""What became of one request and what it cost: kept while it is answered, reported once at its end.

The hot path is `delta`: less than a microsecond, no locks. Prompts and keys never get here.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Literal, TypeAlias

import msgspec
import structlog

from gateway.answers.answer import Answer
from gateway.errors import GatewayError
from gateway.events import Usage
from gateway.registry import Waiting

log = structlog.get_logger()

Api: TypeAlias = str  # "chat", "text", …
Stage: TypeAlias = Literal["queued", "loading"]

# Upper bounds of the gaps between two deltas, in seconds; the last bucket is what is longer.
GAPS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)


class RequestReport(msgspec.Struct, frozen=True, kw_only=True):
    """One request, over and done with. Times are seconds."""

    api: Api
    model: str  # "" where the request named none that exists
    outcome: str  # "ok", "left", "send_timeout", or the code of an error
    seconds: float
    queued: float = 0.0
    loading: float = 0.0
    first: float | None = None  # until the first delta; None: there was none
    gaps: tuple[int, ...] = ()  # deltas after the first, by `GAPS`
    gaps_seconds: float = 0.0  # all of them together
    usage: Usage | None = None  # None: it never came to an answer


class Waits:
    """How long a request stood in line, and how long of it for a load: for those never served."""

    def __init__(self) -> None:
        self._stage: Stage | None = None
        self._since = 0.0
        self._seconds: dict[Stage, float] = {"queued": 0.0, "loading": 0.0}

    def now(self, stage: Stage, time: float) -> None:
        """In `stage` from `time` on."""
        self.ended(time)
        self._stage, self._since = stage, time

    def ended(self, time: float) -> tuple[float, float]:
        """Seconds queued and loading."""
        if self._stage is not None:
            self._seconds[self._stage] += time - self._since
            self._stage = None
        return self._seconds["queued"], self._seconds["loading"]


class RequestRecord:
    """One request's. `tell` is called with the report, exactly once."""

    def __init__(
        self, tell: Callable[[RequestReport], None], *, api: Api, model: str, request: str
    ) -> None:
        self._tell = tell
        self._api = api
        self._model = model
        self.request = request
        self._answer: Answer | None = None
        self._waits: Waits = Waits()
        self._began = self._last = perf_counter()
        self._first: float | None = None
        self._gaps = [0] * (len(GAPS) + 1)
        self._gaps_seconds = 0.0

    @contextmanager
    def kept(self, was_cut_off: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Around all of the answer; the report is made when it ends, by whatever way.

        `was_cut_off`: whether it was cancelled because the client didn't read.
        """
        outcome = None  # cancelled: nobody listens any more
        try:
            yield
            outcome = "ok"
        except GatewayError as error:
            outcome = error.code or error.type
            raise
        except Exception:
            outcome = "internal_error"
            raise
        finally:
            self._close(outcome or ("send_timeout" if was_cut_off() else "left"))

    def waits(self, news: Waiting) -> None:
        """Where the request stands in line now."""
        self._waits.now(news.stage, perf_counter())

    def answered_by(self, answer: Answer) -> None:
        """Now it is known who answers."""
        self._answer = answer
        self._model = answer.model

    def delta(self) -> None:
        """Something was said."""
        now = perf_counter()
        if self._first is None:
            self._first = now - self._began
        else:
            gap = now - self._last
            self._gaps[bisect_left(GAPS, gap)] += 1
            self._gaps_seconds += gap
        self._last = now

    def _close(self, outcome: str) -> None:
        answer = self._answer
        queued, loading = self._waits.ended(perf_counter())
        report = RequestReport(
            api=self._api,
            model=self._model,
            outcome=outcome,
            seconds=perf_counter() - self._began,
            queued=answer.queued_seconds if answer else queued,
            loading=answer.load_seconds if answer else loading,
            first=self._first,
            gaps=tuple(self._gaps),
            gaps_seconds=self._gaps_seconds,
            usage=answer.usage() if answer else None,
        )
        _log(self.request, report)
        self._tell(report)


def _log(request: str, report: RequestReport) -> None:
    """One line for each request."""
    usage = report.usage
    log.info(
        "answered",
        request=request,
        api=report.api,
        model=report.model,
        outcome=report.outcome,
        prompt_tokens=usage.prompt_tokens if usage else 0,
        cached_tokens=usage.cached_tokens if usage else 0,
        completion_tokens=usage.completion_tokens if usage else 0,
        queued=round(report.queued, 3),
        loading=round(report.loading, 3),
        ttft=None if report.first is None else round(report.first, 3),
        seconds=round(report.seconds, 3),
    )
