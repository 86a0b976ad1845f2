"""One request through two Roundhouses is one trace, sent to a collector over OTLP."""

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.served import scripted, served

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
HELLO: list[Any] = [{"role": "user", "content": "A secret question"}]


class Collector:
    """A small receiver of OTLP over HTTP: spans by service."""

    def __init__(self) -> None:
        self.spans: dict[str, list[Span]] = {}
        self.bodies = b""
        self.keys: set[str] = set()
        self.url = ""

    def take(self, body: bytes, key: str) -> None:
        self.bodies += body
        self.keys.add(key)
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = {one.key: one.value.string_value for one in group.resource.attributes}
            found = [span for scope in group.scope_spans for span in scope.spans]
            self.spans.setdefault(names["service.name"], []).extend(found)


@contextmanager
def collecting() -> Iterator[Collector]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            packed = self.headers.get("content-encoding") == "gzip"
            collector.take(gzip.decompress(body) if packed else body, self.headers["x-key"])
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        collector.url = f"http://127.0.0.1:{server.server_port}/v1/traces"
        yield collector
        server.shutdown()


def facts(span: Span) -> dict[str, Any]:
    return {one.key: one.value.string_value or one.value.int_value for one in span.attributes}


def test_a_request_through_two_servers_is_one_trace(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("door", "box")]
    for folder in folders:
        folder.mkdir()
    with collecting() as collector:

        def tracing(name: str) -> dict[str, Any]:
            return {"endpoint": collector.url, "service": name, "headers": {"x-key": "collectors"}}

        inside = {
            "models": [scripted(folders[1], "m", "An answer nobody else reads.", load_seconds=0.2)],
            "tracing": tracing("box"),
        }
        with served(folders[1], inside) as box:
            outside = {
                "upstreams": [{"name": "cluster", "urls": [f"{box.url}/v1"], "models": {"m": "m"}}],
                "keys": [{"key": "a-users-key", "label": "laptop"}],
                "tracing": tracing("door"),
            }
            with served(folders[0], outside) as door:
                headers = {
                    "authorization": "Bearer a-users-key",
                    "traceparent": f"00-{TRACE}-{SPAN}-01",
                }
                body = {"model": "m", "messages": HELLO, "stream": True}
                answer = door.client.post("/v1/chat/completions", json=body, headers=headers)
                assert answer.status_code == 200
            # It has stopped, and sent all of its spans.
            (first,) = (span for span in collector.spans["door"] if span.name == "chat m")
        (second,) = (span for span in collector.spans["box"] if span.name == "chat m")

    everything = [*collector.spans["door"], *collector.spans["box"]]
    assert {span.trace_id.hex() for span in everything} == {TRACE}
    assert first.parent_span_id.hex() == SPAN
    assert second.parent_span_id == first.span_id, "the box's request belongs to the door's"
    for whole, name in ((first, "door"), (second, "box")):
        below = [span for span in collector.spans[name] if span.parent_span_id == whole.span_id]
        assert {"prefill", "answer"} <= {span.name for span in below}
        ends = [(span.start_time_unix_nano, span.end_time_unix_nano) for span in below]
        assert all(begin <= end <= whole.end_time_unix_nano for begin, end in ends)
    assert "load" in {span.name for span in everything}
    told = facts(first)
    assert told["roundhouse.key"] == "laptop"
    assert told["roundhouse.upstream"] == "cluster"
    assert told["server.address"] == f"{box.url}/v1"
    assert told["gen_ai.response.model"] == "m"
    assert told["gen_ai.usage.output_tokens"] == facts(second)["gen_ai.usage.output_tokens"] > 0
    assert collector.keys == {"collectors"}
    for secret in (b"a-users-key", b"secret question", b"nobody else reads"):
        assert secret not in collector.bodies


def test_a_collector_that_is_away_stops_no_answer(tmp_path: Path) -> None:
    config = {
        "models": [scripted(tmp_path, "m")],
        "tracing": {"endpoint": "http://127.0.0.1:9/v1/traces"},
    }
    with served(tmp_path, config, expected=("Failed to export", "export")) as server:
        body = {"model": "m", "messages": HELLO}
        assert server.client.post("/v1/chat/completions", json=body).status_code == 200
        assert server.stop() == 0


def test_without_tracing_a_trace_goes_on_to_the_next_server(tmp_path: Path) -> None:
    (tmp_path / "box").mkdir()
    with collecting() as collector:
        tracing = {"endpoint": collector.url, "service": "box", "headers": {"x-key": "k"}}
        inside = {"models": [scripted(tmp_path / "box", "m")], "tracing": tracing}
        with served(tmp_path / "box", inside) as box:
            outside = {
                "upstreams": [{"name": "c", "urls": [f"{box.url}/v1"], "models": {"m": "m"}}]
            }
            with served(tmp_path, outside) as door:
                body = {"model": "m", "messages": HELLO}
                parent = {"traceparent": f"00-{TRACE}-{SPAN}-01"}
                answer = door.client.post("/v1/chat/completions", json=body, headers=parent)
                assert answer.status_code == 200
        (whole,) = (span for span in collector.spans["box"] if span.name == "chat m")
    assert (whole.trace_id.hex(), whole.parent_span_id.hex()) == (TRACE, SPAN)
