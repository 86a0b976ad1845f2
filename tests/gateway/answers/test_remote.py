"""Answers of other servers as events."""

import asyncio
from typing import Any

import pytest

from backends.remote import RemoteCall, RemoteDelta
from gateway.answers.remote import RemoteChoice, Shown, reporting_wait
from gateway.events import (
    ArgumentsGrown,
    Content,
    Event,
    Finished,
    Reasoning,
    ToolClosed,
    ToolOpened,
    joined,
)
from gateway.registry import Waiting


def events_of(*deltas: RemoteDelta, shown: Shown = "split", raw: bool = False) -> list[Event]:
    choice = RemoteChoice(0, shown=shown, raw=raw)
    made = [delta for one in deltas if (delta := choice.take(one)) is not None]
    if (end := choice.end()) is not None:
        made.append(end)
    return joined([event for delta in made for event in delta.events])


def says(text: str) -> RemoteDelta:
    return RemoteDelta(content=text)


END = RemoteDelta(finished="stop")
STOP = Finished("stop")


def test_reasoning_and_content_of_a_server_that_splits_stay_apart() -> None:
    events = events_of(RemoteDelta(reasoning="Hm."), says("Yes."), END)

    assert events == [Reasoning("Hm."), Content("Yes."), STOP]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_think_tags_in_the_content_are_reasoning(size: int) -> None:
    text = "<think>\nHm.\n</think>\n\nYes <think> is a tag."
    cut = [says(text[k : k + size]) for k in range(0, len(text), size)]

    assert events_of(*cut, END)[:1] == [Reasoning("Hm.")]
    whole = "".join(one.text for one in events_of(*cut, END) if isinstance(one, Content))
    assert whole.startswith("Yes ")


@pytest.mark.parametrize("text", ["<thin ice>", "<", "  <think", "a <think> b", "\n\n"])
def test_what_only_begins_like_a_tag_stays_content(text: str) -> None:
    assert events_of(*map(says, text), END) == [Content(text), STOP]


def test_a_server_that_tells_reasoning_apart_means_no_tags() -> None:
    events = events_of(RemoteDelta(reasoning="Hm."), says("<think>"), END)

    assert events == [Reasoning("Hm."), Content("<think>"), STOP]


def test_raw_text_is_not_looked_at() -> None:
    assert events_of(says("<think>Hm.</think>"), END, raw=True) == [
        Content("<think>Hm.</think>"),
        STOP,
    ]


def test_inline_reasoning_gets_tags() -> None:
    events = events_of(
        RemoteDelta(reasoning="H"), RemoteDelta(reasoning="m."), says("Yes."), END, shown="inline"
    )
    assert events == [Content("<think>\nHm.\n</think>\n\nYes."), STOP]


def test_inline_reasoning_without_an_answer_is_closed() -> None:
    events = events_of(RemoteDelta(reasoning="Hm."), END, shown="inline")

    assert events == [Content("<think>\nHm.\n</think>\n\n"), STOP]


def test_calls_are_opened_grown_and_closed() -> None:
    events = events_of(
        says("Look:"),
        RemoteDelta(calls=(RemoteCall(0, "1", "a", "{"),)),
        RemoteDelta(calls=(RemoteCall(0, arguments="}"), RemoteCall(1, "2", "b", ""))),
        RemoteDelta(finished="tool_calls"),
    )
    assert events == [
        Content("Look:"),
        ToolOpened(0, "1", "a"),
        ArgumentsGrown(0, "{}"),
        ToolOpened(1, "2", "b"),
        ToolClosed(0),
        ToolClosed(1),
        Finished("tool_calls"),
    ]


def test_an_answer_with_calls_ends_with_them_whatever_the_server_says() -> None:
    events = events_of(RemoteDelta(calls=(RemoteCall(0, "1", "a", "{}"),)), END)

    assert events[-1] == Finished("tool_calls")


def test_an_answer_without_a_reason_ends_all_the_same() -> None:
    assert events_of(says("x")) == [Content("x"), STOP]


def test_behind_the_end_nothing_counts() -> None:
    assert events_of(says("x"), END, says("y"), END) == [Content("x"), STOP]


def test_a_stop_string_is_reported() -> None:
    events: list[Any] = events_of(says("x"), RemoteDelta(finished="stop", stop="\n"))

    assert events[-1] == Finished("stop", stop="\n")


@pytest.mark.anyio
async def test_a_long_wait_for_the_other_server_is_reported_and_a_short_one_is_not() -> None:
    heard: asyncio.Queue[Waiting] = asyncio.Queue()
    with reporting_wait(heard.put_nowait, "far", quiet=60.0):
        pass
    with reporting_wait(heard.put_nowait, "far", quiet=0.0):
        news = await heard.get()

    assert (news.model, news.stage) == ("far", "queued")
    assert heard.empty()
