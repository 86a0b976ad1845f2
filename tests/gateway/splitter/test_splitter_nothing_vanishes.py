"""What a model wrote is in a call's name and arguments, or it is text: wherever a call is cut, and
whatever stands in it that doesn't belong there."""

# ruff: noqa: E501 — a table is read along its rows

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.splitter import FORMATS, Splitter
from gateway.splitter.payloads.syntax import JsonCalls
from gateway.terms.request import Tool
from tests.every import for_every
from tests.gateway.splitter.corpus import Answer, join
from tests.gateway.splitter.renderers import RENDERERS

TOOL = Tool(
    name="weather",
    parameters={
        "type": "object",
        "properties": {
            "alpha": {"type": "string"},
            "bravo": {"type": "integer"},
            "charlie": {"type": "array", "items": {"type": "string"}},
            "delta": {"type": "object", "properties": {"echo": {"type": "number"}}},
            "golf": {"type": ["string", "null"]},
        },
    },
)
ARGUMENTS: dict[str, Any] = {
    "alpha": "sierra victor",
    "bravo": 271828,
    "charlie": ["xray", "yankee"],
    "delta": {"echo": 314.159},
    "golf": "zulu",
}
WORDS = set(re.findall(r"\w+", f"weather {json.dumps(ARGUMENTS)}"))
everywhere = for_every("format", RENDERERS)


def read(format: str, text: str) -> Answer:
    splitter = Splitter(FORMATS[format], in_reasoning=False, tools=[TOOL])
    return join([*splitter.feed(text), *splitter.finish("stop")])


def delivered(answer: Answer) -> str:
    """All that a client or the log sees of an answer."""
    values = [json.dumps(json.loads(text), ensure_ascii=False) for text in answer.arguments]
    return "\n".join((answer.content, *answer.names, *values, answer.finished.warning or ""))


def words_of(raw: str) -> Iterator[str]:
    """The words of the call's data in an output, the last of them possibly cut."""
    for found in re.finditer(r"\w+", raw):
        cut = found.end() == len(raw) and len(found[0]) > 2
        if found[0] in WORDS or (cut and any(word.startswith(found[0]) for word in WORDS)):
            yield found[0]


def assert_all_there(answer: Answer, raw: str) -> None:
    there = delivered(answer)
    for word in words_of(raw):
        assert there.count(word) >= 1, (word, raw, there)


@everywhere
def test_a_call_may_be_cut_anywhere(format: str) -> None:
    raw = RENDERERS[format]([("weather", ARGUMENTS)])
    for cut in range(len(raw)):
        assert_all_there(read(format, raw[:cut]), raw[:cut])


@everywhere
def test_a_stray_word_may_stand_anywhere(format: str) -> None:
    raw = RENDERERS[format]([("weather", ARGUMENTS)])
    headers = FORMATS[format].headers
    ends = headers.ends if headers is not None else ()
    begin = min((raw.index(end) for end in ends if end in raw), default=0)  # a header says where to
    for place in re.finditer(r"\b", raw[begin:]):
        at = begin + place.start()
        if re.search(r'\b(?:string|type|index)="\w*$', raw[:at]):
            continue  # a value of an attribute that says how to read, not what
        broken = f"{raw[:at]} stray {raw[at:]}"
        answer = read(format, broken)
        assert "stray" in delivered(answer), (broken, answer)
        assert_all_there(answer, broken)


JSON_CALLS = [
    name
    for name in RENDERERS
    if isinstance(next(iter(FORMATS[name].syntaxes), None), JsonCalls) and name != "apertus"
]


@for_every("format", JSON_CALLS)
@for_every("key", ["args", "input", "Arguments"])
def test_an_object_that_is_no_call_of_the_family_is_content(format: str, key: str) -> None:
    text = re.sub(
        '"(?:arguments|parameters)"',
        f'"{key}"',
        RENDERERS[format]([("weather", {"alpha": "zulu"})]),
    )
    for pieces in ([text], list(text)):
        splitter = Splitter(FORMATS[format], in_reasoning=False, tools=[TOOL])
        events = [event for piece in pieces for event in splitter.feed(piece)]
        answer = join(events + splitter.finish("stop"))
        assert answer.names == ()
        assert answer.content.strip() == text.strip()
        assert answer.finished.reason == "stop"


@pytest.mark.parametrize("arguments", ["null", '""'])
def test_other_keys_beside_empty_arguments_make_no_call(arguments: str) -> None:
    text = f'<tool_call>{{"name": "weather", "arguments": {arguments}, "args": {{"alpha": 1}}}}</tool_call>'
    assert read("hermes_json", text).content == text


def test_a_key_that_is_left_out_of_a_call_is_in_the_warning() -> None:
    text = '<tool_call>{"name": "weather", "arguments": {"alpha": "a"}, "id": 1, "mood": "fair"}</tool_call>'
    answer = read("hermes_json", text)
    assert answer.arguments == ('{"alpha":"a"}',)
    assert answer.finished.reason == "tool_calls"
    assert answer.finished.warning == "a tool call had the key 'mood', which is left out"


def test_two_calls_in_one_object_named_by_its_keys() -> None:
    text = '<|tools_prefix|>[{"weather": {"bravo": 1}, "other": null}]<|tools_suffix|>'
    answer = read("apertus", text)
    assert list(zip(answer.names, answer.arguments, strict=True)) == [
        ("weather", '{"bravo":1}'),
        ("other", "{}"),
    ]


JSON_TEXT = (
    "hermes_json",
    '<tool_call>{{"name": "weather", "arguments": {{"bravo": {}, "alpha": "a"}}}}</tool_call>',
)
PYTHON = ("olmo3_pythonic", "<function_calls>weather(bravo={}, alpha='a')</function_calls>")
BARE = ("gemma4", '<|tool_call>call:weather{{bravo:{},alpha:<|"|>a<|"|>}}<tool_call|>')


@for_every(("format", "text"), [JSON_TEXT, PYTHON, BARE])
@for_every("word", ["12px", "Oslo", "1_000", "1e999", "NaN", "-inf", "2026-11-22", "1.2.3"])
def test_a_bare_word_is_a_string(format: str, text: str, word: str) -> None:
    answer = read(format, text.format(word))
    assert json.loads(answer.arguments[0]) == {"bravo": word, "alpha": "a"}
    assert answer.content == ""
    assert answer.finished.reason == "tool_calls"
    assert answer.finished.warning is None


@pytest.mark.parametrize(("format", "text"), [JSON_TEXT, PYTHON, BARE])
def test_a_number_longer_than_any_reader_takes_breaks_the_call_off(format: str, text: str) -> None:
    answer = read(format, text.format("7" * 5000))
    assert answer.content.count("7") == 5000
    assert answer.finished.reason == "stop"


def minimax(inner: str) -> str:
    text = f'<tool_call><invoke name="weather">{inner}</invoke></tool_call>'
    return text.replace("<", "]<]minimax[>[<")


@pytest.mark.parametrize(
    ("inner", "value"),
    [
        ("<delta>words <echo>1</echo></delta>", {"delta": "words ]<]minimax[>[<echo>1]<]minimax[>[</echo>"}),
        ("<charlie>one<item>two</item></charlie>", {"charlie": "one]<]minimax[>[<item>two]<]minimax[>[</item>"}),
        ("<free>one<a></a><b>2</b></free><bravo>3</bravo>", {"free": "one]<]minimax[>[<a>]<]minimax[>[</a>]<]minimax[>[<b>2]<]minimax[>[</b>", "bravo": 3}),
    ],
)  # fmt: skip
def test_text_before_nested_elements_makes_the_value_text(inner: str, value: Any) -> None:
    answer = read("minimax_m3", minimax(inner))
    assert json.loads(answer.arguments[0]) == value
    assert answer.finished.reason == "tool_calls"


def test_a_value_that_was_cut_is_content() -> None:
    answer = read("qwen3_coder_xml", "<tool_call><function=weather><parameter=bravo>\n12")
    assert answer.arguments == ("{}",)
    assert answer.content == "<parameter=bravo>\n12"
    assert "broke off" in (answer.finished.warning or "")


def test_a_header_that_was_cut_is_in_the_warning() -> None:
    answer = read("harmony", "<|start|>assistant to=functions.wea")
    assert (
        answer.finished.warning
        == "a header that begins no message: '<|start|>assistant to=functions.wea'"
    )


def test_a_close_tag_that_closes_nothing_is_content() -> None:
    text = minimax("<alpha>a</alpha><free></other>")
    answer = read("minimax_m3", text)
    assert answer.arguments == ('{"alpha":"a"}',)
    assert "</other>" in answer.content
    assert answer.finished.reason == "stop"
