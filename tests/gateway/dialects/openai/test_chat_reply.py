"""The whole body, and its promise: a stream put together by the official client says the same."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion

from gateway.terms.events import (
    ArgumentsGrown,
    Content,
    Delta,
    Event,
    Finished,
    FinishReason,
    Reasoning,
    ToolClosed,
    ToolOpened,
)
from tests.gateway.dialects.openai.streams import (
    STOP,
    USAGE,
    accumulated,
    chat_reply,
    said,
    stream,
    token,
)


def whole(deltas: Sequence[Delta], **fields: Any) -> dict[str, Any]:
    reply = chat_reply(**fields)
    for delta in deltas:
        reply.add(delta)
    body: dict[str, Any] = msgspec.json.decode(reply.whole(USAGE))
    ChatCompletion.model_validate(body)
    return body


def test_the_body_is_openais() -> None:
    body = whole(said(Content("ja"), Content("!"), STOP))
    assert body["object"] == "chat.completion"
    assert (body["id"], body["created"], body["model"]) == (
        "chatcmpl-1",
        1_700_000_000,
        "org/model",
    )
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "ja!"},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}


def test_only_tool_calls_leave_the_content_null() -> None:
    events: list[Event] = [
        ToolOpened(0, "a", "f"),
        ArgumentsGrown(0, '{"x"'),
        ArgumentsGrown(0, ": 1}"),
        ToolClosed(0),
        ToolOpened(1, "b", "g"),
        ToolClosed(1),
        Finished("tool_calls"),
    ]
    message = whole(said(*events))["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"] == [
        {"type": "function", "id": "a", "function": {"name": "f", "arguments": '{"x": 1}'}},
        {"type": "function", "id": "b", "function": {"name": "g", "arguments": "{}"}},
    ]


def test_a_call_that_begins_anew_keeps_nothing_of_the_one_before() -> None:
    again = (ToolOpened(0, "call_2", "time"), ArgumentsGrown(0, '{"b":2}'), ToolClosed(0))
    first = (ToolOpened(0, "call_1", "weather"), ArgumentsGrown(0, '{"a":1}'), ToolClosed(0))
    (choice,) = whole(said(*first, *again, Finished("tool_calls")))["choices"]
    assert choice["message"]["tool_calls"] == [
        {
            "id": "call_2",
            "type": "function",
            "function": {"name": "time", "arguments": '{"b":2}'},
        }
    ]


def test_only_reasoning_leaves_the_content_empty() -> None:
    message = whole(said(Reasoning("hm"), Finished("length")))["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "", "reasoning_content": "hm"}


def test_hidden_reasoning_stays_hidden() -> None:
    message = whole(said(Reasoning("hm"), STOP), include_reasoning=False)["choices"][0]["message"]
    assert message == {"role": "assistant", "content": ""}


def test_choices_are_reported_by_index_however_they_ended() -> None:
    deltas = said(Content("b"), STOP, choice=1) + said(Content("a"), STOP, choice=0)
    texts = [c["message"]["content"] for c in whole(deltas, n=2)["choices"]]
    assert texts == ["a", "b"]


def test_an_unfinished_choice_is_our_mistake() -> None:
    with pytest.raises(AssertionError):
        whole(said(Content("a")))


def test_rates_without_time_are_numbers() -> None:
    reply = chat_reply()
    for delta in said(STOP):
        reply.add(delta)
    timings = msgspec.json.decode(reply.whole(msgspec.structs.replace(USAGE, prefill_seconds=0)))
    assert timings["timings"]["prompt_per_second"] == 0.0


# Any answer: some phases, several calls, cut anywhere, ended in any way.

texts = st.text(max_size=8)
plain = st.one_of(st.builds(Content, texts), st.builds(Reasoning, texts))
reasons: st.SearchStrategy[FinishReason] = st.sampled_from(["stop", "length", "tool_calls"])


@st.composite
def answers(draw: st.DrawFn) -> list[Event]:
    events: list[Event] = list(draw(st.lists(plain, max_size=6)))
    for index in range(draw(st.integers(0, 3))):
        events.append(ToolOpened(index, f"call_{index}", draw(st.sampled_from(["f", "g"]))))
        fragments = draw(st.lists(texts, max_size=3))
        events += [ArgumentsGrown(index, fragment) for fragment in fragments]
        if draw(st.booleans()):
            events.append(ToolClosed(index))
        events += draw(st.lists(plain, max_size=2))
    return [*events, Finished(draw(reasons))]


@st.composite
def conversations(draw: st.DrawFn) -> tuple[int, list[Delta]]:
    """Deltas of one to three choices, interleaved; each in its own order, some events together."""
    n = draw(st.integers(1, 3))
    queues = [draw(answers()) for _ in range(n)]
    deltas = []
    while any(queues):
        choice = draw(st.sampled_from([k for k in range(n) if queues[k]]))
        if draw(st.booleans()):
            deltas.append(Delta(choice, (), (token("held back"),)))
        size = draw(st.integers(1, 3))
        taken, queues[choice] = queues[choice][:size], queues[choice][size:]
        logprobs = draw(st.lists(texts, max_size=2))
        deltas.append(Delta(choice, tuple(taken), tuple(token(text) for text in logprobs)))
    return n, deltas


def essence(completion: ChatCompletion) -> list[object]:
    """What a completion says, whether it was streamed or not."""
    return [
        (
            choice.index,
            choice.finish_reason,
            choice.message.role,
            choice.message.content or "",
            getattr(choice.message, "reasoning_content", None),
            [
                (call.id, call.type, call.function.name, call.function.arguments)
                for call in choice.message.tool_calls or ()
                if call.type == "function"
            ],
            [entry.token for entry in (choice.logprobs and choice.logprobs.content) or ()],
        )
        for choice in completion.choices
    ]


@given(conversations(), st.booleans())
def test_a_stream_put_together_is_the_body(
    conversation: tuple[int, list[Delta]], hidden: bool
) -> None:
    n, deltas = conversation
    asked = {
        "n": n,
        "logprobs": True,
        "include_reasoning": not hidden,
        "stream_options": {"include_usage": True},
    }
    streamed = accumulated(stream(chat_reply(**asked), deltas))
    body = ChatCompletion.model_validate(whole(deltas, **asked))
    assert essence(streamed) == essence(body)
    assert streamed.usage == body.usage
