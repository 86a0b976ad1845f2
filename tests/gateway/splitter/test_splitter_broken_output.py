"""What is not as it should be is text, or a call closed as far as it came."""

# ruff: noqa: E501 — a table is read along its rows

import json
from typing import Any

import pytest

from gateway.splitter import FORMATS, Splitter
from gateway.splitter.payloads.arguments import DEEPEST
from gateway.terms.events import Finished, FinishReason, ToolOpened
from gateway.terms.request import Tool
from tests.every import for_every
from tests.gateway.splitter.corpus import Answer, join
from tests.gateway.splitter.renderers import RENDERERS

TOOLS = [
    Tool(
        name="weather",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
        },
    )
]


def read(
    format: str, text: str, reason: FinishReason = "stop", *, parse_tools: bool = True
) -> Answer:
    split = Splitter(FORMATS[format], in_reasoning=False, tools=TOOLS, parse_tools=parse_tools)
    events = [event for character in text for event in split.feed(character)]
    return join(events + split.finish(reason))


NEVER_A_CALL = [
    ("hermes_json", "<tool_call>\nno JSON\n</tool_call>"),
    ("hermes_json", '<tool_call>\n{"name": "weather", "arguments": <object>}\n</tool_call>'),
    ("hermes_json", '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>'),
    ("hermes_json", '<tool_call>{"name": "weather", "arguments": {city: 1}}</tool_call>'),
    ("hermes_json", '<tool_call>{"name": "weather", "arguments": "Oslo"}</tool_call>'),
    ("hermes_json", '<tool_call>{"name": "", "arguments": {}}</tool_call>'),
    ("hermes_json", '<tool_call>{"name": "two words", "arguments": {}}</tool_call>'),
    ("hermes_json", '<tool_call>{"arguments": {}}</tool_call>'),
    ("hermes_json", "<tool_call>{}</tool_call>"),
    ("hermes_json", '<tool_call>{"name" "weather"}</tool_call>'),
    ("hermes_json", '<tool_call>{"name": 5}</tool_call>'),
    ("hermes_json", '<tool_call>{"name": "weather" "arguments": {}}</tool_call>'),
    ("hermes_json", '<tool_call>{"name": "weather", "arg'),
    ("hermes_json", '<tool_call>{"name": "weath'),
    ("hermes_json", '<tool_call>{"name": "weath\\'),
    ("jamba", "<tool_calls>nothing</tool_calls>"),
    ("phi4_mini", "functools is a module of Python, functools[0] is not."),
    ("cohere_action_json", "Action: none is needed."),
    ("llama3_json", '{"sku": "K1", "count": 2}'),
    ("llama3_json", '{"name": "Ada", "parameters": {"born": 1815}}'),
    ("llama3_json", "weather.report(city)"),
    ("pythonic", "[Harbor map](https://example.org) shows the quay."),
    ("pythonic", "[1, 2] is a list."),
    ("pythonic", "[weather] is a word."),
    ("pythonic", "[print(x='1')]"),
    ("pythonic", "[weather('Oslo')]"),
    ("pythonic", "[weather(='Oslo')]"),
    ("xlam_array", "```json\n[1, 2]\n```"),
    ("mistral_v11", "[TOOL_CALLS]weather[ARGS]soon"),
    ("mistral_v11", "[TOOL_CALLS]weather[ARGS]{soon}"),
    ("kimi_k2", "<|tool_calls_section_begin|>weather"),
    ("functionary_v3_1", "<function=NAME> is how a call begins."),
    ("qwen3_coder_xml", "Calls are written `<function=NAME>` inside."),
    ("qwen3_coder_xml", "<tool_call>\n<function=weather>\nwhat?"),
    ("qwen3_coder_xml", "<tool_call>\n<function=unknown>"),
    ("qwen3_coder_xml", "<tool_call> is a tag."),
    ("minimax_m2", '<minimax:tool_call><invoke tool="weather">'),
    ("glm45", "Use <tool_call> and </tool_call>."),
    ("glm45", "<tool_call>unknown</tool_call>"),
    ("minimax_m3", "]<]minimax[>[<tool_call>nothing"),
    ("minimax_m3", "]<]minimax[>[<tool_call>]<]minimax[>[<invoke>"),
    ("gemma4", "<|tool_call>weather{}<tool_call|>"),
]


@for_every(("format", "text"), NEVER_A_CALL)
def test_what_never_becomes_a_call_is_content(format: str, text: str) -> None:
    answer = read(format, text)
    assert answer.content == text
    assert answer.names == ()
    assert answer.finished.reason == "stop"


def test_what_looked_like_a_call_is_reported_in_a_warning() -> None:
    warning = read("hermes_json", "<tool_call>no").finished.warning
    assert warning == "no tool call after '<tool_call>': '{' expected"


BROKEN_OFF = [
    ("hermes_json", '<tool_call>{"name": "weather", "arguments": {"city": "Os', {"city": "Os"}),
    ("hermes_json", '<tool_call>{"name": "weather", "arguments": {"city": "Os\\', {"city": "Os"}),
    ("hermes_json", '<tool_call>{"name": "weather", "arguments": {"tags": ["a", "b', {"tags": ["a", "b"]}),
    ("hermes_json", '<tool_call>{"name": "weather", "arguments": {"tags": ["a", ', {"tags": ["a"]}),
    ("hermes_json", '<tool_call>{"name": "weather", "arguments": {"days": 1', {}),
    ("hermes_json", '<tool_call>{"name": "weather", "arguments": {"da', {}),
    ("hermes_json", '<tool_call>{"name": "weather", "arguments": {"city": "Oslo", "days":', {"city": "Oslo"}),
    ("mistral_v11", '[TOOL_CALLS]weather[ARGS]{"city": "Os', {"city": "Os"}),
    ("qwen3_coder_xml", "<tool_call><function=weather><parameter=city>\nOs", {"city": "Os"}),
    ("qwen3_coder_xml", "<tool_call><function=weather><parameter=days>\n1", {}),
    ("qwen3_coder_xml", "<tool_call><function=weather><parameter=city>Oslo</parameter><param", {"city": "Oslo"}),
    ("glm45", "<tool_call>weather<arg_key>city</arg_key><arg_value>Os", {"city": "Os"}),
    ("glm45", "<tool_call>weather<arg_key>ci", {}),
    ("pythonic", "[weather(city='Os", {"city": "Os"}),
    ("pythonic", "[weather(city='Os\\", {"city": "Os"}),
    ("pythonic", "[weather(days=1", {}),
    ("gemma4", '<|tool_call>call:weather{city:<|"|>Os', {"city": "Os"}),
    ("gemma4", "<|tool_call>call:weather{days:1", {}),
    ("gemma4", '<|tool_call>call:weather{<|"|>ci', {}),
    ("minimax_m3", ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="weather">]<]minimax[>[<city>Os', {"city": "Os"}),
    ("minimax_m3", ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="weather">]<]minimax[>[<days>1', {}),
    ("minimax_m3", ']<]minimax[>[<tool_call>]<]minimax[>[<invoke name="weather">]<]minimax[>[</days>', {}),
]  # fmt: skip


@for_every("reason", ["length", "stop"])
@for_every(("format", "text", "arguments"), BROKEN_OFF)
def test_a_call_that_breaks_off_is_closed_as_far_as_it_came(
    format: str, text: str, arguments: dict[str, object], reason: FinishReason
) -> None:
    answer = read(format, text, reason)
    assert answer.names == ("weather",)
    assert json.loads(answer.arguments[0]) == arguments
    assert answer.finished.reason == reason  # so that nobody takes it for a call to be executed
    assert answer.finished.warning is not None
    assert "broke off" in answer.finished.warning


def test_text_after_the_place_where_a_call_broke_is_content() -> None:
    answer = read("hermes_json", '<tool_call>{"name": "weather", "arguments": {"days": ?}} Sorry.')
    assert answer.arguments == ("{}",)
    assert answer.content == '"days": ?}} Sorry.'
    assert answer.finished.reason == "stop"


def test_nesting_has_a_bottom() -> None:
    deep = '<tool_call>{"name": "weather", "arguments": {"tags": ' + "[" * 5000
    answer = read("hermes_json", deep)
    assert "nested deeper" in (answer.finished.warning or "")
    assert json.loads(answer.arguments[0])["tags"] == deepest(DEEPEST - 1)
    assert answer.content == "[" * (5000 - DEEPEST + 1)


def deepest(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_calls_before_one_that_is_none_are_delivered() -> None:
    answer = read("mistral_v3", '[TOOL_CALLS][{"name": "weather", "arguments": {}}, {"name": ?')
    assert answer.names == ("weather",)
    assert answer.content == ', {"name": ?'


COMPLETE_ENOUGH = [
    ("hermes_json", '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}'),
    ("hermes_json", '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}\n</tool_call>'),
    ("hermes_json", '<tool_call>{"name": "weather", "arguments": {"city": "Oslo",}}</tool_call>'),
    ("hermes_json", '<tool_call>```json\n{"name": "weather", "arguments": {"city": "Oslo"}}\n```</tool_call>'),
    ("hermes_json", '<tool_call>{"x": [1, {}], "name": "weather", "arguments": {"city": "Oslo"}, "id": 7}'),
    ("hermes_json", '<tool_call>{"type": "function", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}'),
    ("llama3_json", '{"type": "function", "function": {"name": "weather", "parameters": {"city": "Oslo"}}}'),
    ("kimi_k2", '<|tool_calls_section_begin|><|tool_call_begin|>weather:0<|tool_call_argument_begin|>{"city": "Oslo"}'),
    ("deepseek_v3", '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Oslo"}'),
    ("mistral_v11", '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Oslo"}}]'),
    ("qwen3_coder_xml", "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>"),
    ("qwen3_coder_xml", "<tool_call>\n<function=weather>\n<parameter=city>Oslo</parameter>\n</tool_call>"),
    ("minimax_m2", "<minimax:tool_call><invoke name='weather'><parameter name=city>Oslo</parameter></invoke>"),
    ("glm45", "<tool_call>weather<arg_key>city</arg_key><arg_value>Oslo</arg_value>"),
    ("hy3", "<tool_calls><tool_call>weather<tool_sep><arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_calls>"),
    ("lfm2_pythonic", "<|tool_call_start|>[weather(city='Oslo',)"),
    ("gemma4", '<|tool_call>call:weather{<|"|>city<|"|>: "Oslo",}'),
    ("gemma4", "<|tool_call>call:weather{city:Oslo}"),
    ("llama3_json", '<|python_tag|>weather.call(city="Oslo")<|eom_id|>'),
]  # fmt: skip


@pytest.mark.parametrize(("format", "text"), COMPLETE_ENOUGH)
def test_a_call_without_its_formalities_is_a_call(format: str, text: str) -> None:
    answer = read(format, text)
    assert answer.names == ("weather",)
    assert json.loads(answer.arguments[0]) == {"city": "Oslo"}
    assert answer.content == ""
    assert answer.finished.reason == "tool_calls"


# From the broken bar on, the output may end anywhere.
CUT_IN_THE_END = [
    ("hermes_json", '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}¦}\n</tool_call>'),
    ("qwen3_coder_xml", "<tool_call><function=weather><parameter=city>Oslo</parameter>¦\n</function>\n</tool_call>"),
    ("step3_steptml", '<｜tool_calls_begin｜><steptml:invoke name="weather"><steptml:parameter name="city">Oslo</steptml:parameter>¦</steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>'),
    ("glm45", "<tool_call>weather<arg_key>city</arg_key><arg_value>Oslo</arg_value>¦\n</tool_call>"),
    ("deepseek_v31", '<｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Oslo"}¦<｜tool▁call▁end｜><｜tool▁calls▁end｜>'),
    ("lfm2_pythonic", "<|tool_call_start|>[weather(city='Oslo')¦]<|tool_call_end|>"),
    ("gemma4", '<|tool_call>call:weather{city:<|"|>Oslo<|"|>}¦<tool_call|>'),
]  # fmt: skip


@pytest.mark.parametrize(("format", "text"), CUT_IN_THE_END)
def test_what_is_left_of_an_end_marker_is_no_text(format: str, text: str) -> None:
    whole, rest = text.split("¦")
    for end in range(len(rest) + 1):
        answer = read(format, whole + rest[:end], "length")
        assert answer.names == ("weather",)
        assert json.loads(answer.arguments[0]) == {"city": "Oslo"}
        assert answer.content == ""
        assert answer.finished == Finished("length")


def test_an_object_in_an_object_in_an_object_is_no_call() -> None:
    text = '<tool_call>{"function": {"function": {"name": "weather"}}}</tool_call>'
    assert read("hermes_json", text).content == text


NO_ARGUMENTS = [
    ("hermes_json", '<tool_call>{"name": "weather"}</tool_call>'),
    ("hermes_json", '<tool_call>{"name": "weather", "arguments": null}</tool_call>'),
    ("hermes_json", '<tool_call>{"name": "weather", "arguments": ""}</tool_call>'),
    ("qwen3_coder_xml", "<tool_call><function=weather>"),
    ("glm45", "<tool_call>weather</tool_call>"),
    ("kimi_k2", "<|tool_call_begin|>weather<|tool_call_argument_begin|><|tool_call_end|>"),
    ("harmony", "<|channel|>commentary to=functions.weather<|message|><|call|>"),
]


@pytest.mark.parametrize(("format", "text"), NO_ARGUMENTS)
def test_a_call_without_arguments_has_an_empty_object(format: str, text: str) -> None:
    answer = read(format, text)
    assert answer.names == ("weather",)
    assert answer.arguments == ("{}",)


@for_every("format", sorted(FORMATS))
def test_without_tools_nothing_is_a_call(format: str) -> None:
    text = (
        '<tool_call>{"name": "weather"}</tool_call> [TOOL_CALLS]weather{} [weather()] functools[]'
    )
    answer = read(format, text, parse_tools=False)
    assert answer.content == text
    split = Splitter(FORMATS[format], in_reasoning=False)
    assert not any(isinstance(event, ToolOpened) for event in split.feed(text))


@pytest.mark.parametrize(
    ("engine", "text", "expected"),
    [
        ("stop", "Hello", "stop"),
        ("length", "Hello", "length"),
        ("content_filter", "Hello", "content_filter"),
        ("tool_calls", "Hello", "stop"),
        ("tool_calls", '<tool_call>{"name": "weather"}', "tool_calls"),
        ("stop", '<tool_call>{"name": "weather"}', "tool_calls"),
        ("length", '<tool_call>{"name": "weather"}', "length"),
    ],
)
def test_the_finish_reason(engine: FinishReason, text: str, expected: FinishReason) -> None:
    assert read("hermes_json", text, engine).finished.reason == expected


def test_an_empty_output() -> None:
    split = Splitter(FORMATS["hermes_json"], in_reasoning=False, tools=TOOLS)
    assert split.finish("stop") == [Finished("stop")]


def test_a_call_in_reasoning_that_is_none_stays_reasoning() -> None:
    split = Splitter(FORMATS["hermes_json"], in_reasoning=True, tools=TOOLS)
    answer = join(split.feed("A <tool_call> is not needed.</think>No.") + split.finish("stop"))
    assert answer.reasoning == "A <tool_call> is not needed."
    assert answer.content == "No."


@for_every("id", sorted(RENDERERS))
def test_a_call_in_unfinished_reasoning_is_a_call(id: str) -> None:
    entry = FORMATS[id]
    if entry.reasoning is None or any(syntax.at_start for syntax in entry.syntaxes):
        return
    call = RENDERERS[id]([("weather", {"city": "Bergen"})])
    text = f"{entry.reasoning.open}Well. {call}"
    split = Splitter(entry, in_reasoning=False, tools=TOOLS)
    answer = join([*split.feed(text), *split.finish("stop")])
    assert (answer.reasoning.strip(), answer.content.strip()) == ("Well.", "")
    assert answer.names == ("weather",)
    assert answer.finished.reason == "tool_calls"


def test_an_empty_array_of_calls_is_no_call_and_no_text() -> None:
    answer = read("jamba", "None.<tool_calls>[]</tool_calls>")
    assert answer.content == "None."
    assert answer.names == ()
