"""JSON nests as deep as somebody means it, and no deeper."""

import json
from typing import Any

import pytest

from gateway.dialects.fields import MAX_DEPTH
from gateway.dialects.openai import read_chat, read_text
from gateway.terms.errors import InvalidRequest


def nested(levels: int) -> Any:
    return json.loads('{"a":' * levels + "1" + "}" * levels)


def body(**fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "x"}], **fields}).encode()


def calling(arguments: Any) -> list[Any]:
    call = {"id": "1", "function": {"name": "f", "arguments": arguments}}
    return [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]


DEEP = MAX_DEPTH + 100
PLACES = {
    "metadata": {"metadata": nested(DEEP)},
    "chat_template_kwargs": {"chat_template_kwargs": {"x": nested(DEEP)}},
    "tools[0].function.parameters": {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": nested(DEEP)}}]
    },
    "messages[1].tool_calls[0].function.arguments": {"messages": calling(nested(DEEP))},
    "messages[0].content": {"messages": [{"role": "user", "content": nested(DEEP)}]},
}


@pytest.mark.parametrize("place", PLACES)
def test_what_is_nested_too_deep_is_named(place: str) -> None:
    with pytest.raises(InvalidRequest, match="nested more than") as caught:
        read_chat(body(**PLACES[place]))
    assert str(caught.value.param).startswith(place)


@pytest.mark.parametrize("levels", [DEEP, 970, 5_000])
def test_deep_arguments_in_a_text_are_named(levels: int) -> None:
    text = '{"a":' * levels + "1" + "}" * levels
    with pytest.raises(InvalidRequest, match="nested more than") as caught:
        read_chat(body(messages=calling(text)))
    assert caught.value.param == "messages[1].tool_calls[0].function.arguments"


@pytest.mark.parametrize("levels", [DEEP, 600, 970, 5_000])
def test_a_deep_text_of_a_config_is_named(levels: int) -> None:
    text = '{"a":' * levels + "1" + "}" * levels
    for read in (read_chat, read_text):
        with pytest.raises(InvalidRequest, match="nested more than") as caught:
            read(body(prompt="x", generation_config=text, max_tokens="odd"))
        assert caught.value.param == "generation_config"


def test_many_brackets_that_are_not_deep_are_taken() -> None:
    text = json.dumps({"a": [[] for _ in range(500)]})
    (call,) = read_chat(body(messages=calling(text))).request.messages[1].tool_calls
    assert call.arguments == text
    broken = "{" * 500
    (call,) = read_chat(body(messages=calling(broken))).request.messages[1].tool_calls
    assert call.arguments == broken


@pytest.mark.parametrize("levels", [DEEP, 970, 60_000])
def test_a_deep_body_is_refused_whatever_it_is(levels: int) -> None:
    data = b'{"messages":' + b"[" * levels + b"]" * levels + b"}"
    for read in (read_chat, read_text):
        with pytest.raises(InvalidRequest, match="nested"):
            read(data)


def test_a_schema_of_a_real_tool_is_not_deep() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": nested(60)}}]
    assert read_chat(body(tools=tools)).request.tools[0].parameters == nested(60)
