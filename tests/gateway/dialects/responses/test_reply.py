"""Streams that OpenAI's helper takes whole, in the order of events that it insists on."""

from collections.abc import Sequence
from itertools import count
from typing import Any

import msgspec
import pytest
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from backends.contract.protocol import Candidate, TokenLogprob
from gateway.dialects.responses import ResponsesReply, read_response
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
    Usage,
)

USAGE = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=6, reasoning_tokens=2)
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
CALLS = (
    ToolOpened(0, "call_1", "weather"),
    ArgumentsGrown(0, '{"city":'),
    ArgumentsGrown(0, '"Rome"}'),
    ToolClosed(0),
    ToolOpened(1, "call_2", "now"),
    ToolClosed(1),
)
ANSWERS: list[tuple[Event, ...]] = [
    (Content("Hel"), Content("lo"), Finished("stop")),
    (Reasoning("Let "), Reasoning("me"), Content("Yes"), Finished("stop")),
    (*CALLS, Finished("tool_calls")),
    (Reasoning("a"), Content("b"), *CALLS, Finished("tool_calls")),
    (Content(""), Finished("stop")),
]


def reply(**fields: Any) -> ResponsesReply:
    body = msgspec.json.encode({"model": "asked", "input": "Hi", **fields})
    exchange = read_response(body).after()
    numbers = count()
    one = ResponsesReply(
        exchange, id="resp_1", created=1_700_000_000, new_id=lambda: str(next(numbers))
    )
    return one.answered_by("m")


def events(data: bytes) -> list[dict[str, Any]]:
    """Each under its name, numbered from 0."""
    *frames, rest = data.decode().split("\n\n")
    assert rest == ""
    found = []
    for number, frame in enumerate(frames):
        name, _, payload = frame.partition("\n")
        event = msgspec.json.decode(payload.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == number
        found.append(event)
    return found


def streamed(one: ResponsesReply, answer: Sequence[Event], together: int = 1) -> list[Any]:
    data = one.opening()
    for start in range(0, len(answer), together):
        data += one.delta(Delta(0, tuple(answer[start : start + together])))
    return events(data + one.closing(USAGE))


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("together", [1, 9])
@pytest.mark.parametrize("fields", [{}, {"reasoning": {"summary": "auto"}}])
def test_the_helper_puts_together_what_the_whole_says(
    answer: tuple[Event, ...], together: int, fields: Any
) -> None:
    state: Any = ResponseStreamState(input_tools=omit, text_format=omit)
    seen: list[Any] = []
    for event in streamed(reply(**fields), answer, together):
        seen += state.handle_event(EVENT.validate_python(event))
    one = reply(**fields)
    for event in answer:
        one.add(Delta(0, (event,)))
    whole = Response.model_validate(msgspec.json.decode(one.whole(USAGE)), strict=True)
    assert whole.status == "completed"
    grown = seen[-1].response.model_dump(exclude_unset=True)
    for item in grown["output"]:
        item.pop("parsed_arguments", None)
        for part in item.get("content") or ():
            part.pop("parsed", None)
    assert grown["output"] == whole.model_dump(exclude_unset=True)["output"]
    grown_texts = [one.snapshot for one in seen if one.type == "response.output_text.delta"]
    assert "".join(grown_texts[-1:]) == whole.output_text


def test_the_order_of_events() -> None:
    kinds = [event["type"].removeprefix("response.") for event in streamed(reply(), ANSWERS[3])]
    assert kinds == [
        "created",
        "in_progress",
        *("output_item.added", "content_part.added"),
        *("reasoning_text.delta", "reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.done", "content_part.done", "output_item.done"),
        "output_item.added",
        *("function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]


def test_reasoning_is_a_summary_for_who_asks_for_one() -> None:
    sent = streamed(reply(reasoning={"summary": "auto"}), ANSWERS[1])
    kinds = [event["type"] for event in sent]
    assert "response.reasoning_summary_part.added" in kinds
    assert "response.reasoning_summary_text.delta" in kinds
    assert "response.reasoning_text.delta" not in kinds
    item = sent[-1]["response"]["output"][0]
    assert item["summary"] == [{"type": "summary_text", "text": "Let me"}]


@pytest.mark.parametrize(
    ("reason", "detail"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
def test_what_ended_early_is_incomplete(reason: Any, detail: str) -> None:
    last = streamed(reply(), (Content("Hel"), Finished(reason)))[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["status"] == "incomplete"
    assert last["response"]["incomplete_details"] == {"reason": detail}
    assert last["response"]["output"][0]["status"] == "incomplete"


def test_a_response_fails_before_and_after_its_beginning() -> None:
    early = events(reply().failed(ContextLengthExceeded("too long", param="input")))
    assert [event["type"] for event in early] == [
        "response.created",
        "response.in_progress",
        "response.failed",
    ]
    assert early[-1]["response"]["error"] == {
        "code": "invalid_prompt",
        "message": "too long",
        "param": "input",
    }
    one = reply()
    data = one.opening() + one.delta(Delta(0, (Content("Hel"),)))
    late = events(data + one.failed(InternalError("broken")))
    failed = late[-1]["response"]
    assert failed["status"] == "failed"
    assert failed["error"]["code"] == "server_error"
    assert failed["output"][0]["content"][0]["text"] == "Hel"
    Response.model_validate(failed)


def test_one_in_the_background_is_queued_first() -> None:
    one = reply(background=True)
    sent = events(one.queued() + one.opening())
    assert [event["type"] for event in sent] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    assert [event["response"]["status"] for event in sent] == [
        "queued",
        "queued",
        "in_progress",
    ]


def test_log_probabilities_come_with_their_text() -> None:
    chosen = Candidate(1, b"Hi", -0.5)
    logprobs = (TokenLogprob(chosen, (chosen,)),)
    one = reply(top_logprobs=1)
    data = one.opening()
    data += one.delta(Delta(0, (Content("Hi"),), logprobs))
    data += one.delta(Delta(0, (Content("Hi"),), logprobs))
    data += one.delta(Delta(0, (Finished("stop"),)))
    sent = events(data + one.closing(USAGE))
    deltas = [event for event in sent if event["type"] == "response.output_text.delta"]
    assert [len(event["logprobs"]) for event in deltas] == [1, 1]
    (part,) = sent[-1]["response"]["output"][0]["content"]
    assert [one["logprob"] for one in part["logprobs"]] == [-0.5, -0.5]


def test_what_was_asked_is_repeated() -> None:
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}]
    body = msgspec.json.decode(
        reply(
            tools=tools,
            metadata={"a": "b"},
            temperature=0.5,
            max_output_tokens=9,
            previous_response_id="resp_0",
            instructions="Be brief.",
        ).document()
    )
    assert body["tools"] == [{**tools[0], "description": None}]
    assert body["metadata"] == {"a": "b"}
    assert (body["temperature"], body["max_output_tokens"]) == (0.5, 9)
    assert (body["previous_response_id"], body["instructions"]) == ("resp_0", "Be brief.")
    Response.model_validate(body, strict=True)
