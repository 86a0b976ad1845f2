"""What Anthropic's API says, as events; by way of respx where it is a whole response."""

from collections.abc import Sequence
from typing import Any

import httpx
import msgspec
import pytest
import respx

from backends.contract.conversation import Message, TextPart
from backends.contract.errors import UpstreamError
from backends.contract.remote import (
    RemoteCall,
    RemoteChat,
    RemoteDelta,
    RemoteEvent,
    RemoteText,
    RemoteUsage,
)
from backends.places.upstream.messages import MessagesReader, Signatures
from backends.places.upstream.upstream import Upstream, UpstreamModel, client_of
from config.upstreams import UpstreamConfig

pytestmark = pytest.mark.anyio


def read(*events: Any, kept: Signatures | None = None) -> list[RemoteEvent]:
    reader = MessagesReader(kept or Signatures())
    found = [one for event in events for one in reader.read(msgspec.json.encode(event))]
    assert reader.is_whole
    return found


def block(index: int, begun: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    grown = [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
    start = {"type": "content_block_start", "index": index, "content_block": begun}
    return [start, *grown, {"type": "content_block_stop", "index": index}]


START = {
    "type": "message_start",
    "message": {"usage": {"input_tokens": 5, "cache_read_input_tokens": 7, "output_tokens": 1}},
}
END = {
    "type": "message_delta",
    "delta": {"stop_reason": "end_turn", "stop_sequence": None},
    "usage": {"output_tokens": 9},
}
STOP = {"type": "message_stop"}
SAID = block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Hi"})
USED = RemoteUsage(prompt_tokens=12, cached_tokens=7, completion_tokens=9)


def test_thinking_text_and_usage() -> None:
    kept = Signatures()
    thought = block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "Let me "},
        {"type": "thinking_delta", "thinking": "see."},
        {"type": "signature_delta", "signature": "sig"},
    )
    said = block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Seen."})
    ping = {"type": "ping"}
    assert read(START, ping, *thought, *said, END, STOP, kept=kept) == [
        RemoteDelta(reasoning="Let me "),
        RemoteDelta(reasoning="see."),
        RemoteDelta(content="Seen."),
        RemoteDelta(finished="stop"),
        USED,
    ]
    assert kept.of("Let me see.") == "sig"


def test_calls_whose_arguments_come_in_pieces_at_once_or_not_at_all() -> None:
    pieces = [{"type": "input_json_delta", "partial_json": text} for text in ("", '{"a":', "1}")]
    use = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    searched = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    end = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}
    events = read(
        *block(0, use, *pieces),
        *block(1, searched, {"type": "input_json_delta", "partial_json": '{"q": 1}'}),
        *block(2, {**use, "id": "t2", "input": {"b": 2}}),
        *block(3, {**use, "id": "t3"}),
        end,
    )
    calls = [call for event in events if isinstance(event, RemoteDelta) for call in event.calls]
    assert calls == [
        RemoteCall(0, "t1", "look"),
        RemoteCall(0, arguments='{"a":'),
        RemoteCall(0, arguments="1}"),
        RemoteCall(1, "t2", "look"),
        RemoteCall(1, arguments='{"b":2}'),
        RemoteCall(2, "t3", "look"),
        RemoteCall(2, arguments="{}"),
    ]
    assert events[-2] == RemoteDelta(finished="tool_calls")


@pytest.mark.parametrize(
    ("reason", "stop", "expected"),
    [
        ("end_turn", None, RemoteDelta(finished="stop")),
        ("stop_sequence", "\n", RemoteDelta(finished="stop", stop="\n")),
        ("max_tokens", None, RemoteDelta(finished="length")),
        ("refusal", None, RemoteDelta(finished="content_filter")),
        ("pause_turn", None, RemoteDelta(finished="stop")),
    ],
)
def test_why_it_stopped(reason: str, stop: str | None, expected: RemoteDelta) -> None:
    end = {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": stop}}
    assert read(*SAID, end)[-2] == expected


def test_a_whole_message() -> None:
    content = [
        {"type": "thinking", "thinking": "Hm.", "signature": "sig"},
        {"type": "text", "text": "Look."},
        {"type": "tool_use", "id": "t", "name": "look", "input": {"a": 1}},
    ]
    usage = {"input_tokens": 3, "output_tokens": 4}
    kept = Signatures()
    message = {"type": "message", "content": content, "stop_reason": "tool_use", "usage": usage}
    assert read(message, kept=kept) == [
        RemoteDelta(reasoning="Hm."),
        RemoteDelta(content="Look."),
        RemoteDelta(calls=(RemoteCall(0, "t", "look"),)),
        RemoteDelta(calls=(RemoteCall(0, arguments='{"a":1}'),)),
        RemoteDelta(finished="tool_calls"),
        RemoteUsage(prompt_tokens=3, completion_tokens=4),
    ]
    assert kept.of("Hm.") == "sig"


def test_an_error_inside_a_stream_has_the_status_of_its_type() -> None:
    wire = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    with pytest.raises(UpstreamError) as caught:
        MessagesReader(Signatures()).read(msgspec.json.encode(wire))
    assert (caught.value.status, caught.value.type) == (529, "overloaded_error")


@pytest.mark.parametrize(
    "events",
    [
        ({"type": "content_block_delta", "index": 3, "delta": {"text": "x"}},),
        tuple(block(k, {"type": "text"})[0] for k in range(1_001)),
        tuple(event for k in range(1_001) for event in block(k, {"type": "tool_use"})),
    ],
    ids=["no such block", "blocks without end", "calls without end"],
)
def test_what_makes_no_sense_is_refused(events: Sequence[Any]) -> None:
    with pytest.raises(UpstreamError):
        read(*events)


# ------------------------------------------------------------------------ whole responses, by respx

HELLO = RemoteChat(messages=(Message(role="user", parts=(TextPart("Hello!"),)),))
SSE = {"content-type": "text/event-stream"}


def stream(*events: Any) -> httpx.Response:
    lines = (f"event: {e['type']}\ndata: {msgspec.json.encode(e).decode()}\n\n" for e in events)
    return httpx.Response(200, headers=SSE, content="".join(lines))


async def asked(response: Any, request: RemoteChat = HELLO, **options: Any) -> list[RemoteEvent]:
    url = "https://anthropic.test/v1"
    config = UpstreamConfig(name="a", urls=(url,), protocol="anthropic", key="sk-ours", **options)
    with respx.mock(base_url=url) as there:
        route = there.post("/messages").mock(
            **{"side_effect" if isinstance(response, type) else "return_value": response}
        )
        async with client_of(config) as ours:
            transport = httpx.MockTransport(there.async_handler)
            async with httpx.AsyncClient(transport=transport, headers=ours.headers) as client:
                upstream = Upstream(config, client)
                model = UpstreamModel(lambda: upstream, "m")
                async with model.chat(request) as batches:
                    found = [event async for batch in batches for event in batch]
        sent = route.calls.last.request.headers
        assert (sent["x-api-key"], sent["anthropic-version"]) == ("sk-ours", "2023-06-01")
        assert "authorization" not in sent
        return found


async def test_an_answer_over_http() -> None:
    assert await asked(stream(START, *SAID, END, STOP)) == [
        RemoteDelta(content="Hi"),
        RemoteDelta(finished="stop"),
        USED,
    ]


ERROR = {"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}
NOTHING = httpx.ByteStream(b"")
LONG = "data: " + "x" * 5_000
FAULTS: dict[str, tuple[Any, int, str | None]] = {
    "429": (httpx.Response(429, json=ERROR, headers={"retry-after": "7"}), 429, None),
    "529": (
        httpx.Response(529, json={"type": "error", "error": {"type": "overloaded_error"}}),
        529,
        None,
    ),
    "500": (httpx.Response(500, text="<html>"), 500, "upstream_failed"),
    "401": (httpx.Response(401, json=ERROR), 502, "upstream_refused_key"),
    "redirect": (
        httpx.Response(307, headers={"location": "https://elsewhere.test"}),
        502,
        "upstream_redirects",
    ),
    "cut": (stream(START, *SAID), 502, "upstream_cut"),
    "an error after some text": (stream(START, *SAID, ERROR), 429, "upstream_failed"),
    "broken JSON": (httpx.Response(200, headers=SSE, text="data: {\n\n"), 502, "upstream_broken"),
    "no stream": (httpx.Response(200, text="Hello"), 502, "upstream_broken"),
    "a long line": (httpx.Response(200, headers=SSE, text=LONG), 502, "upstream_too_large"),
    "compressed": (
        httpx.Response(200, headers=SSE | {"content-encoding": "gzip"}, stream=NOTHING),
        502,
        "upstream_broken",
    ),
    "nobody there": (httpx.ConnectError, 502, "upstream_unreachable"),
    "no connection in time": (httpx.ConnectTimeout, 504, "upstream_timeout"),
    "broken off": (httpx.RemoteProtocolError, 502, "upstream_cut"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_every_fault_is_an_honest_error(fault: str) -> None:
    response, status, code = FAULTS[fault]
    with pytest.raises(UpstreamError) as caught:
        await asked(response, max_line=4_096)
    assert (caught.value.status, caught.value.code) == (status, code)
    assert "anthropic.test" not in str(caught.value)
    if fault == "429":
        assert (str(caught.value), caught.value.retry_after) == ("slow down", 7.0)


async def test_what_it_cannot_do_is_refused_here() -> None:
    config = UpstreamConfig(name="a", urls=("http://a.test",), protocol="anthropic")
    async with client_of(config) as client:
        upstream = Upstream(config, client)
        model = UpstreamModel(lambda: upstream, "m")
        with pytest.raises(UpstreamError) as caught:
            async with model.complete(RemoteText(prompts=("Once",))):
                pass
    assert (caught.value.status, caught.value.param) == (400, "prompt")
