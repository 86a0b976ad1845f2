"""Traces by OpenTelemetry's SDK, sent as OTLP over HTTP by a thread of its own. See
`gateway.http.tracing`. A provider of this server's own: the process's global one is left alone.
"""

import time
from collections.abc import Iterator, Mapping

import msgspec
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from backends.contract.remote import Caller
from config.settings import TracingConfig
from gateway.http.standing import RequestReport, RequestStanding

LAST_EXPORT = 2000  # milliseconds that the last spans are waited for when the server stops
PATIENCE = 5.0  # seconds for one export


class OpenTelemetry:
    """A `Tracing`."""

    def __init__(
        self, config: TracingConfig, version: str, exporter: SpanExporter | None = None
    ) -> None:
        """`exporter`: in place of OTLP to the configured endpoint."""
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(config.sample)),
            resource=Resource.create({"service.name": config.service, "service.version": version}),
            shutdown_on_exit=False,
        )
        sent = exporter or OTLPSpanExporter(
            endpoint=config.endpoint, headers=dict(config.headers), timeout=PATIENCE
        )
        self._provider.add_span_processor(BatchSpanProcessor(sent))
        self._tracer = self._provider.get_tracer("roundhouse", version)
        self._context = TraceContextTextMapPropagator()

    def begin(self, api: str, caller: Caller) -> "RequestSpan":
        """See `Tracing.begin`."""
        above = self._context.extract(caller.trace)
        facts = {"roundhouse.request": caller.request_id}
        span = self._tracer.start_span(api, above, SpanKind.SERVER, facts)
        headers: dict[str, str] = {}
        self._context.inject(headers, set_span_in_context(span))
        return RequestSpan(self._tracer, span, headers)

    def close(self) -> None:
        """See `Tracing.close`."""
        self._provider.force_flush(LAST_EXPORT)
        self._provider.shutdown()


class RequestSpan(msgspec.Struct, frozen=True):
    """A `Trace`."""

    tracer: Tracer
    span: Span
    headers: Mapping[str, str]

    def served_by(self, upstream: str, url: str) -> None:
        """See `Trace.served_by`."""
        self.span.set_attributes({"roundhouse.upstream": upstream, "server.address": url})

    def end(self, report: RequestReport) -> None:
        """See `Trace.end`."""
        end, standing = time.time_ns(), report.standing
        began, context = end - _ns(standing.seconds), set_span_in_context(self.span)
        for name, first, last in stages(standing):
            child = self.tracer.start_span(name, context, start_time=began + _ns(first))
            child.end(began + _ns(last))
        self.span.update_name(f"{standing.api} {standing.model}".strip())
        self.span.set_attributes(dict(attributes(report)))
        if report.is_fault:
            self.span.set_status(Status(StatusCode.ERROR, standing.outcome))
        self.span.end(end)


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


def stages(standing: RequestStanding) -> Iterator[tuple[str, float, float]]:
    """The spans below a request's, by seconds since its beginning: when each began and ended."""
    queued, first = standing.queued_seconds, standing.ttft
    waited = queued + standing.load_seconds
    if queued > 0:
        yield "wait", 0.0, queued
    if standing.load_seconds > 0:
        yield "load", queued, waited
    if first is not None:
        yield "prefill", min(waited, first), first
        yield "answer", first, standing.seconds


def attributes(report: RequestReport) -> Iterator[tuple[str, str | int]]:
    """What is told of a request, by OpenTelemetry's names for generative models where there are."""
    standing = report.standing
    yield "gen_ai.operation.name", standing.api
    yield "gen_ai.response.model", standing.model
    yield "roundhouse.outcome", standing.outcome or ""
    if standing.key is not None:
        yield "roundhouse.key", standing.key
    if report.usage is not None:
        yield "gen_ai.usage.input_tokens", standing.prompt_tokens
        yield "gen_ai.usage.output_tokens", standing.completion_tokens
        yield "roundhouse.cached_tokens", standing.cached_tokens
