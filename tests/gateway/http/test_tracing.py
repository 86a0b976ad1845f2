"""Spans of requests, by the SDK's own exporter in memory and without the SDK."""

import subprocess
import sys
from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, format_span_id, format_trace_id

from backends.contract.remote import Caller
from config.settings import TracingConfig
from gateway.http.otel import OpenTelemetry, stages
from gateway.http.request_record import RequestRecord
from gateway.http.standing import RequestReport, RequestStanding
from gateway.http.tracing import trace_headers
from gateway.keys.access import Access
from gateway.terms.events import Usage

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"


def standing(**changed: Any) -> RequestStanding:
    record = RequestRecord("r")
    record.asks("chat", "m", "m", Access(label="laptop"))
    facts: dict[str, Any] = {
        "seconds": 10.0,
        "queued_seconds": 1.0,
        "load_seconds": 2.0,
        "ttft": 4.0,
        "prompt_tokens": 7,
        "completion_tokens": 3,
    }
    return replace(record.end("ok", is_fault=False).standing, **{**facts, **changed})


def report(*, is_fault: bool = False, **changed: Any) -> RequestReport:
    usage = Usage(prompt_tokens=7, completion_tokens=3)
    return RequestReport(standing=standing(**changed), usage=usage, is_fault=is_fault)


def spans(config: TracingConfig, caller: Caller, told: RequestReport) -> list[ReadableSpan]:
    memory = InMemorySpanExporter()
    tracing = OpenTelemetry(config, "1", memory)
    trace = tracing.begin("chat", caller)
    trace.served_by("cluster", "http://gpu1/v1")
    trace.end(told)
    tracing.close()
    return list(memory.get_finished_spans())


def test_a_request_is_a_span_with_its_stages_below() -> None:
    *below, whole = spans(TracingConfig(), Caller(request_id="r"), report())
    assert [span.name for span in below] == ["wait", "load", "prefill", "answer"]
    assert whole.name == "chat m"
    assert whole.context is not None
    assert all(span.parent == whole.context for span in below)
    ends = [((span.end_time or 0) - (whole.end_time or 0)) / 1e9 for span in below]
    assert [round(10 + end, 3) for end in ends] == [1, 3, 4, 10]
    assert whole.attributes is not None
    assert {**whole.attributes} == {
        "roundhouse.request": "r",
        "roundhouse.upstream": "cluster",
        "server.address": "http://gpu1/v1",
        "gen_ai.operation.name": "chat",
        "gen_ai.response.model": "m",
        "roundhouse.outcome": "ok",
        "roundhouse.key": "laptop",
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 3,
        "roundhouse.cached_tokens": 0,
    }


def test_the_callers_span_is_the_parent_and_ours_is_handed_on() -> None:
    memory = InMemorySpanExporter()
    tracing = OpenTelemetry(TracingConfig(), "1", memory)
    given = trace_headers({"traceparent": PARENT, "tracestate": "vendor=1"})
    trace = tracing.begin("chat", Caller(trace=given))
    trace.end(report())
    tracing.close()
    whole = memory.get_finished_spans()[-1]
    assert whole.context is not None
    assert whole.parent is not None
    assert format_trace_id(whole.context.trace_id) == TRACE
    assert format_span_id(whole.parent.span_id) == SPAN
    ours = format_span_id(whole.context.span_id)
    assert trace.headers == {"traceparent": f"00-{TRACE}-{ours}-01", "tracestate": "vendor=1"}


@pytest.mark.parametrize("sent", ["", "nonsense", "00-0-0-00", "ü" * 55, "0" * 10_000])
def test_a_parent_that_is_none_begins_a_new_trace(sent: str) -> None:
    *_, whole = spans(TracingConfig(), Caller(trace=trace_headers({"traceparent": sent})), report())
    assert whole.parent is None


def test_what_is_not_sampled_is_not_sent_but_a_sampled_parent_is_followed() -> None:
    config = TracingConfig(sample=0.0)
    assert spans(config, Caller(), report()) == []
    assert spans(config, Caller(trace={"traceparent": PARENT}), report())


def test_a_fault_is_an_error_and_a_clients_mistake_is_none() -> None:
    *_, fault = spans(TracingConfig(), Caller(), report(outcome="internal_error", is_fault=True))
    *_, mistake = spans(TracingConfig(), Caller(), report(outcome="model_not_found"))
    assert fault.status.status_code == StatusCode.ERROR
    assert mistake.status.status_code == StatusCode.UNSET


def test_a_request_that_never_began_to_answer_has_only_waited() -> None:
    told = standing(ttft=None, load_seconds=0.0)
    assert [*stages(told)] == [("wait", 0.0, 1.0)]


def test_the_sdk_is_imported_only_where_traces_are_configured() -> None:
    code = (
        "import sys, gateway.serving.app, gateway.cli.serve\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
        "sys.modules['opentelemetry.sdk'] = None\n"  # as where it isn't installed
        "from config.errors import ConfigError\n"
        "from config.settings import TracingConfig\n"
        "from gateway.http.tracing import tracing_of\n"
        "assert tracing_of(TracingConfig(), '1') is None\n"
        "try: tracing_of(TracingConfig(endpoint='http://x'), '1')\n"
        "except ConfigError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "scripts/install otel" in done.stdout
