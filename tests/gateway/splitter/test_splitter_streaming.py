"""What a client sees while output arrives: text at once, names first, growing arguments."""

# ruff: noqa: E501 — a table is read along its rows

import json

import pytest

from gateway.splitter import FORMATS, Splitter
from gateway.terms.events import (
    ArgumentsGrown,
    Content,
    Event,
    Finished,
    Reasoning,
    ToolClosed,
    ToolOpened,
)
from gateway.terms.request import Tool

WEATHER = Tool(
    name="weather",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    },
)


def splitter(format: str = "hermes_json", *, in_reasoning: bool = False) -> Splitter:
    return Splitter(FORMATS[format], in_reasoning=in_reasoning, tools=[WEATHER])


def fragments(events: list[Event]) -> str:
    return "".join(event.fragment for event in events if isinstance(event, ArgumentsGrown))


def test_text_without_a_marker_passes_at_once() -> None:
    split = splitter()
    assert split.feed("Hello") == [Content("Hello")]
    assert split.feed(", world") == [Content(", world")]
    assert split.feed("") == []


def test_only_what_may_become_a_marker_waits() -> None:
    split = splitter()
    assert split.feed("a < b, <tool") == [Content("a < b,")]
    assert split.feed("box>") == [Content(" <toolbox>")]


def test_what_waits_at_the_end_is_text() -> None:
    split = splitter()
    assert split.feed("see <tool_call") == [Content("see")]
    assert split.finish("stop") == [Content(" <tool_call"), Finished("stop")]


def test_white_space_at_the_end_of_the_answer_belongs_to_it() -> None:
    split = splitter()
    assert split.feed("one\n") == [Content("one")]
    assert split.feed("two\n") == [Content("\ntwo")]
    assert split.finish("length") == [Content("\n"), Finished("length")]


def test_white_space_beside_a_marker_belongs_to_nobody() -> None:
    split = splitter(in_reasoning=True)
    assert split.feed("Hm.\n") == [Reasoning("Hm.")]
    assert split.feed("</think>\n\nYes.") == [Content("Yes.")]


def test_white_space_alone_is_no_answer() -> None:
    split = splitter()
    assert split.feed(" \n") == []
    assert split.finish("stop") == [Finished("stop")]


def test_white_space_that_begins_a_continued_answer_is_kept() -> None:
    split = splitter()
    assert split.feed(" and") == [Content(" and")]


def test_stretches_of_one_kind_are_parted_by_a_newline() -> None:
    split = splitter("lfm2_pythonic")
    events = split.feed("One.<|tool_call_start|>[weather(city='Oslo')]<|tool_call_end|>Two.")
    assert [event.text for event in events if isinstance(event, Content)] == ["One.", "\nTwo."]


@pytest.mark.parametrize(
    ("format", "before", "argument", "after"),
    [
        ("hermes_json", '<tool_call>\n{"name": "weather", "arguments": {"city": "', "Os|lo", '"}}'),
        ("mistral_v11", '[TOOL_CALLS]weather[ARGS]{"city": "', "Os|lo", '"}'),
        ("qwen3_coder_xml", "<tool_call>\n<function=weather>\n<parameter=city>\n", "Os|lo", "\n</parameter>\n</function>"),
        ("glm45", "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>", "Os|lo", "</arg_value></tool_call>"),
        ("pythonic", "[weather(city='", "Os|lo", "')]"),
        ("gemma4", '<|tool_call>call:weather{city:<|"|>', "Os|lo", '<|"|>}'),
        ("minimax_m3", ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="weather">]<]minimax[>[<city>', "Os|lo", "]<]minimax[>[</city>]<]minimax[>[</invoke>"),
    ],
)  # fmt: skip
def test_the_name_goes_first_and_a_string_streams(
    format: str, before: str, argument: str, after: str
) -> None:
    split = splitter(format)
    first, second = argument.split("|")
    opened = split.feed(before)
    assert isinstance(opened[0], ToolOpened)
    assert (opened[0].index, opened[0].name) == (0, "weather")
    assert fragments(opened) == '{"city":"'
    assert fragments(split.feed(first)) == first
    assert fragments(split.feed(second)) == second
    assert split.feed(after)[-1] == ToolClosed(0)
    assert split.finish("stop") == [Finished("tool_calls")]


def test_what_is_not_yet_json_waits_for_its_value() -> None:
    split = splitter("qwen3_coder_xml")
    split.feed("<tool_call><function=weather>")
    assert fragments(split.feed("<parameter=days>1")) == "{"
    assert fragments(split.feed("4")) == ""
    assert fragments(split.feed("</parameter></function>")) == '"days":14}'


def test_an_escape_is_never_cut() -> None:
    split = splitter()
    split.feed('<tool_call>{"name": "weather", "arguments": {"city": "a')
    for piece in ("\\", "ud8", "3d", "\\u", "de8"):
        assert fragments(split.feed(piece)) == ""
    assert fragments(split.feed("0")) == "\\ud83d\\ude80"


def test_ids_are_unique_and_indices_rise() -> None:
    split = splitter()
    events = split.feed('<tool_call>{"name": "weather"}</tool_call>\n' * 3)
    opened = [event for event in events if isinstance(event, ToolOpened)]
    assert [call.index for call in opened] == [0, 1, 2]
    assert len({call.id for call in opened}) == 3
    assert all(call.id.startswith("call_") and len(call.id) == 29 for call in opened)


def test_an_id_given_twice_is_replaced() -> None:
    split = splitter("solar_open")
    call = '<|tool_call:begin|>x<|tool_call:name|>weather<|tool_call:args|>{"city": "Oslo"}<|tool_call:end|>'
    opened = [e for e in split.feed("<|tool_calls|>" + call * 2) if isinstance(e, ToolOpened)]
    assert opened[0].id == "x"
    assert opened[1].id.startswith("call_")


def test_mistral_ids_are_nine_alphanumerics() -> None:
    opened = splitter("mistral_v11").feed('[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}')[0]
    assert isinstance(opened, ToolOpened)
    assert len(opened.id) == 9
    assert opened.id.isalnum()


def test_kimi_ids_count_the_calls_of_the_conversation() -> None:
    split = Splitter(FORMATS["kimi_k2"], in_reasoning=False, tools=[WEATHER], first_call_number=4)
    call = "<|tool_call_begin|>weather<|tool_call_argument_begin|>{}<|tool_call_end|>"
    numbered = call.replace("weather<", "functions.weather:6<")
    events = split.feed(f"<|tool_calls_section_begin|>{call}{numbered}{call}")
    ids = [event.id for event in events if isinstance(event, ToolOpened)]
    assert ids == ["functions.weather:4", "functions.weather:6", "functions.weather:7"]


def test_arguments_before_the_name_wait_for_it() -> None:
    split = splitter()
    assert split.feed('<tool_call>{"arguments": {"city": "Oslo"}, ') == []
    events = split.feed('"name": "weather"}')
    assert isinstance(events[0], ToolOpened)
    assert json.loads(fragments(events)) == {"city": "Oslo"}
