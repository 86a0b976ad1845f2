"""What Prometheus reads at `GET /metrics`. Counts what it is told; it measures nothing itself.

Each server has its own registry of metrics, so two in one process don't share numbers. Gaps between
tokens arrive counted by bucket already: a call for each token would cost more than its own way
through the gateway.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gateway.http.account import GAPS, Report
from gateway.registry import (
    Happening,
    ModelLoaded,
    ModelLoadFailed,
    ModelStatus,
    ModelUnloaded,
)

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_SHORT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_LONG = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)


class Metrics:
    """One per server. `happened` is for `Registry(watch=…)`, `answered` for accounts."""

    def __init__(self) -> None:
        self._metrics = CollectorRegistry()
        self._requests = Counter(
            "roundhouse_requests",
            "Requests by outcome: ok, left (the client went away), send_timeout (it didn't read), "
            "or an error's code.",
            ("model", "api", "outcome"),
            registry=self._metrics,
        )
        self._tokens = Counter(
            "roundhouse_tokens",
            "Tokens by kind; cached ones are prompt tokens, reasoning ones completion tokens.",
            ("model", "kind"),
            registry=self._metrics,
        )
        self._queued = self._times("queue_seconds", "Waiting for the model's turn.", _SHORT)
        self._waited = self._times("load_wait_seconds", "Waiting for the model's load.", _LONG)
        self._first = self._times("time_to_first_token_seconds", "Request to first token.", _SHORT)
        self._whole = self._times("request_seconds", "Request to end of answer.", _SHORT)
        self._loads = self._times("load_seconds", "Loads that went well.", _LONG)
        self._unloads = self._times("unload_seconds", "Unloads.", _SHORT)
        self._failures = Counter(
            "roundhouse_load_failures",
            "Loads that failed, or were cancelled because nobody waited any more.",
            ("model", "why"),
            registry=self._metrics,
        )
        self._evictions = Counter(
            "roundhouse_evictions",
            "Unloads by reason: room (for another model), idle, asked (by an administrator).",
            ("model", "reason"),
            registry=self._metrics,
        )
        self._send_timeouts = Counter(
            "roundhouse_send_timeouts",
            "Clients cut off because they read nothing for server.send_timeout.",
            registry=self._metrics,
        )
        self._gaps = _Gaps()
        self._metrics.register(self._gaps)

    def watch(self, statuses: Callable[[], Sequence[ModelStatus]]) -> None:
        """Tell of the models in memory as well, as they are when Prometheus asks."""
        self._metrics.register(_Residents(statuses))

    def answered(self, report: Report) -> None:
        """A request is over."""
        model, usage = report.model, report.usage
        self._requests.labels(model, report.api, report.outcome).inc()
        self._whole.labels(model).observe(report.seconds)
        if report.first is not None:
            self._first.labels(model).observe(report.first)
        if usage is None:
            return
        self._queued.labels(model).observe(report.queued)
        self._waited.labels(model).observe(report.loading)
        self._gaps.add(model, report.gaps, report.gaps_seconds)
        self._tokens.labels(model, "prompt").inc(usage.prompt_tokens)
        self._tokens.labels(model, "cached").inc(usage.cached_tokens)
        self._tokens.labels(model, "completion").inc(usage.completion_tokens)
        self._tokens.labels(model, "reasoning").inc(usage.reasoning_tokens)

    def happened(self, happening: Happening) -> None:
        """A model came or went, or did not come."""
        match happening:
            case ModelLoaded(model, seconds):
                self._loads.labels(model).observe(seconds)
            case ModelLoadFailed(model, _, reason):
                self._failures.labels(model, "cancelled" if reason is None else "failed").inc()
            case ModelUnloaded(model, seconds, why):
                self._unloads.labels(model).observe(seconds)
                self._evictions.labels(model, why).inc()

    def send_timed_out(self) -> None:
        """A client that doesn't read was cut off."""
        self._send_timeouts.inc()

    def text(self) -> bytes:
        """Prometheus' text format."""
        return generate_latest(self._metrics)

    def _times(self, name: str, told: str, bounds: Sequence[float]) -> Histogram:
        return Histogram(
            f"roundhouse_{name}", told, ("model",), buckets=bounds, registry=self._metrics
        )


class _Gaps(Collector):
    """The histogram of gaps between tokens, fed with counts."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}

    def add(self, model: str, counts: Sequence[int], seconds: float) -> None:
        known = self._counts.setdefault(model, [0] * (len(GAPS) + 1))
        self._counts[model] = [a + b for a, b in zip(known, counts, strict=True)]
        self._seconds[model] = self._seconds.get(model, 0.0) + seconds

    def collect(self) -> Iterable[Metric]:
        told = "Between two pieces of one answer."
        family = HistogramMetricFamily("roundhouse_inter_token_seconds", told, labels=["model"])
        bounds = [*map(str, GAPS), "+Inf"]
        for model, counts in self._counts.items():
            sums = accumulate(counts)
            family.add_metric([model], list(zip(bounds, sums, strict=True)), self._seconds[model])
        yield family


class _Residents(Collector):
    """Models in memory, read when they are asked for."""

    def __init__(self, statuses: Callable[[], Sequence[ModelStatus]]) -> None:
        self._statuses = statuses

    def collect(self) -> Iterable[Metric]:
        statuses = self._statuses()
        there = [one for one in statuses if one.info is not None]
        yield GaugeMetricFamily("roundhouse_resident_models", "Models in memory.", len(there))
        sizes = {one.id: one.need.total if one.need else 0 for one in there}
        yield _by_model("resident_bytes", "Memory of each model, as measured or estimated.", sizes)
        waiting = {one.id: one.waiting for one in statuses}
        yield _by_model("waiting", "Requests in line.", waiting)
        yield _by_model("in_use", "Answers in progress.", {one.id: one.in_use for one in statuses})

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not ask a registry that isn't running yet."""
        return ()


def _by_model(name: str, told: str, values: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(f"roundhouse_{name}", told, labels=["model"])
    for model, value in values.items():
        family.add_metric([model], value)
    return family
