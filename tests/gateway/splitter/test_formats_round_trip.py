"""What a family's template writes comes back: any arguments, any number, any cut."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.splitter import FORMATS, Splitter
from gateway.terms.request import Tool
from tests.gateway.splitter.corpus import join
from tests.gateway.splitter.renderers import RENDERERS, Calls

SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "whole": {"type": "integer"},
        "part": {"type": "number"},
        "flag": {"type": "boolean"},
        "perhaps": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "list": {"type": "array", "items": {"type": "string"}},
        "thing": {"type": "object", "properties": {"inner": {"type": "integer"}}},
    },
}
TOOLS = [Tool(name="store", parameters=SCHEMA), Tool(name="look-up", parameters=SCHEMA)]

# A family's own marks in a value that knows no escapes are beyond any reader.
own_marks = (
    "<|",
    "]<]",
    "<escape>",
    "]]>",
    "</",
    "<｜",
    "<arg",
    "<tool",
    "<param",
    "<invoke",
    "<func",
)
texts = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), include_characters="\n\t<>[]{}\"'\\"),
    max_size=40,
).filter(lambda text: not any(mark in text for mark in own_marks))
arguments = st.fixed_dictionaries(
    {},
    optional={
        "text": texts,
        "whole": st.integers(-(10**12), 10**12),
        "part": st.floats(allow_nan=False, allow_infinity=False, width=32),
        "flag": st.booleans(),
        "perhaps": st.none() | st.integers(-9, 9),
        "list": st.lists(texts.filter(lambda text: text.strip() == text), max_size=3),
        "thing": st.fixed_dictionaries({"inner": st.integers(0, 99)}),
    },
)
some_calls = st.lists(
    st.tuples(st.sampled_from(["store", "look-up"]), arguments), min_size=1, max_size=3
)


def read(format: str, text: str, size: int) -> list[tuple[str, Any]]:
    splitter = Splitter(FORMATS[format], in_reasoning=False, tools=TOOLS)
    events = []
    for at in range(0, len(text), size):
        events += splitter.feed(text[at : at + size])
    answer = join([*events, *splitter.finish("stop")])
    assert answer.content == answer.reasoning == ""
    assert answer.finished.reason == "tool_calls"
    assert answer.finished.warning is None
    return list(zip(answer.names, map(json.loads, answer.arguments), strict=True))


@pytest.mark.parametrize("format", RENDERERS)
@given(calls=some_calls, size=st.sampled_from([1, 3, 7, 1000]))
@settings(max_examples=40)
def test_calls_come_back(format: str, calls: Calls, size: int) -> None:
    if "pythonic" in format:
        calls = [(name.replace("-", ""), given) for name, given in calls if name == "store"] or [
            ("store", {})
        ]
    assert read(format, RENDERERS[format](calls), size) == list(calls)
