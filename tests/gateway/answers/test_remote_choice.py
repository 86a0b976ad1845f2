"""Answers of other servers as events."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from backends.contract.conversation import Tool
from backends.contract.latest import Latest
from backends.contract.remote import RemoteCall, RemoteDelta
from gateway.answers.remote_choice import (
    MOST_HABITS,
    HabitKey,
    RemoteChoice,
    Shown,
    ThinkingHabit,
)
from gateway.splitter import FORMATS, Splitter
from gateway.splitter.unparsed import BEGINNINGS, OPENERS
from gateway.terms.events import (
    ArgumentsGrown,
    Content,
    Event,
    Finished,
    Reasoning,
    ToolClosed,
    ToolOpened,
    joined,
)

FOLDER = Path(__file__).parents[1] / "splitter" / "cases"


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


def streamed(habit: ThinkingHabit, *texts: str, finished: str = "stop") -> list[Event]:
    choice = RemoteChoice(0, habit=habit)
    deltas = [*map(says, texts), RemoteDelta(finished=finished)]
    made = [delta for one in deltas if (delta := choice.take(one)) is not None]
    return joined([event for delta in made for event in delta.events])


@pytest.mark.parametrize("size", [1, 2, 5])
def test_reasoning_that_begins_in_the_prompt_is_known_from_the_second_stream_on(size: int) -> None:
    habit = ThinkingHabit({}, ("key", "model"))
    text = "Hm.\n</think>\n\nYes."
    cut = [text[k : k + size] for k in range(0, len(text), size)]

    assert streamed(habit, *cut) == [Content(text), STOP]
    assert streamed(habit, *cut) == [Reasoning("Hm."), Content("Yes."), STOP]
    assert streamed(habit, *cut) == [Reasoning("Hm."), Content("Yes."), STOP]


@pytest.mark.parametrize("first", ["Hm.\n</think>\n\nYes.", "</think>\n\n", " </think>"])
def test_reasoning_that_ends_where_the_answer_begins_is_known_at_once(first: str) -> None:
    habit = ThinkingHabit({}, ("key", "model"))
    thought = [Reasoning("Hm.")] if "Hm." in first else []
    rest = [] if "Yes." in first else ["Yes."]

    assert streamed(habit, first, *rest) == [*thought, Content("Yes."), STOP]
    assert habit.begins


def test_an_answer_taken_for_reasoning_comes_as_content_at_its_end_and_the_next_at_once() -> None:
    habit = ThinkingHabit({}, ("key", "model"))
    habit.note(begins=True)

    assert streamed(habit, "Yes", ".")[-2:] == [Content("Yes."), STOP]
    assert streamed(habit, "Yes", ".") == [Content("Yes."), STOP]


def test_reasoning_that_was_cut_stays_reasoning() -> None:
    habit = ThinkingHabit({}, ("key", "model"))
    habit.note(begins=True)

    assert streamed(habit, "Hm", finished="length") == [Reasoning("Hm"), Finished("length")]
    assert habit.begins


def test_who_writes_about_the_tags_changes_nothing() -> None:
    habit = ThinkingHabit({}, ("key", "model"))
    streamed(habit, "Write <think> and ", "</think>.")

    assert not habit.begins


def test_only_so_many_habits_are_kept() -> None:
    known = Latest[HabitKey, None](MOST_HABITS)
    for number in range(MOST_HABITS + 2):
        ThinkingHabit(known, (number,)).note(begins=True)

    assert len(known) == MOST_HABITS
    assert (0,) not in known


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


# ------------------------------------------------------------ what a server without a parser writes

CASES = [
    case
    for line in (FOLDER / "cases.jsonl").read_text("utf-8").splitlines()
    if (case := json.loads(line))["format"] in BEGINNINGS
    and case["expect"]["tool_calls"]
    and case["certainty"] != "policy"
    and not case["start_in_reasoning"]
    and "open_think" not in case["id"]  # reasoning that never ends is searched for nothing
    and any(opener in case["raw"] for opener in OPENERS)
]


def tools_of(case: dict[str, Any]) -> list[Tool]:
    functions = [one["function"] for one in case["tools"]]
    return [Tool(name=one["name"], parameters=one.get("parameters")) for one in functions]


def calls_in(events: Sequence[Event]) -> list[tuple[str, Any]]:
    names = {one.index: one.name for one in events if isinstance(one, ToolOpened)}
    texts = dict.fromkeys(names, "")
    for one in events:
        if isinstance(one, ArgumentsGrown):
            texts[one.index] += one.fragment
    return [(name, json.loads(texts[index] or "{}")) for index, name in names.items()]


def split(raw: str, size: int, tools: Sequence[Tool], *, whole: bool = False) -> list[Event]:
    choice = RemoteChoice(0, tools=tools, whole=whole)
    cut = [says(raw[k : k + size]) for k in range(0, len(raw), size)]
    made = [delta for one in (*cut, END) if (delta := choice.take(one)) is not None]
    return joined([event for delta in made for event in delta.events])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_calls_in_the_content_are_split_as_if_the_family_were_known(case: dict[str, Any]) -> None:
    tools = tools_of(case)
    known = Splitter(FORMATS[case["format"]], in_reasoning=False, tools=tools)
    expected = [*known.feed(case["raw"]), *known.finish("stop")]
    for size in (1, 3, 1000):
        events = split(case["raw"], size, tools)
        assert calls_in(events) == calls_in(expected), size
        assert isinstance(events[-1], Finished)
        assert events[-1].reason == "tool_calls"


@pytest.mark.parametrize(
    "text",
    [
        "Write <tool_call> and then JSON.",
        "[TOOL_CALLS] is a marker of Mistral's.",
        "a < b, [TOOL_",
        "  <tool_call>",
        "<tool_call>" + "x" * 400 + "{}",
    ],
)
@pytest.mark.parametrize("size", [1, 4, 1000])
def test_what_only_begins_like_a_call_stays_content(text: str, size: int) -> None:
    tool = Tool(name="look")
    assert split(text, size, [tool]) == [Content(text), STOP]
    assert split(text, size, []) == [Content(text), STOP]


def test_without_tools_nothing_in_the_content_is_a_call() -> None:
    text = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    assert split(text, 5, []) == [Content(text), STOP]
    events = split(text, 5, [Tool(name="look")])
    assert calls_in(events) == [("look", {})]


def test_a_server_that_parses_calls_may_write_markers_into_its_content() -> None:
    choice = RemoteChoice(0, tools=[Tool(name="look")])
    called = RemoteDelta(calls=(RemoteCall(0, "1", "look", "{}"),))
    made = [choice.take(one) for one in (says("Well, <tool"), called, END)]
    events = joined([event for delta in made if delta is not None for event in delta.events])
    assert events == [
        Content("Well, <tool"),
        ToolOpened(0, "1", "look"),
        ArgumentsGrown(0, "{}"),
        ToolClosed(0),
        Finished("tool_calls"),
    ]


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_the_end_of_reasoning_counts_without_its_beginning_in_a_whole_answer(size: int) -> None:
    text = "Let me see.\n</think>\n\nSeen."
    assert split(text, size, [], whole=True) == [Reasoning("Let me see."), Content("Seen."), STOP]
    assert split(text, size, []) == [Content(text), STOP]  # it was sent before it was known
    assert split("Plain.", size, [], whole=True) == [Content("Plain."), STOP]
    call = text + '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    events = split(call, size, [Tool(name="look")], whole=True)
    assert events[:2] == [Reasoning("Let me see."), Content("Seen.")]
    assert calls_in(events) == [("look", {})]
