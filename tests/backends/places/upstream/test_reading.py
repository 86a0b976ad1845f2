"""What servers say in their own ways becomes one."""

from typing import Any

import msgspec
import pytest

from backends.contract.errors import UpstreamError
from backends.contract.protocol import Candidate, TokenLogprob
from backends.contract.remote import RemoteCall, RemoteDelta, RemoteEvent, RemoteUsage
from backends.places.upstream.reading import AnswerReader


def read(*chunks: Any, choices: int = 1) -> list[RemoteEvent]:
    reader = AnswerReader(choices)
    return [event for one in chunks for event in reader.read(msgspec.json.encode(one))]


def delta(**said: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": said}]}


@pytest.mark.parametrize(
    "said",
    [
        {"reasoning_content": "Hm."},
        {"reasoning": "Hm."},
        {"reasoning_text": "Hm."},
        {"reasoning": "Hm.", "reasoning_content": "Hm."},
        {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]},
        {"content": [{"type": "thinking", "thinking": "Hm."}]},
        {"content": "", "reasoning_content": "Hm.", "reasoning_details": []},
    ],
)
def test_reasoning_by_any_name_is_reasoning(said: dict[str, Any]) -> None:
    assert read(delta(**said)) == [RemoteDelta(reasoning="Hm.")]


@pytest.mark.parametrize(
    "said",
    [
        {"content": "Hi."},
        {"content": [{"type": "text", "text": "Hi."}]},
        {"refusal": "Hi."},
        {"content": "Hi.", "audio": None, "annotations": [], "unknown": {"deep": [[[]]]}},
    ],
)
def test_text_in_any_form_is_content(said: dict[str, Any]) -> None:
    assert read(delta(**said)) == [RemoteDelta(content="Hi.")]


def test_a_text_completion_says_text() -> None:
    chunk = {"choices": [{"index": 1, "text": "Hi.", "finish_reason": None}]}

    assert read(chunk, choices=2) == [RemoteDelta(choice=1, content="Hi.")]


def test_chunks_that_say_nothing_are_no_events() -> None:
    assert read(delta(role="assistant", content=""), {"choices": []}, {"choices": None}, {}) == []


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("eos", "stop"),
        ("max_tokens", "length"),
        ("function_call", "tool_calls"),
        ("tool_use", "tool_calls"),
        ("refusal", "content_filter"),
    ],
)
def test_the_end_by_any_name_has_openais(theirs: str, ours: str) -> None:
    chunk = {"choices": [{"index": 0, "delta": {}, "finish_reason": theirs}]}

    assert read(chunk, chunk) == [RemoteDelta(finished=ours)], "and it is told once"


def test_a_function_call_of_before_tools_is_a_call() -> None:
    (event,) = read(delta(function_call={"name": "a", "arguments": "{}"}))

    assert isinstance(event, RemoteDelta)
    (call,) = event.calls
    assert (call.name, call.arguments) == ("a", "{}")


def test_a_call_in_a_body_is_whole() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "a", "arguments": "{}"}}
    message = {"content": None, "tool_calls": [call]}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}

    assert read(body) == [
        RemoteDelta(calls=(RemoteCall(0, "1", "a", "{}"),), finished="tool_calls")
    ]


def test_usage_counts_what_is_reported() -> None:
    usage = {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    assert read({"choices": [], "usage": usage}) == [
        RemoteUsage(prompt_tokens=5, completion_tokens=3, cached_tokens=4, reasoning_tokens=2)
    ]
    nothing = {"prompt_tokens": None, "prompt_tokens_details": None}
    assert read({"choices": [], "usage": nothing}) == [RemoteUsage()]


def test_log_probabilities_of_chats() -> None:
    top = [{"token": "a", "logprob": -0.5, "bytes": [97]}, {"token": "b", "logprob": -1.0}]
    logprobs = {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": top}]}
    chunk = {"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": logprobs}]}

    a, b = Candidate(-1, b"a", -0.5), Candidate(-1, b"b", -1.0)
    assert read(chunk) == [RemoteDelta(content="a", logprobs=(TokenLogprob(a, (a, b)),))]


def test_log_probabilities_of_completions() -> None:
    logprobs = {"tokens": ["a"], "token_logprobs": [None], "top_logprobs": [{"b": -1.0}]}
    chunk = {"choices": [{"index": 0, "text": "a", "logprobs": logprobs}]}

    chosen = TokenLogprob(Candidate(-1, b"a", -9999.0), (Candidate(-1, b"b", -1.0),))
    assert read(chunk) == [RemoteDelta(content="a", logprobs=(chosen,))]


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        ("plain", 502, "plain"),
        ({"message": "m", "code": 429}, 429, "m"),
        ({"message": "m", "code": "429"}, 502, "m"),
        ({"message": "m", "code": 200}, 502, "m"),
        ({"message": ["m"]}, 502, "The upstream failed without an error message."),
        ([], 502, "The upstream failed without an error message."),
    ],
)
def test_an_error_in_a_chunk_is_raised(error: Any, status: int, message: str) -> None:
    with pytest.raises(UpstreamError) as caught:
        read({"error": error})

    assert (caught.value.status, str(caught.value)) == (status, message)
