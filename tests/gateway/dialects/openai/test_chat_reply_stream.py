"""Chunk by chunk: what streaming clients were seen to rely on."""

from typing import Any

import msgspec
import pytest
from huggingface_hub.inference._common import _stream_chat_completion_response
from openai.types.chat import ChatCompletionChunk

from backends.contract.protocol import PromptProgress
from gateway.dialects.models import error_event
from gateway.dialects.openai import ChatReply, read_chat
from gateway.dialects.openai.reply import AnswerFacts
from gateway.terms.errors import ContextLengthExceeded, InternalError
from gateway.terms.events import (
    ArgumentsGrown,
    Content,
    Delta,
    Event,
    Finished,
    Reasoning,
    ToolClosed,
    ToolOpened,
)
from tests.gateway.dialects.openai.streams import (
    DONE,
    STOP,
    USAGE,
    chat_reply,
    choices,
    chunks,
    objects,
    payloads,
    said,
    stream,
    token,
)

CALL: tuple[Event, ...] = (
    ToolOpened(0, "call_1", "weather"),
    ArgumentsGrown(0, '{"city":'),
    ArgumentsGrown(0, '"Ulm"}'),
    ToolClosed(0),
    Finished("tool_calls"),
)


def deltas_of(data: bytes) -> list[dict[str, Any]]:
    return [choice["delta"] for choice in choices(data)]


def test_every_chunk_is_one_of_the_official_client() -> None:
    data = stream(
        chat_reply(stream_options={"include_usage": True}),
        said(Reasoning("hm"), Content("ja"), *CALL),
    )
    for chunk in chunks(data):
        assert chunk.id == "chatcmpl-1"
        assert chunk.object == "chat.completion.chunk"
        assert chunk.created == 1_700_000_000
        assert chunk.model == "org/model"


def test_the_role_comes_alone_and_once() -> None:
    deltas = deltas_of(stream(chat_reply(), said(Content("a"), Content("b"), STOP)))
    assert deltas == [{"role": "assistant"}, {"content": "a"}, {"content": "b"}, {}]


def test_only_the_last_chunk_of_a_choice_has_a_finish_reason() -> None:
    data = stream(chat_reply(), said(Content("a"), Finished("length")))
    assert [choice["finish_reason"] for choice in choices(data)] == [None, None, "length"]
    assert choices(data)[-1]["delta"] == {}


def test_every_choice_opens_in_the_order_of_indexes() -> None:
    data = chat_reply(n=3).opening()
    assert [(c["index"], c["delta"]) for c in choices(data)] == [
        (k, {"role": "assistant"}) for k in range(3)
    ]


def test_a_tool_call_is_named_once_and_then_argued() -> None:
    assert deltas_of(stream(chat_reply(), said(*CALL)))[1:-1] == [
        {
            "tool_calls": [
                {"index": 0, "id": "call_1", "type": "function", "function": {"name": "weather"}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"city":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"Ulm"}'}}]},
    ]


@pytest.mark.parametrize(
    "events",
    [
        (ToolOpened(0, "c", "now"), ToolClosed(0), STOP),
        (ToolOpened(0, "c", "now"), ArgumentsGrown(0, ""), ToolClosed(0), STOP),
        (ToolOpened(0, "c", "now"), Finished("length")),
    ],
)
def test_a_call_without_arguments_still_gets_a_delta_of_them(events: tuple[Event, ...]) -> None:
    calls = [
        delta["tool_calls"][0] for delta in deltas_of(stream(chat_reply(), said(*events)))[1:-1]
    ]
    assert calls[1:] == [{"index": 0, "function": {"arguments": "{}"}}]


def test_a_call_is_complete_when_it_closes() -> None:
    reply = chat_reply(stream_options={"include_usage": True})
    reply.delta(Delta(0, (ToolOpened(0, "c", "now"),)))
    assert deltas_of(reply.delta(Delta(0, (ToolClosed(0),)))) == [
        {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}
    ]
    assert deltas_of(reply.delta(Delta(0, (STOP,)))) == [{}]


def test_reasoning_is_called_reasoning_content() -> None:
    deltas = deltas_of(stream(chat_reply(), said(Reasoning("hm"), Content("ja"), STOP)))
    assert deltas[1:3] == [{"reasoning_content": "hm"}, {"content": "ja"}]


@pytest.mark.parametrize("logprobs", [False, True])
def test_hidden_reasoning_stays_hidden(logprobs: bool) -> None:
    reply = chat_reply(reasoning_format="hidden", logprobs=logprobs)
    secret = Delta(0, (Reasoning("secret"),), (token("secret"),) if logprobs else ())
    data = stream(reply, [secret, *said(Reasoning("secret"), Content("ja"), STOP)])
    assert b"secret" not in data
    assert deltas_of(data)[1:] == [{"content": "ja"}, {}]


NOTHING: list[tuple[Event, ...]] = [
    (),
    (Content(""),),
    (Reasoning(""),),
    (ToolClosed(0),),
    (ArgumentsGrown(0, "{}"),),  # of a call that another server gave no name
]


@pytest.mark.parametrize("events", NOTHING)
def test_nothing_to_say_is_no_bytes(events: tuple[Event, ...]) -> None:
    assert chat_reply().delta(Delta(0, events)) == b""


def test_one_delta_may_say_several_things() -> None:
    reply = chat_reply(stream_options={"include_usage": True})
    data = reply.delta(Delta(0, (Reasoning("hm"), Content("ja"), STOP)))
    assert deltas_of(data) == [{"reasoning_content": "hm"}, {"content": "ja"}, {}]


def test_usage_comes_once_and_last_when_asked_for() -> None:
    data = stream(chat_reply(stream_options={"include_usage": True}), said(Content("a"), STOP))
    assert payloads(data)[-1] == DONE
    assert ["usage" in payload for payload in objects(data)] == [False, False, False, True]
    last = objects(data)[-1]
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 6,
        "total_tokens": 16,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    assert last["timings"] == {
        "cache_n": 4,
        "prompt_n": 6,
        "prompt_ms": 500.0,
        "prompt_per_token_ms": 500.0 / 6,
        "prompt_per_second": 12.0,
        "predicted_n": 6,
        "predicted_ms": 2000.0,
        "predicted_per_token_ms": 400.0,
        "predicted_per_second": 2.5,
        "queued_ms": 250.0,
    }


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
def test_usage_unasked_for_is_not_sent(options: object) -> None:
    data = stream(chat_reply(stream_options=options), said(Content("a"), STOP))
    assert b"usage" not in data
    have_timings = ["timings" in payload for payload in objects(data)]
    assert have_timings == [False] * (len(have_timings) - 1) + [True]
    assert objects(data)[-1]["choices"][0]["finish_reason"] == "stop"
    assert payloads(data)[-1] == DONE


def test_no_chunk_has_a_null_that_open_webui_drops_it_for() -> None:
    for payload in objects(stream(chat_reply(), said(Reasoning("hm"), *CALL))):
        usual = {"object", "id", "created", "model", "choices"}
        assert payload.keys() - {"timings"} == usual
        assert payload.get("timings", {}) is not None


def test_a_broken_stream_ends_with_an_error_and_without_done() -> None:
    data = error_event(InternalError("the engine is on fire"))
    assert objects(data) == [
        {
            "error": {
                "message": "the engine is on fire",
                "type": "server_error",
                "param": None,
                "code": "internal_error",
            }
        }
    ]
    assert DONE not in payloads(data)


def test_the_error_of_a_stream_is_the_error_of_a_body() -> None:
    error = ContextLengthExceeded("too long", param="messages")
    assert objects(error_event(error))[0]["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("text", ['"\\\n\r\t', "\u2028\u2029", "\0hole", "🙂é", "data: x\n\n"])
def test_any_text_arrives_as_it_was(text: str) -> None:
    data = stream(chat_reply(), said(Content(text), Reasoning(text), STOP))
    assert deltas_of(data)[1:3] == [{"content": text}, {"reasoning_content": text}]


@pytest.mark.parametrize("model", ["\0hole", '"\0hole"', "a/b:c"])
def test_any_model_name_arrives_as_it_was(model: str) -> None:
    exchange = read_chat(b'{"messages": [{"role": "user"}]}')
    data = stream(
        ChatReply(exchange, AnswerFacts(id=model, created=0, model=model)), said(Content("a"), STOP)
    )
    assert {(chunk.id, chunk.model) for chunk in chunks(data)} == {(model, model)}
    assert deltas_of(data)[1] == {"content": "a"}


def test_logprobs_go_with_the_text_of_their_tokens() -> None:
    reply = chat_reply(logprobs=True, top_logprobs=2)
    first = token("ja", -0.25, [("ja", -0.25), ("nein", float("-inf"))])
    data = reply.delta(Delta(0, (Content("ja"),), (first,)))
    assert choices(data)[0]["logprobs"] == {
        "content": [
            {
                "token": "ja",
                "logprob": -0.25,
                "bytes": [106, 97],
                "top_logprobs": [
                    {"token": "ja", "logprob": -0.25, "bytes": [106, 97]},
                    {"token": "nein", "logprob": -9999.0, "bytes": [110, 101, 105, 110]},
                ],
            }
        ],
        "refusal": None,
    }
    assert ChatCompletionChunk.model_validate(objects(data)[0]).choices[0].logprobs is not None


def test_logprobs_wait_for_text_that_is_held_back() -> None:
    reply = chat_reply(logprobs=True)
    assert reply.delta(Delta(0, (), (token("<"),))) == b""
    (choice,) = choices(reply.delta(Delta(0, (Content("<b"),), (token("b"),))))
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["<", "b"]
    assert choice["logprobs"]["content"][0]["top_logprobs"] == []


def test_logprobs_without_any_text_come_with_the_end() -> None:
    reply = chat_reply(logprobs=True, stream_options={"include_usage": True})
    reply.delta(Delta(0, (), (token("<"),)))
    (choice,) = choices(reply.delta(Delta(0, (STOP,))))
    assert choice["delta"] == {}
    assert len(choice["logprobs"]["content"]) == 1


def test_logprobs_of_everything_are_reported_where_they_are_asked_for() -> None:
    reply = chat_reply(logprobs=True, logprobs_of="all")
    data = reply.delta(Delta(0, (Reasoning("hm"),), (token("<"), token("hm"))))
    data += reply.delta(Delta(0, (Content("ja"),), (token("ja"),)))
    tokens = [[one["token"] for one in choice["logprobs"]["content"]] for choice in choices(data)]
    assert tokens == [["<", "hm"], ["ja"]]


def test_the_reading_of_a_prompt_is_reported_in_chunks_without_text() -> None:
    reply = chat_reply(return_progress=True)
    data = reply.delta(Delta(0, (), progress=PromptProgress(10, 2, 6, 0.25)))
    (chunk,) = objects(data)
    assert chunk["prompt_progress"] == {"total": 10, "cache": 2, "processed": 6, "time_ms": 250.0}
    assert chunk["choices"] == [{"index": 0, "delta": {}, "finish_reason": None}]


def test_logprobs_of_reasoning_are_not_told() -> None:
    reply = chat_reply(logprobs=True)
    data = reply.delta(Delta(0, (Reasoning("hm"),), (token("hm"),)))
    data += reply.delta(Delta(0, (Content("ja"),), (token("ja"),)))
    assert [choice.get("logprobs") is not None for choice in choices(data)] == [False, True]
    assert [entry["token"] for entry in choices(data)[1]["logprobs"]["content"]] == ["ja"]


def test_hugging_faces_client_reads_the_stream() -> None:
    data = stream(chat_reply(), said(Reasoning("hm"), *CALL))
    outputs = list(_stream_chat_completion_response(data.decode().splitlines()))
    deltas = [output.choices[0].delta for output in outputs]
    assert (deltas[0].role, deltas[0].content) == ("assistant", None)
    assert [delta.role for delta in deltas[1:]] == [None] * (len(deltas) - 1)
    calls = [delta.tool_calls[0].function for delta in deltas if delta.tool_calls]
    assert [(call.name, call.arguments) for call in calls] == [
        ("weather", None),
        (None, '{"city":'),
        (None, '"Ulm"}'),
    ]
    assert outputs[-1].choices[0].finish_reason == "tool_calls"


def test_a_whole_body_always_has_usage() -> None:
    reply = chat_reply()
    for delta in said(Content("a"), STOP):
        reply.add(delta)
    assert msgspec.json.decode(reply.whole(USAGE))["usage"]["total_tokens"] == 16
