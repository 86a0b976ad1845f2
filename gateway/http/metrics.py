"""`GET /metrics` for Prometheus: our numbers, each model's, and llama-server's by its own names,
for its dashboards, over all models and without labels. Counts what is reported; it measures nothing
itself.

Each server has its own registry of metrics, so two in one process don't share numbers. Gaps between
tokens arrive counted by bucket already: a call for each token would cost more than its own way
through the gateway. What llama-server counts of its decoding (`n_decode_total`,
`n_busy_slots_per_decode`) is not known above the engines, and left out.
"""

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from itertools import accumulate
from typing import Literal

import msgspec
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from backends.places.kept.store import KeptCounts
from backends.places.upstream.replicas import Replica
from gateway.answers.turns import TurnCounts
from gateway.http.standing import GAPS, RequestReport
from gateway.registry import (
    ModelEvent,
    ModelLoaded,
    ModelLoadFailed,
    ModelProgressed,
    ModelStatus,
    ModelUnloaded,
)
from gateway.registry.overview import Ledger
from gateway.terms.errors import RateLimited
from gateway.terms.events import Usage


class LlamaMetric(msgspec.Struct, frozen=True):
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
        self._drafted = self._accepted = 0
        self._steps = 0  # of answers: the first token comes with the prompt
        self._statuses: Callable[[], Sequence[ModelStatus]] = tuple

    def watch(self, statuses: Callable[[], Sequence[ModelStatus]]) -> None:
        """Add running and waiting requests, as they are at each scrape."""
        self._statuses = statuses

    def count(self, usage: Usage) -> None:
        """An answer is over."""
        self._prompt += usage.prompt_tokens - usage.cached_tokens
        self._cached += usage.cached_tokens
        self._predicted += usage.completion_tokens
        self._drafted += usage.drafted_tokens
        self._accepted += usage.accepted_tokens
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

    def _numbers(self) -> Iterator[LlamaMetric]:
        statuses = [one for one in self._statuses() if not one.is_replica]
        reading, writing = self._prompt_seconds, self._predicted_seconds
        yield LlamaMetric("prompt_tokens_total", "counter", "Prompt tokens computed.", self._prompt)
        yield LlamaMetric(
            "prompt_tokens_cached_total", "counter", "Prompt tokens found cached.", self._cached
        )
        yield LlamaMetric(
            "prompt_seconds_total", "counter", "Seconds of computing prompts.", reading
        )
        yield LlamaMetric("tokens_predicted_total", "counter", "Tokens generated.", self._predicted)
        yield LlamaMetric(
            "tokens_predicted_seconds_total", "counter", "Seconds of generating.", writing
        )
        yield LlamaMetric(
            "n_tokens_max", "counter", "The longest prompt and answer.", self._longest
        )
        yield LlamaMetric(
            "spec_decode_num_draft_tokens_total", "counter", "Tokens drafted.", self._drafted
        )
        yield LlamaMetric(
            "spec_decode_num_accepted_tokens_total",
            "counter",
            "Drafted tokens that came.",
            self._accepted,
        )
        yield LlamaMetric(
            "prompt_tokens_seconds",
            "gauge",
            "Prompt tokens computed in a second.",
            _rate(self._prompt, reading),
        )
        yield LlamaMetric(
            "predicted_tokens_seconds",
            "gauge",
            "Tokens generated in a second.",
            _rate(self._steps, writing),
        )
        running = sum(status.in_use for status in statuses)
        waiting = sum(status.waiting for status in statuses)
        yield LlamaMetric("requests_processing", "gauge", "Requests under way.", running)
        yield LlamaMetric("requests_deferred", "gauge", "Queued requests.", waiting)


def _rate(count: int, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

_SHORT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_ANSWERS = (*_SHORT, 300.0, 600.0, 1800.0, 3600.0)
_LONG = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
_LENGTHS = tuple(float(2**power) for power in range(4, 19))  # tokens, 16 to 262,144


class Metrics:
    """One per server. `on_model_event` is for `Registry(watch=…)`, `answered` for accounts."""

    def __init__(self) -> None:
        self._metrics = _Families()
        ProcessCollector(registry=self._metrics)
        Gauge(
            "roundhouse_build_info",
            "Always 1; the labels name the software.",
            ("version", "python", "platform"),
            registry=self._metrics,
        ).labels(version("roundhouse"), platform.python_version(), platform.platform()).set(1)
        self._requests = Counter(
            "roundhouse_requests",
            "Requests by outcome: ok, left (the client went away), send_timeout (it didn't read), "
            "or an error's code.",
            ("model", "api", "outcome"),
            registry=self._metrics,
        )
        self._faults = Counter(
            "roundhouse_failures",
            "Requests of these that failed through no fault of their clients.",
            ("model", "api"),
            registry=self._metrics,
        )
        self._key_requests = Counter(
            "roundhouse_key_requests",
            "Requests by the label of their key.",
            ("key",),
            registry=self._metrics,
        )
        self._key_tokens = Counter(
            "roundhouse_key_tokens",
            "Tokens by the label of the key: prompt (cached ones, too) and completion.",
            ("key", "kind"),
            registry=self._metrics,
        )
        self._key_limited = Counter(
            "roundhouse_key_limited",
            "Requests that the limits of their key refused, by its label.",
            ("key",),
            registry=self._metrics,
        )
        self._tokens = Counter(
            "roundhouse_tokens",
            "Tokens, each of one kind: prompt (computed), cached (of prompts, found in the cache), "
            "completion (of answers), reasoning (before them).",
            ("model", "kind"),
            registry=self._metrics,
        )
        self._drafts = Counter(
            "roundhouse_draft_tokens",
            "Tokens that were drafted to come next: drafted (all), accepted (those that came).",
            ("model", "kind"),
            registry=self._metrics,
        )
        self._queued = self._times("queue_seconds", "Seconds in the model's queue.", _SHORT)
        self._waited = self._times(
            "load_wait_seconds", "Seconds of waiting for the model's load.", _LONG
        )
        self._first = self._times("time_to_first_token_seconds", "Request to first token.", _SHORT)
        self._whole = self._times("request_seconds", "Request to end of answer.", _ANSWERS)
        self._prompts = self._lengths("prompt_tokens", "Length of a request's prompts.")
        self._cached = self._lengths("cached_tokens", "What of them was found in the cache.")
        self._answers = self._lengths("completion_tokens", "Length of a request's answers.")
        self._loads = self._times("load_seconds", "Loads that went well.", _LONG)
        self._unloads = self._times("unload_seconds", "Unloads.", _SHORT)
        self._failures = Counter(
            "roundhouse_load_failures",
            "Loads that failed, or were cancelled because no request was waiting any more.",
            ("model", "why"),
            registry=self._metrics,
        )
        self._evictions = Counter(
            "roundhouse_evictions",
            "Models unloaded for the memory of another, or because they were idle.",
            ("model", "reason"),
            registry=self._metrics,
        )
        self._gone = Counter(
            "roundhouse_unloads",
            "Unloads by reason: room, idle, asked (by an administrator), broken, budget (was cut), "
            "config (it changed).",
            ("model", "reason"),
            registry=self._metrics,
        )
        self._refused = Counter(
            "roundhouse_refused_requests",
            "Requests that were not let in: key_missing, key_wrong, not_for_pages.",
            ("reason",),
            registry=self._metrics,
        )
        self._http = Counter(
            "roundhouse_http_requests",
            "Requests by route and status, 0 where the client left before an answer began.",
            ("method", "route", "status"),
            registry=self._metrics,
        )
        self._send_timeouts = Counter(
            "roundhouse_send_timeouts",
            "Clients cut off because they read nothing for server.send_timeout.",
            registry=self._metrics,
        )
        self._gaps = _Gaps()
        self._metrics.register(self._gaps)
        self._llama = LlamaMetrics()
        self.started = int(time.time())  # Unix time

    def watch(self, statuses: Callable[[], Sequence[ModelStatus]]) -> None:
        """Add the models in memory, as they are at each scrape."""
        self._metrics.register(_Residents(statuses))
        self._llama.watch(statuses)

    def watch_server(
        self,
        ledger: Callable[[], Ledger],
        replicas: Callable[[], Mapping[str, Sequence[Replica]]],
        keys: Callable[[], Mapping[str, int]],
        kept: Callable[[], KeptCounts],
        turns: TurnCounts,
        watchers: Mapping[str, int],
    ) -> None:
        """Add memory by device, the upstreams' servers, how many keys there are by role, what is
        kept of conversations, what of their turns was cached, and failures by watcher, as they are
        at each scrape.
        """
        self._metrics.register(_Server(ledger, replicas, keys, watchers))
        self._metrics.register(_Kept(kept))
        self._metrics.register(_Turns(turns))

    def answered(self, report: RequestReport) -> None:
        """A request is over."""
        model, usage = report.model, report.usage
        self._requests.labels(model, report.api, report.outcome).inc()
        if report.is_fault:
            self._faults.labels(model, report.api).inc()
        key = report.access.label
        if key is not None:
            self._key_requests.labels(key).inc()
            if report.outcome == RateLimited.code:
                self._key_limited.labels(key).inc()
        self._whole.labels(model).observe(report.seconds)
        if report.first is not None:
            self._first.labels(model).observe(report.first)
        if usage is not None or report.queued or report.loading:
            self._queued.labels(model).observe(report.queued)
            self._waited.labels(model).observe(report.loading)
        if usage is not None:
            self._gaps.add(model, report.gaps, report.gaps_seconds)
            self._count(model, usage)
            if key is not None:
                self._key_tokens.labels(key, "prompt").inc(usage.prompt_tokens)
                self._key_tokens.labels(key, "completion").inc(usage.completion_tokens)
            self._llama.count(usage)

    def _count(self, model: str, usage: Usage) -> None:
        kinds = {
            "prompt": usage.prompt_tokens - usage.cached_tokens,
            "cached": usage.cached_tokens,
            "completion": usage.completion_tokens - usage.reasoning_tokens,
            "reasoning": usage.reasoning_tokens,
        }
        for kind, tokens in kinds.items():
            self._tokens.labels(model, kind).inc(max(0, tokens))
        if usage.drafted_tokens:
            self._drafts.labels(model, "drafted").inc(usage.drafted_tokens)
            self._drafts.labels(model, "accepted").inc(usage.accepted_tokens)
        self._prompts.labels(model).observe(usage.prompt_tokens)
        self._cached.labels(model).observe(usage.cached_tokens)
        self._answers.labels(model).observe(usage.completion_tokens)

    def on_model_event(self, event: ModelEvent) -> None:
        """A model came or went, or did not come."""
        match event:
            case ModelLoaded(model, seconds):
                self._loads.labels(model).observe(seconds)
            case ModelLoadFailed(model, _, reason):
                self._failures.labels(model, "cancelled" if reason is None else "failed").inc()
            case ModelUnloaded(model, seconds, why):
                self._unloads.labels(model).observe(seconds)
                self._gone.labels(model, why).inc()
                if why in ("room", "idle"):
                    self._evictions.labels(model, why).inc()
            case ModelProgressed():
                pass

    def refused(self, reason: str) -> None:
        """A request was refused."""
        self._refused.labels(reason).inc()

    def begin(self, routes: Iterable[tuple[str, str]]) -> None:
        """Methods and routes. A series that begins with its first failure has never increased."""
        for method, route in routes:
            self._http.labels(method, route, 500)

    def requested(self, method: str, route: str, status: int) -> None:
        """A request to one of our routes is over."""
        self._http.labels(method, route, status).inc()

    def send_timed_out(self) -> None:
        """A client that doesn't read was cut off."""
        self._send_timeouts.inc()

    def text(self, *, llama_names: bool = False) -> bytes:
        """Prometheus' text format. `llama_names`: with llama-server's names beside ours."""
        ours = generate_latest(self._metrics)
        return ours + self._llama.text() if llama_names else ours

    def _times(self, name: str, description: str, bounds: Sequence[float]) -> Histogram:
        return Histogram(
            f"roundhouse_{name}", description, ("model",), buckets=bounds, registry=self._metrics
        )

    def _lengths(self, name: str, description: str) -> Histogram:
        return Histogram(
            f"roundhouse_{name}",
            description,
            ("model",),
            buckets=_LENGTHS,
            registry=self._metrics,
        )


class _Families(CollectorRegistry):
    """Without the `_created` series, which double the text and are of no use here. The library's
    own switch for them is one for the whole process.
    """

    def collect(self) -> Iterable[Metric]:
        for family in super().collect():
            family.samples = [
                sample for sample in family.samples if not sample.name.endswith("_created")
            ]
            yield family


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
        description = "Between two pieces of one answer."
        family = HistogramMetricFamily(
            "roundhouse_inter_token_seconds", description, labels=["model"]
        )
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
        yield _by_model("waiting", "Queued requests.", waiting)
        yield _by_model("in_use", "Answers in progress.", {one.id: one.in_use for one in statuses})

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not ask a registry that isn't running yet."""
        return ()


class _Server(Collector):
    """Memory, upstreams and keys, read when they are asked for."""

    def __init__(
        self,
        ledger: Callable[[], Ledger],
        replicas: Callable[[], Mapping[str, Sequence[Replica]]],
        keys: Callable[[], Mapping[str, int]],
        watchers: Mapping[str, int],
    ) -> None:
        self._ledger = ledger
        self._replicas = replicas
        self._keys = keys
        self._watchers = watchers

    def collect(self) -> Iterable[Metric]:
        ledger = self._ledger()
        free = dict(ledger.budgets)
        for held in ledger.held:
            free[held.device] = free.get(held.device, 0) - held.size
        yield _by("memory_budget_bytes", "Memory budget for models.", "device", ledger.budgets)
        yield _by("memory_free_bytes", "Free part of the budget.", "device", free)
        yield _by("keys", "API keys; 0: none is needed.", "role", self._keys())
        failures = CounterMetricFamily(
            "roundhouse_watcher_failures",
            "How often what watches something failed, and was begun again.",
            labels=["watcher"],
        )
        for watcher, count in self._watchers.items():
            failures.add_metric([watcher], count)
        yield failures
        yield from self._upstreams()

    def _upstreams(self) -> Iterable[Metric]:
        """A server is named by its place: not everybody who reads this may know where it is."""
        labels = ("upstream", "server")
        up = GaugeMetricFamily(
            "roundhouse_upstream_up", "Whether the server answers and gets requests.", labels=labels
        )
        busy = GaugeMetricFamily("roundhouse_upstream_in_use", "Requests there.", labels=labels)
        asked = CounterMetricFamily(
            "roundhouse_upstream_requests", "Requests sent there.", labels=labels
        )
        failed = CounterMetricFamily(
            "roundhouse_upstream_failures", "Those of them that failed there.", labels=labels
        )
        faults = CounterMetricFamily(
            "roundhouse_upstream_faults",
            "The same by kind: refused, no_address, certificate, timeout, cut, or a status.",
            labels=(*labels, "kind"),
        )
        for name, servers in self._replicas().items():
            for place, one in enumerate(servers, 1):
                where = [name, str(place)]
                up.add_metric(where, one.state == "up" and not (one.silent or one.draining))
                busy.add_metric(where, one.busy)
                asked.add_metric(where, one.asked)
                failed.add_metric(where, one.failed)
                for kind, count in one.failures.items():
                    faults.add_metric([*where, kind], count)
        return up, busy, asked, failed, faults

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not ask a registry that isn't running yet."""
        return ()


class _Kept(Collector):
    """The store of kept conversations, read when it is asked for."""

    def __init__(self, counts: Callable[[], KeptCounts]) -> None:
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        counts = self._counts()
        yield GaugeMetricFamily("roundhouse_kept_entries", "Kept conversations.", counts.entries)
        sizes = {"memory": counts.memory, "disk": counts.disk}
        yield _by("kept_bytes", "What kept conversations take.", "tier", sizes)
        limits = {"memory": counts.memory_limit, "disk": counts.disk_limit}
        yield _by("kept_limit_bytes", "What they may take now.", "tier", limits)
        hits = CounterMetricFamily(
            "roundhouse_kept_hits", "Prompts that went on from a kept one.", labels=["tier"]
        )
        tokens = CounterMetricFamily(
            "roundhouse_kept_tokens", "Their tokens that weren't computed.", labels=["tier"]
        )
        for tier, count in counts.hits.items():
            hits.add_metric([tier], count)
            tokens.add_metric([tier], counts.tokens[tier])
        yield hits
        yield tokens
        yield CounterMetricFamily(
            "roundhouse_kept_saved_seconds",
            "What computing these would have taken.",
            counts.seconds,
        )

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not ask a store that isn't there yet."""
        return ()


class _Turns(Collector):
    """Conversations' hit rates and partings, read when they are asked for."""

    def __init__(self, counts: TurnCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterable[Metric]:
        tokens = CounterMetricFamily(
            "roundhouse_turn_tokens",
            "Prompt tokens of conversations' turns behind the first, and of them the cached ones.",
            labels=["model", "kind"],
        )
        for model, count in self._counts.prompt.items():
            tokens.add_metric([model, "prompt"], count)
            tokens.add_metric([model, "cached"], self._counts.cached[model])
        yield tokens
        partings = CounterMetricFamily(
            "roundhouse_prompt_partings",
            "Turns whose prompt doesn't go on from the one before, by what changed: tools, system, "
            "message, template.",
            labels=["model", "what"],
        )
        for (model, what), count in self._counts.partings.items():
            partings.add_metric([model, what], count)
        yield partings


def _by_model(name: str, description: str, values: Mapping[str, int]) -> Metric:
    return _by(name, description, "model", values)


def _by(name: str, description: str, label: str, values: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(f"roundhouse_{name}", description, labels=[label])
    for one, value in values.items():
        family.add_metric([one], value)
    return family
