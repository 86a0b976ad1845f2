"""However deep a model or a tool's schema nests, there is a result, and no recursion on the way."""

import json
import sys
import traceback
from typing import Any

import pytest

from gateway.splitter import FORMATS, Splitter
from gateway.splitter.payloads import json_text
from gateway.splitter.payloads.arguments import DEEPEST
from gateway.splitter.payloads.coercion import (
    MOST_SCHEMAS,
    MOST_VALUES,
    Declared,
    coerce,
    guess,
    types_of,
)
from gateway.terms.request import Tool
from tests.every import for_every
from tests.gateway.splitter.corpus import Answer, join
from tests.gateway.splitter.renderers import RENDERERS

TOOL = Tool(
    name="store",
    parameters={"type": "object", "properties": {"list": {"type": "array"}, "n": {"type": "null"}}},
)
HOLE = "@hole@"
DEPTHS = (DEEPEST - 2, DEEPEST + 1, 970, 20_000)


def read(format: str, text: str, size: int) -> Answer:
    """The answer, with no more of the call stack left than arguments may be deep."""
    splitter = Splitter(FORMATS[format], in_reasoning=False, tools=[TOOL])
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(len(traceback.extract_stack()) + 40 + DEEPEST)
    try:
        events = [event for piece in pieces for event in splitter.feed(piece)]
        events += splitter.finish("stop")
    finally:
        sys.setrecursionlimit(limit)
    return join(events)


@for_every("depth", DEPTHS)
@for_every("format", RENDERERS)
def test_nested_arguments(format: str, depth: int) -> None:
    call = RENDERERS[format]([("store", {"list": HOLE})])
    quoted = next(
        text for text in (f'"{HOLE}"', f"'{HOLE}'", f'<|"|>{HOLE}<|"|>', HOLE) if text in call
    )
    quoted = f"<escape>{HOLE}<escape>" if f"<escape>{HOLE}" in call else quoted
    before, after = call.split(quoted)
    answer = read(format, before + "[" * depth + "]" * depth + after, 1000)
    there = answer.content + "".join(answer.arguments)
    assert there.count("[") >= depth
    if depth < DEEPEST:
        assert answer.finished.reason == "tool_calls"
        assert there.count("[") == depth
    else:
        assert answer.finished.reason == "stop" or json.loads(answer.arguments[0])["list"][0] == "["


@pytest.mark.parametrize("depth", DEPTHS)
def test_nested_elements(depth: int) -> None:
    prefix = "]<]minimax[>["
    opened = f'<tool_call><invoke name="store"><x>{"<a>" * depth}'
    closed = f"{'</a>' * depth}</x></invoke></tool_call>"
    answer = read("minimax_m3", (opened + "1" + closed).replace("<", f"{prefix}<"), 1000)
    delivered = answer.content.count("<a>") + answer.arguments[0].count('"a"')
    assert delivered == depth
    assert answer.finished.reason == ("tool_calls" if depth < DEEPEST else "stop")


SURROGATES = {
    "hermes_json": '<tool_call>{"name": "store", "arguments": {"n": "',
    "early": '<tool_call>{"arguments": {"n": "',
    "name": '<tool_call>{"name": "',
    "dropped": '<tool_call>{"name": "store", "x": "',
    "mistral_v11": '[TOOL_CALLS]store[ARGS]{"',
    "gemma4": '<|tool_call>call:store{n:"',
    "olmo3_pythonic": "<function_calls>store(n='",
}


@for_every("escape", ["\\ud83d", "\\u0041", "\\", '\\"', "\\u", "\\ud83d\\ude80"])
@for_every("place", SURROGATES)
@for_every("size", [1, 7, 100_000])
def test_any_number_of_escapes(place: str, escape: str, size: int) -> None:
    read(place if place in FORMATS else "hermes_json", SURROGATES[place] + escape * 2000, size)


def test_a_half_surrogate_waits_only_for_its_other_half() -> None:
    splitter = Splitter(FORMATS["hermes_json"], in_reasoning=False, tools=[TOOL])
    splitter.feed(SURROGATES["hermes_json"])
    for _ in range(3):
        assert len(splitter.feed("\\ud83d")) <= 1
    assert len(splitter.feed("\\ud83d")) == 1  # the one before it is known to be alone


@pytest.mark.parametrize("depth", [DEEPEST, DEEPEST + 1, 900, 100_000])
@pytest.mark.parametrize("pair", [("[", "]"), ('{"a":', "}"), ("[", "")])
def test_bare_text_that_is_nested_too_deep_is_a_string(depth: int, pair: tuple[str, str]) -> None:
    text = pair[0] * depth + "1" + pair[1] * depth
    fits = depth <= DEEPEST and bool(pair[1])
    for value in (coerce(text, frozenset({"array", "object"})), guess(text)):
        assert value == (text if fits else json.dumps(text))
    assert json_text.is_object(text) == (fits and text[0] == "{")


@pytest.mark.parametrize("text", ['["[[[[' + "[" * 200 + '"]', '["\\"[' + "[" * 200 + '"]'])
def test_brackets_in_a_string_are_not_nested(text: str) -> None:
    assert coerce(text, frozenset({"array"})) == text


class Counted(list[Any]):
    """A list that says how many of its items were taken."""

    taken = 0

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        Counted.taken += len(found) if isinstance(place, slice) else 1
        return found

    def __iter__(self) -> Any:
        raise AssertionError("all of it is looked at")


def hostile_schemas() -> list[dict[str, Any]]:
    many = 100_000
    endless: dict[str, Any] = {}
    endless["anyOf"] = Counted([endless] * many)
    deep: dict[str, Any] = {"type": "array"}
    for _ in range(5000):
        deep = {"anyOf": [deep], "items": deep}
    return [
        endless,
        deep,
        {"enum": Counted(["a"] * many)},
        {"type": Counted(["string"] * many)},
        {"allOf": Counted([{"enum": Counted([1] * many)}] * many)},
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "anyOf": Counted([{"$ref": "#/$defs/a"}] * many)},
        {"$ref": "#" + "/$defs" * many, "$defs": {}},
        {"type": "string", "pattern": "(a+)+$"},
    ]


@pytest.mark.parametrize("number", range(len(hostile_schemas())))
def test_a_hostile_schema_is_looked_at_only_so_far(number: int) -> None:
    schema = hostile_schemas()[number]
    Counted.taken = 0
    types_of(schema)
    assert Counted.taken <= MOST_SCHEMAS * 3 + MOST_VALUES
    tool = Tool(name="store", parameters={"type": "object", "properties": {"x": schema}})
    splitter = Splitter(FORMATS["qwen3_coder_xml"], in_reasoning=False, tools=[tool])
    parameter = f"<parameter=x>{'a' * 50}</parameter>\n" * 100
    text = f"<tool_call><function=store>{parameter}</function></tool_call>"
    Counted.taken = 0
    join([*splitter.feed(text), *splitter.finish("stop")])
    assert Counted.taken <= MOST_SCHEMAS * 3 + MOST_VALUES  # once, not for every parameter


def test_what_is_declared_is_worked_out_once() -> None:
    declared = Declared(
        {"properties": {"a": {"type": "string", "items": {}}}, "items": {"type": "integer"}}
    )
    assert declared.property("a") is declared.property("a")
    assert declared.property("a").is_string
    assert declared.property("b") is declared.property("c")
    assert declared.items() is declared.items()
    assert declared.items().types == {"integer"}
    assert not Declared({"enum": ["a"]}).is_string
