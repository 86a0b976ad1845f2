"""Lines that Ollama's client reads; put together they are the whole body."""

from collections.abc import Sequence
from typing import Any

import msgspec
import ollama
import pytest

from backends.contract.protocol import Candidate, TokenLogprob
from gateway.dialects.dialect import body
from gateway.dialects.ollama import OllamaReply, error_line, error_wire
from gateway.terms.errors import ModelNotFound
from gateway.terms.events import (
    ArgumentsGrown,
    Content,
    Delta,
    Event,
    Finished,
    Reasoning,
    ToolClosed,
    ToolOpened,
    Usage,
)

USAGE = Usage(
    prompt_tokens=10,
    cached_tokens=4,
    completion_tokens=6,
    prefill_seconds=0.5,
    decode_seconds=2.0,
    queue_seconds=0.25,
)
ANSWERS: list[tuple[Event, ...]] = [
    (Content("Hel"), Content("lo"), Finished("stop")),
    (Reasoning("Let "), Reasoning("me"), Content("Yes"), Finished("length")),
    (
        ToolOpened(0, "call_1", "weather"),
        ArgumentsGrown(0, '{"city":'),
        ArgumentsGrown(0, '"Rome"}'),
        ToolClosed(0),
        ToolOpened(1, "call_2", "now"),
        ToolClosed(1),
        Finished("tool_calls"),
    ),
]


def reply(*, chat: bool = True, hides: bool = False) -> OllamaReply:
    return OllamaReply(
        model="m",
        created_at="2026-01-01T00:00:00.000000Z",
        chat=chat,
        hides_thinking=hides,
        load_seconds=1.0,
    )


def lines(one: OllamaReply, events: Sequence[Event], together: int) -> list[dict[str, Any]]:
    data = one.opening()
    for start in range(0, len(events), together):
        data += one.delta(Delta(0, tuple(events[start : start + together])))
    data += one.closing(USAGE)
    *found, rest = data.split(b"\n")
    assert rest == b""
    return [msgspec.json.decode(line) for line in found]


@pytest.mark.parametrize("events", ANSWERS)
@pytest.mark.parametrize("together", [1, 9])
@pytest.mark.parametrize("hides", [True, False])
def test_the_lines_of_a_chat_are_the_whole(
    events: tuple[Event, ...], together: int, hides: bool
) -> None:
    sent = lines(reply(hides=hides), events, together)
    one = reply(hides=hides)
    for event in events:
        one.add(Delta(0, (event,)))
    body = msgspec.json.decode(one.whole(USAGE))
    whole = ollama.ChatResponse.model_validate(body)
    parts = [ollama.ChatResponse.model_validate(line) for line in sent]
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    thinking = "".join(part.message.thinking or "" for part in parts)
    assert thinking == (whole.message.thinking or "")
    assert not (hides and thinking)
    calls = [call for part in parts for call in part.message.tool_calls or ()]
    assert calls == list(whole.message.tool_calls or ())
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    last = {key: value for key, value in sent[-1].items() if key != "message"}
    assert last == {key: value for key, value in body.items() if key != "message"}


def test_generate_tells_a_response() -> None:
    sent = lines(reply(chat=False), ANSWERS[1], 1)
    parts = [ollama.GenerateResponse.model_validate(line) for line in sent]
    assert "".join(part.thinking or "" for part in parts) == "Let me"
    assert "".join(part.response or "" for part in parts) == "Yes"
    assert all("message" not in line for line in sent)


def test_what_it_cost_is_reported_in_nanoseconds() -> None:
    last = lines(reply(), ANSWERS[1], 1)[-1]
    assert last["done_reason"] == "length"
    assert last["prompt_eval_count"] == 10
    assert last["eval_count"] == 6
    assert last["load_duration"] == 1_000_000_000
    assert last["prompt_eval_duration"] == 500_000_000
    assert last["eval_duration"] == 2_000_000_000
    assert last["total_duration"] == 3_750_000_000


def test_log_probabilities() -> None:
    chosen, other = Candidate(1, b"Hi", -0.5), Candidate(2, b"Ho", -1.5)
    delta = Delta(0, (Content("Hi"),), (TokenLogprob(chosen, (chosen, other)),))
    one = reply()
    streamed = b"".join((one.delta(delta), one.closing(USAGE)))
    found = [msgspec.json.decode(line) for line in streamed.splitlines()]
    (logprobs,) = (line["logprobs"] for line in found if "logprobs" in line)
    assert logprobs[0]["token"] == "Hi"
    assert [entry["logprob"] for entry in logprobs[0]["top_logprobs"]] == [-0.5, -1.5]
    whole = reply()
    whole.add(delta)
    assert msgspec.json.decode(whole.whole(USAGE))["logprobs"] == logprobs


def test_errors_are_a_text_and_its_field() -> None:
    error = ModelNotFound("Model 'x' not found.", param="model")
    expected = {"error": error.message, "param": "model", "code": "model_not_found"}
    assert msgspec.json.decode(body(error_wire(error))) == expected
    assert error_line(error) == body(error_wire(error)) + b"\n"
