"""A stream put together by Anthropic's client equals the whole body; blocks come one by one."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from gateway.dialects.anthropic import MessagesReply, error_event, error_wire, read_messages
from gateway.terms.errors import (
    ContextLengthExceeded,
    GatewayError,
    InternalError,
    InvalidKey,
    ModelNotFound,
    ModelUnavailable,
    QueueFull,
)
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
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
THINKS = {"thinking": {"type": "adaptive"}}

ANSWERS: list[tuple[Event, ...]] = [
    (Content("Hel"), Content("lo"), Finished("stop")),
    (Reasoning("Let "), Reasoning("me"), Content("Yes"), Content("."), Finished("length")),
    (Content(""), Finished("stop")),
    (
        Content("I'll look."),
        ToolOpened(0, "call_1", "get_weather"),
        ArgumentsGrown(0, '{"city":'),
        ArgumentsGrown(0, '"Rome"}'),
        ToolClosed(0),
        ToolOpened(1, "call_2", "now"),
        ToolClosed(1),
        Finished("tool_calls"),
    ),
    (Content("a"), Reasoning("b"), Content("c"), Finished("stop", stop="END")),
]


def reply(**fields: Any) -> MessagesReply:
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    exchange = read_messages(msgspec.json.encode(body))
    return MessagesReply(exchange, id="msg_1", model="m", prompt_tokens=10)


def deltas(events: Sequence[Event], together: int) -> Iterable[Delta]:
    for start in range(0, len(events), together):
        yield Delta(0, tuple(events[start : start + together]))


def streamed(events: Sequence[Event], together: int = 1, **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream, whose names are those of their types."""
    answer = reply(**fields)
    data = answer.opening()
    data += b"".join(answer.delta(delta) for delta in deltas(events, together))
    data += answer.closing(USAGE)
    found = []
    *frames, rest = data.decode().split("\n\n")
    assert rest == ""
    for frame in frames:
        name, _, payload = frame.partition("\n")
        event = msgspec.json.decode(payload.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


def whole(events: Sequence[Event], **fields: Any) -> dict[str, Any]:
    answer = reply(**fields)
    for delta in deltas(events, 1):
        answer.add(delta)
    body: dict[str, Any] = msgspec.json.decode(answer.whole(USAGE))
    return body


@pytest.mark.parametrize("events", ANSWERS)
@pytest.mark.parametrize("together", [1, 2, 9])
@pytest.mark.parametrize("fields", [{}, THINKS])
def test_what_the_client_puts_together_is_the_whole(
    events: tuple[Event, ...], together: int, fields: Any
) -> None:
    message: Any = None
    buffers: dict[int, bytes] = {}
    for event in streamed(events, together, **fields):
        read = EVENT.validate_python(event, strict=True)
        message = accumulate_event(event=read, current_snapshot=message, json_bufs=buffers)
    body = Message.model_validate(whole(events, **fields), strict=True)
    assert message.model_dump(exclude={"content": {"__all__": {"parsed_output"}}}) == (
        body.model_dump()
    )


@pytest.mark.parametrize("events", ANSWERS)
@pytest.mark.parametrize("together", [1, 9])
def test_each_block_begins_grows_and_ends_before_the_next(
    events: tuple[Event, ...], together: int
) -> None:
    sent = streamed(events, together, **THINKS)
    assert sent[0]["type"] == "message_start"
    assert sent[0]["message"]["content"] == []
    assert sent[0]["message"]["usage"]["input_tokens"] == 10
    assert [event["type"] for event in sent[-2:]] == ["message_delta", "message_stop"]
    kinds = [(event["type"].removeprefix("content_block_"), event["index"]) for event in sent[1:-2]]
    expected, count = [], 0
    for kind, index in kinds:
        assert index == count
        expected.append(kind)
        count += kind == "stop"
    text = "".join(kind[2] for kind in expected)  # a: start, l: delta, o: stop
    assert set(text.replace("a", "").replace("l", "")) <= {"o"}
    assert all(part.startswith("a") and set(part[1:]) <= {"l"} for part in text.split("o") if part)


def test_how_it_ended_and_what_it_cost() -> None:
    message = whole(ANSWERS[4])
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "END")
    assert message["usage"] == {
        "input_tokens": 6,
        "cache_read_input_tokens": 4,
        "cache_creation_input_tokens": 0,
        "output_tokens": 6,
        "output_tokens_details": {"thinking_tokens": 2},
    }
    reasons = [whole(events)["stop_reason"] for events in ANSWERS[:4]]
    assert reasons == ["end_turn", "max_tokens", "end_turn", "tool_use"]


def test_thinking_is_shown_to_those_who_asked_for_it() -> None:
    kinds = [block["type"] for block in whole(ANSWERS[1])["content"]]
    assert kinds == ["text"]
    thinking, text = whole(ANSWERS[1], **THINKS)["content"]
    assert thinking["thinking"] == "Let me"
    assert thinking["signature"]
    assert text["text"] == "Yes."


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ContextLengthExceeded("long", param="messages"), "invalid_request_error"),
        (InvalidKey("no"), "authentication_error"),
        (ModelNotFound("none"), "not_found_error"),
        (QueueFull("full"), "rate_limit_error"),
        (ModelUnavailable("no room"), "overloaded_error"),
        (InternalError("ours"), "api_error"),
    ],
)
def test_errors_are_anthropics(error: GatewayError, kind: str) -> None:
    encoded = msgspec.json.encode(error_wire(error))
    decoded = msgspec.json.decode(encoded)
    assert decoded["type"] == "error"
    assert decoded["error"] == {
        "type": kind,
        "message": error.message,
        "param": error.param,
        "code": error.code,
    }
    assert error_event(error) == b"event: error\ndata: " + encoded + b"\n\n"


def test_applied_edits_are_told_whole_and_at_the_end_of_a_stream() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": "x" * 400}
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    edit = {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "tool_uses", "value": 0},
        "keep": {"type": "tool_uses", "value": 0},
    }
    asked = {
        "messages": [
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ],
        "context_management": {"edits": [edit]},
    }
    exchange = read_messages(msgspec.json.encode(asked))
    reply = MessagesReply(exchange, id="msg_1", model="m", prompt_tokens=10)
    applied = {"type": edit["type"], "cleared_tool_uses": 1, "cleared_input_tokens": 85}
    reply.add(Delta(0, (Finished("stop"),)))
    whole = msgspec.json.decode(reply.whole(USAGE))
    ended = msgspec.json.decode(reply.closing(USAGE).split(b"data: ")[1].split(b"\n")[0])
    assert whole["context_management"] == ended["context_management"]
    assert whole["context_management"] == {"applied_edits": [applied]}
