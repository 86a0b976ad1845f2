"""`GET /metrics` for Prometheus: our numbers, each model's, and llama-server's by its own names,
for its dashboards, over all models and without labels. Counts what is reported; it measures nothing
itself.

Each server has its own registry of metrics, so two in one process don't share numbers. What
llama-server counts of its decoding (`n_decode_total`, `n_busy_slots_per_decode`) is not known above
the engines, and left out.
"""

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from backends.places.kept.store import KeptCounts
from backends.places.upstream.replicas import Replica
from config.product import VERSION
from gateway.answers.turns import TurnCounts
from gateway.http.standing import RequestReport
from gateway.registry import (
    ModelEvent,
    ModelLoaded,
    ModelLoadFailed,
    ModelProgressed,
    ModelStatus,
    ModelUnloaded,
    Registry,
)
from gateway.registry.overview import Ledger
from gateway.terms.errors import RateLimited
from gateway.terms.events import Usage

# What llama-server counts of answers (tools/server/README.md, `GET /metrics`): its name, what it
# says of it, and our field.
COUNTED: Mapping[str, tuple[str, str]] = {
    "prompt_tokens_total": ("Prompt tokens computed.", "computed_tokens"),
    "prompt_tokens_cached_total": ("Prompt tokens found cached.", "cached_tokens"),
    "prompt_seconds_total": ("Seconds of computing prompts.", "prefill_seconds"),
    "tokens_predicted_total": ("Tokens generated.", "completion_tokens"),
    "tokens_predicted_seconds_total": ("Seconds of generating.", "decode_seconds"),
    "spec_decode_num_draft_tokens_total": ("Tokens drafted.", "drafted_tokens"),
    "spec_decode_num_accepted_tokens_total": ("Drafted tokens that came.", "accepted_tokens"),
}


class LlamaMetrics:
    """What answers cost, as llama-server counts it. Rates are of all answers since the start."""

    def __init__(self) -> None:
        self._sums = dict.fromkeys(COUNTED, 0.0)
        self._longest = 0
        self._steps = 0  # of answers: the first token comes with the prompt

    def count(self, usage: Usage) -> None:
        """An answer is over."""
        for name, (_, field) in COUNTED.items():
            self._sums[name] += getattr(usage, field)
        self._longest = max(self._longest, usage.prompt_tokens + usage.completion_tokens)
        self._steps += max(0, usage.completion_tokens - 1)

    def families(self, statuses: Sequence[ModelStatus]) -> Iterator[Metric]:
        """With the requests that run and wait by `statuses`."""
        for name, (about, _) in COUNTED.items():
            yield CounterMetricFamily(f"llamacpp:{name}", about, self._sums[name])
        for name, (about, value) in self._gauges(statuses).items():
            yield GaugeMetricFamily(f"llamacpp:{name}", about, value)

    def _gauges(self, statuses: Sequence[ModelStatus]) -> Mapping[str, tuple[str, float]]:
        statuses = [one for one in statuses if not one.is_replica]
        reading = _rate(self._sums["prompt_tokens_total"], self._sums["prompt_seconds_total"])
        writing = _rate(self._steps, self._sums["tokens_predicted_seconds_total"])
        return {
            "n_tokens_max": ("The longest prompt and answer.", self._longest),
            "prompt_tokens_seconds": ("Prompt tokens computed in a second.", reading),
            "predicted_tokens_seconds": ("Tokens generated in a second.", writing),
            "requests_processing": ("Requests under way.", sum(one.in_use for one in statuses)),
            "requests_deferred": ("Queued requests.", sum(one.waiting for one in statuses)),
        }


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_SHORT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_ANSWERS = (*_SHORT, 300.0, 600.0, 1800.0, 3600.0)
_LONG = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
_LENGTHS = tuple(float(2**power) for power in range(4, 19))  # tokens, 16 to 262,144
GAPS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0)


class Counted(NamedTuple):
    """What is counted, by which labels."""

    labels: str
    about: str


COUNTERS: Mapping[str, Counted] = {
    "requests": Counted(
        "model api outcome",
        "Requests by outcome: ok, left (the client went away), send_timeout (it didn't read), "
        "or an error's code.",
    ),
    "failures": Counted(
        "model api", "Requests of these that failed through no fault of their clients."
    ),
    "key_requests": Counted("key", "Requests by the label of their key."),
    "key_tokens": Counted(
        "key kind", "Tokens by the label of the key: prompt (cached ones, too) and completion."
    ),
    "key_limited": Counted("key", "Requests that the limits of their key refused, by its label."),
    "tokens": Counted(
        "model kind",
        "Tokens, each of one kind: prompt (computed), cached (of prompts, found in the cache), "
        "completion (of answers), reasoning (before them).",
    ),
    "draft_tokens": Counted(
        "model kind",
        "Tokens that were drafted to come next: drafted (all), accepted (those that came).",
    ),
    "marked_answers": Counted(
        "model",
        "Answers whose text shows markers of calls: their model's format was not recognised.",
    ),
    "load_failures": Counted(
        "model why", "Loads that failed, or were cancelled because no request was waiting any more."
    ),
    "evictions": Counted(
        "model reason", "Models unloaded for the memory of another, or because they were idle."
    ),
    "unloads": Counted(
        "model reason",
        "Unloads by reason: room, idle, asked (by an administrator), broken, budget (was cut), "
        "config (it changed).",
    ),
    "refused_requests": Counted(
        "reason", "Requests that were not let in: key_missing, key_wrong, not_for_pages."
    ),
    "http_requests": Counted(
        "method route status",
        "Requests by route and status, 0 where the client left before an answer began.",
    ),
    "send_timeouts": Counted(
        "", "Clients cut off because they read nothing for server.send_timeout."
    ),
}
# By name: the bounds, and what is measured of each model.
HISTOGRAMS: Mapping[str, tuple[Sequence[float], str]] = {
    "queue_seconds": (_SHORT, "Seconds in the model's queue."),
    "load_wait_seconds": (_LONG, "Seconds of waiting for the model's load."),
    "time_to_first_token_seconds": (_SHORT, "Request to first token."),
    "inter_token_seconds": (GAPS, "Between two pieces of one answer."),
    "request_seconds": (_ANSWERS, "Request to end of answer."),
    "prompt_tokens": (_LENGTHS, "Length of a request's prompts."),
    "cached_tokens": (_LENGTHS, "What of them was found in the cache."),
    "completion_tokens": (_LENGTHS, "Length of a request's answers."),
    "load_seconds": (_LONG, "Loads that went well."),
    "unload_seconds": (_SHORT, "Unloads."),
}


class Metrics:
    """One per server. `on_model_event` is for `Registry(watch=…)`, `answered` for accounts."""

    def __init__(self) -> None:
        # Series that double the text, and are of no use here; the switch is the whole process's.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._metrics = CollectorRegistry()
        ProcessCollector(registry=self._metrics)
        Gauge(
            "roundhouse_build_info",
            "Always 1; the labels name the software.",
            ("version", "python", "platform"),
            registry=self._metrics,
        ).labels(VERSION, platform.python_version(), platform.platform()).set(1)
        self._counters = {
            name: Counter(f"roundhouse_{name}", about, labels.split(), registry=self._metrics)
            for name, (labels, about) in COUNTERS.items()
        }
        self._histograms = {
            name: Histogram(
                f"roundhouse_{name}", about, ("model",), buckets=bounds, registry=self._metrics
            )
            for name, (bounds, about) in HISTOGRAMS.items()
        }
        self.send_timed_out = self._counters["send_timeouts"].inc
        self._counters["refused_requests"].labels("key_wrong")
        self._llama = LlamaMetrics()
        self._statuses: Callable[[], Sequence[ModelStatus]] = tuple
        self.started = int(time.time())  # Unix time

    def watch(
        self, registry: Registry, keys: Callable[[], Mapping[str, int]], turns: TurnCounts
    ) -> None:
        """Add what is as it is at each scrape: the models in memory, memory by device, how many
        `keys` there are by role, failures by watcher, the upstreams' servers, what is kept of
        conversations, and what of their `turns` was cached.
        """
        self._statuses = registry.statuses

        def families() -> Iterator[Metric]:
            yield from _residents(registry.statuses())
            yield from _memory(registry.overview.ledger())
            yield _by("keys", "API keys; 0: none is needed.", "role", keys())
            text = "How often what watches something failed, and was begun again."
            yield _counts("watcher_failures", text, "watcher", registry.supervisor.failures)
            yield from _upstreams(registry.fleet.replicas())
            yield from _kept(registry.kept.store.counts())
            yield from _turns(turns)

        self._metrics.register(_AtScrape(families))

    def answered(self, report: RequestReport) -> None:
        """A request is over."""
        standing, usage = report.standing, report.usage
        model, api = standing.model, standing.api
        self._counters["requests"].labels(model, api, standing.outcome).inc()
        if report.is_fault:
            self._counters["failures"].labels(model, api).inc()
        key = report.access.label
        if key is not None:
            self._counters["key_requests"].labels(key).inc()
            if standing.outcome == RateLimited.code:
                self._counters["key_limited"].labels(key).inc()
        self._histograms["request_seconds"].labels(model).observe(standing.seconds)
        if standing.ttft is not None:
            self._histograms["time_to_first_token_seconds"].labels(model).observe(standing.ttft)
        if usage is not None or standing.queued_seconds or standing.load_seconds:
            self._histograms["queue_seconds"].labels(model).observe(standing.queued_seconds)
            self._histograms["load_wait_seconds"].labels(model).observe(standing.load_seconds)
        if usage is not None:
            self._count(model, usage)
            if key is not None:
                self._counters["key_tokens"].labels(key, "prompt").inc(usage.prompt_tokens)
                self._counters["key_tokens"].labels(key, "completion").inc(usage.completion_tokens)
            self._llama.count(usage)

    def gaps(self, model: str) -> Callable[[float], object]:
        """Takes the seconds between two pieces of an answer of `model`, each as it comes."""
        return self._histograms["inter_token_seconds"].labels(model).observe

    def _count(self, model: str, usage: Usage) -> None:
        kinds = {
            "prompt": usage.computed_tokens,
            "cached": usage.cached_tokens,
            "completion": usage.completion_tokens - usage.reasoning_tokens,
            "reasoning": usage.reasoning_tokens,
        }
        for kind, tokens in kinds.items():
            self._counters["tokens"].labels(model, kind).inc(max(0, tokens))
        if usage.drafted_tokens:
            self._counters["draft_tokens"].labels(model, "drafted").inc(usage.drafted_tokens)
            self._counters["draft_tokens"].labels(model, "accepted").inc(usage.accepted_tokens)
        if usage.marked:
            self._counters["marked_answers"].labels(model).inc(usage.marked)
        self._histograms["prompt_tokens"].labels(model).observe(usage.prompt_tokens)
        self._histograms["cached_tokens"].labels(model).observe(usage.cached_tokens)
        self._histograms["completion_tokens"].labels(model).observe(usage.completion_tokens)

    def on_model_event(self, event: ModelEvent) -> None:
        """A model came or went, or did not come."""
        match event:
            case ModelLoaded(model, seconds):
                self._histograms["load_seconds"].labels(model).observe(seconds)
            case ModelLoadFailed(model, _, reason):
                why = "cancelled" if reason is None else "failed"
                self._counters["load_failures"].labels(model, why).inc()
            case ModelUnloaded(model, seconds, why):
                self._histograms["unload_seconds"].labels(model).observe(seconds)
                self._counters["unloads"].labels(model, why).inc()
                if why in ("room", "idle"):
                    self._counters["evictions"].labels(model, why).inc()
            case ModelProgressed():
                pass

    def refused(self, reason: str) -> None:
        """A request was refused."""
        self._counters["refused_requests"].labels(reason).inc()

    def begin(self, routes: Iterable[tuple[str, str]]) -> None:
        """Methods and routes. A series that begins with its first failure has never increased; so
        it is with whatever an alert waits for.
        """
        for method, route in routes:
            self._counters["http_requests"].labels(method, route, 500)

    def requested(self, method: str, route: str, status: int) -> None:
        """A request to one of our routes is over."""
        self._counters["http_requests"].labels(method, route, status).inc()

    def text(self, *, llama_names: bool = False) -> bytes:
        """Prometheus' text format. `llama_names`: with llama-server's names beside ours."""
        statuses = self._statuses()
        for status in statuses:
            self._counters["load_failures"].labels(status.id, "failed")
            self._counters["evictions"].labels(status.id, "room")
        ours = generate_latest(self._metrics)
        theirs = _AtScrape(lambda: self._llama.families(statuses))
        return ours + generate_latest(theirs) if llama_names else ours


class _AtScrape(Collector):
    """What is read when it is asked for; not when it is registered, for it may not run yet."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families()


def _residents(statuses: Sequence[ModelStatus]) -> Iterator[Metric]:
    """Models in memory."""
    there = [one for one in statuses if one.info is not None]
    yield GaugeMetricFamily("roundhouse_resident_models", "Models in memory.", len(there))
    sizes = {one.id: one.need.total if one.need else 0 for one in there}
    yield _by("resident_bytes", "Memory of each model, as measured or estimated.", "model", sizes)
    waiting = {one.id: one.waiting for one in statuses}
    yield _by("waiting", "Queued requests.", "model", waiting)
    yield _by("in_use", "Answers in progress.", "model", {one.id: one.in_use for one in statuses})


def _memory(ledger: Ledger) -> Iterator[Metric]:
    free = dict(ledger.budgets)
    for held in ledger.held:
        free[held.device] = free.get(held.device, 0) - held.size
    yield _by("memory_budget_bytes", "Memory budget for models.", "device", ledger.budgets)
    yield _by("memory_free_bytes", "Free part of the budget.", "device", free)


def _upstreams(replicas: Mapping[str, Sequence[Replica]]) -> Iterator[Metric]:
    """A server is named by its place: not everybody who reads this may know where it is."""
    servers = {
        (name, str(place)): one
        for name, servers in replicas.items()
        for place, one in enumerate(servers, 1)
    }
    labels = "upstream server"
    up = {at: one.state == "up" and not (one.silent or one.draining) for at, one in servers.items()}
    faults = {
        (*at, kind): count for at, one in servers.items() for kind, count in one.failures.items()
    }
    yield _by("upstream_up", "Whether the server answers and gets requests.", labels, up)
    busy = {at: one.busy for at, one in servers.items()}
    yield _by("upstream_in_use", "Requests there.", labels, busy)
    asked = {at: one.asked for at, one in servers.items()}
    yield _counts("upstream_requests", "Requests sent there.", labels, asked)
    failed = {at: one.failed for at, one in servers.items()}
    yield _counts("upstream_failures", "Those of them that failed there.", labels, failed)
    text = "The same by kind: refused, no_address, certificate, timeout, cut, or a status."
    yield _counts("upstream_faults", text, f"{labels} kind", faults)


def _kept(counts: KeptCounts) -> Iterator[Metric]:
    """The store of kept conversations."""
    yield GaugeMetricFamily("roundhouse_kept_entries", "Kept conversations.", counts.entries)
    sizes = {"memory": counts.memory, "disk": counts.disk}
    yield _by("kept_bytes", "What kept conversations take.", "tier", sizes)
    limits = {"memory": counts.memory_limit, "disk": counts.disk_limit}
    yield _by("kept_limit_bytes", "What they may take now.", "tier", limits)
    yield _counts("kept_hits", "Prompts that went on from a kept one.", "tier", counts.hits)
    tokens = {tier: counts.tokens[tier] for tier in counts.hits}
    yield _counts("kept_tokens", "Their tokens that weren't computed.", "tier", tokens)
    yield CounterMetricFamily(
        "roundhouse_kept_saved_seconds", "What computing these would have taken.", counts.seconds
    )


def _turns(counts: TurnCounts) -> Iterator[Metric]:
    """Conversations' hit rates and partings."""
    tokens = {
        (model, kind): number
        for model, count in counts.prompt.items()
        for kind, number in (("prompt", count), ("cached", counts.cached[model]))
    }
    yield _counts(
        "turn_tokens",
        "Prompt tokens of conversations' turns behind the first, and of them the cached ones.",
        "model kind",
        tokens,
    )
    yield _counts(
        "prompt_partings",
        "Turns whose prompt doesn't go on from the one before, by what changed: tools, system, "
        "message, template.",
        "model what",
        counts.partings,
    )


Values: TypeAlias = Mapping[Any, float]  # by the label, or several


def _family(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    about: str,
    labels: str,
    values: Values,
) -> Metric:
    family = kind(f"roundhouse_{name}", about, labels=labels.split())
    for at, value in values.items():
        family.add_metric([at] if isinstance(at, str) else at, value)
    return family


_by, _counts = partial(_family, GaugeMetricFamily), partial(_family, CounterMetricFamily)
