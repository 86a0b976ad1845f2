"""Whatever a model writes, splitting it takes time and memory in proportion to its length."""

import importlib
import pkgutil
import re
import time
import tracemalloc
from collections.abc import Callable
from itertools import product

import pytest

import gateway.splitter
from gateway.splitter import FORMATS, Splitter, starts_in_reasoning
from gateway.splitter.payloads.reading import LONGEST, Markers
from gateway.terms.request import Tool
from tests.every import for_every
from tests.gateway.splitter.corpus import join
from tests.gateway.splitter.hostile import NOTE, TOKEN, Hostile, drawn
from tests.growth import GROWTH, growth

SMALL, LARGE = 2_000, 16_000  # characters


@pytest.mark.slow
@for_every("format", sorted(FORMATS))
def test_time_grows_as_the_text_does(format: str) -> None:
    for case in drawn(0.0015, [format]):
        assert growth(case.seconds, SMALL, LARGE) < GROWTH, case


M3 = "]<]minimax[>[<tool_call>]<]minimax[>[<invoke"
QWEN = "<tool_call><function=write_note><parameter"
KIMI = "<|tool_call_begin|>"
WORST = [
    Hostile("qwen3_coder_xml", QWEN + " ", "a"),
    Hostile("qwen3_coder_xml", QWEN + " ", "a "),
    Hostile("qwen3_coder_xml", QWEN + " ", 'a="'),
    Hostile("minimax_m2", "<minimax:tool_call><invoke", "name "),
    Hostile("minimax_m3", M3 + " name=", " "),
    Hostile("minimax_m3", M3 + ' name="write_note">]<]minimax[>[<title>', "]<]minimax[>[</"),
    Hostile("kimi_k2", f"{KIMI}functions.", ":1"),
    Hostile("kimi_k2", "", f"{KIMI}f<|tool_call_argument_begin|>{{}}<|tool_call_end|>"),
    Hostile("harmony", "<|start|>", "<|channel|>"),
    Hostile("harmony", "<|start|>", "a"),
    Hostile("hermes_json", '<tool_call>{"name": "', "\\u0041"),
    Hostile("hermes_json", '<tool_call>{"name": "write_note", "x": ', "["),
    Hostile("hermes_json", "", "<"),
    Hostile("deepseek_v4_dsml", "", "<｜"),
    Hostile("glm45", "<tool_call>write_note<arg_key>tags</arg_key><arg_value>", "</arg_value> "),
    Hostile("qwen3_coder_xml", "<tool_call><function=write_note><parameter=tags>", '["\\"'),
    Hostile("plain", "a", " "),
]


@pytest.mark.parametrize("case", WORST, ids=lambda case: f"{case.format}-{case.fill[:9]}")
def test_what_was_slow_once_is_not(case: Hostile) -> None:
    assert growth(case.seconds, SMALL, LARGE) < GROWTH


def test_ids_that_are_taken_are_not_searched_again() -> None:
    def call(name: str) -> str:
        return f"{KIMI}{name}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"

    def seconds(calls: int) -> float:
        taken = "".join(call(f"functions.f:{calls + number}") for number in range(calls))
        splitter = Splitter(FORMATS["kimi_k2"], in_reasoning=False, tools=[NOTE])
        begin = time.process_time()
        events = splitter.feed(taken + call("f") * calls)
        spent = time.process_time() - begin
        join(events + splitter.finish("stop"))
        return spent

    assert growth(seconds, 100, 800) < GROWTH


HELD = [
    Hostile("hermes_json", "<tool_call>", " "),
    Hostile("hermes_json", '<tool_call>{"x": "', "a"),
    Hostile("hermes_json", '<tool_call>{"arguments": {"x": "', "a"),
    Hostile("hermes_json", '<tool_call>{"arguments": {"x": ["', '1", "'),
    Hostile("qwen3_coder_xml", "<tool_call><function=write_note><parameter=tags>", "a "),
    Hostile("plain", "a", "\n"),
]


@pytest.mark.parametrize("case", HELD, ids=lambda case: f"{case.format}-{case.begin[-9:]}")
def test_what_is_held_back_is_not_much_more_than_its_text(case: Hostile) -> None:
    size = 40_000
    text = (case.begin + case.fill * size)[:size]
    pieces = [text[at : at + TOKEN] for at in range(0, size, TOKEN)]
    splitter = Splitter(FORMATS[case.format], in_reasoning=False, tools=[NOTE])
    tracemalloc.start()
    try:
        for piece in pieces:
            splitter.feed(piece)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20 * size


@for_every(
    ("format", "before", "fill"),
    [
        ("qwen3_coder_xml", "<tool_call><function=", "a"),
        ("minimax_m3", M3, " "),
        ("kimi_k2", KIMI, "7"),
        ("glm45", "<tool_call>", "a"),
        ("harmony", "<|start|>", "a"),
        ("gemma4", "<|tool_call>call:write_note{", "a"),
        ("olmo3_pythonic", "<function_calls>", "a"),
        ("mistral_v11", "[TOOL_CALLS]", "a"),
        ("hermes_json", '<tool_call>{"name": "', "a"),
    ],
)
@for_every("size", [1, 100, 100_000])
def test_what_is_too_long_for_a_name_is_text(
    format: str, before: str, fill: str, size: int
) -> None:
    text = before + fill * (LONGEST + 100) + '", "arguments": {"a": 1}}'
    splitter = Splitter(FORMATS[format], in_reasoning=False, tools=[Tool(name="write_note")])
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    answer = join(
        [event for piece in pieces for event in splitter.feed(piece)] + splitter.finish("stop")
    )
    assert answer.content.count(fill) >= LONGEST + 100
    assert answer.finished.reason == "stop"


@pytest.mark.parametrize("size", [7, 100_000])
def test_a_header_without_end_is_text(size: int) -> None:
    text = "<|start|>" + "<|channel|>" * (LONGEST + 10)
    splitter = Splitter(FORMATS["harmony"], in_reasoning=False, tools=[NOTE])
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    events = [event for piece in pieces for event in splitter.feed(piece)]
    answer = join(events + splitter.finish("stop"))
    assert answer.content.count("<|channel|>") >= LONGEST


def patterns() -> list[re.Pattern[str]]:
    """Every regular expression of the splitter: constants of its modules, and of its tables."""
    found: set[re.Pattern[str]] = set()
    for module in pkgutil.walk_packages(gateway.splitter.__path__, "gateway.splitter."):
        for value in vars(importlib.import_module(module.name)).values():
            values = value.values() if isinstance(value, dict) else [value]
            found.update(each for each in values if isinstance(each, re.Pattern))
    for headers in (entry.headers for entry in FORMATS.values() if entry.headers is not None):
        found.update(map(re.compile, (headers.recipient, headers.foreign, headers.channel)))
    return sorted(found, key=lambda pattern: pattern.pattern)


BAIT = (
    "a",
    "1",
    " ",
    "\n",
    '"',
    "'",
    "\\",
    "\\u",
    "=",
    ":",
    ".",
    "<",
    "<|",
    "</",
    "#",
    "to=",
    "[",
    "e",
)


@for_every("pattern", patterns(), label=lambda pattern: repr(pattern.pattern[:30]))
def test_no_regular_expression_goes_back_and_forth(pattern: re.Pattern[str]) -> None:
    def seconds_of(text: str) -> Callable[[int], float]:
        def seconds(size: int) -> float:
            whole = (text * size)[:size] + "\x00"
            begin = time.process_time()
            for _ in pattern.finditer(whole):
                pass
            pattern.fullmatch(whole)
            return time.process_time() - begin

        return seconds

    for bait in (first + second for first, second in product(BAIT, BAIT)):
        assert growth(seconds_of(bait), 500, 4_000) < GROWTH, bait


def test_a_prompt_may_end_in_any_number_of_newlines() -> None:
    def seconds(size: int) -> float:
        begin = time.process_time()
        assert starts_in_reasoning(FORMATS["hermes_json"], "<think>" + "\n" * size)
        return time.process_time() - begin

    assert growth(seconds, 5_000, 40_000) < GROWTH
    assert not starts_in_reasoning(FORMATS["hermes_json"], "<think>a\n \n  Assistant: ")


def test_a_tail_waits_only_if_it_begins_a_marker() -> None:
    markers = Markers(("<tool_call>", "<tool>", "<<"))
    assert markers.held_from("a <tool", 0) == 2
    assert markers.held_from("a <tool>", 0) == 8
    assert markers.held_from("a <tool><", 0) == 8
    assert markers.held_from("<<", 0) == 1
    assert markers.held_from("<tool_call", 1) == 10
