"""What a body of `/v1/responses` means, and which field of it is at fault."""

from itertools import count
from typing import Any

import msgspec
import pytest

from backends.protocol import JsonObject, JsonSchema
from gateway.dialects.responses import ResponsesExchange, read_response
from gateway.dialects.responses.items import kept
from gateway.errors import InvalidRequest
from gateway.request import ImagePart, Message, NamedTool, TextPart, Tool, ToolCall
from tests.unapplied import names as unapplied_names

SCHEMA = {"type": "object"}
FLAT = {"type": "function", "name": "f", "description": "d", "parameters": SCHEMA, "strict": False}
NESTED = {"type": "function", "function": {"name": "g", "parameters": SCHEMA}}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}


def read(input: Any = "Hi", **fields: Any) -> ResponsesExchange:
    return read_response(msgspec.json.encode({"model": "m", "input": input, **fields}))


def said(role: Any, *texts: str, **fields: Any) -> Message:
    return Message(role=role, parts=tuple(map(TextPart, texts)), **fields)


@pytest.mark.parametrize(
    ("status", "continues"), [("incomplete", True), ("completed", False), (None, False)]
)
def test_an_answer_that_was_cut_is_gone_on_with(status: str | None, continues: bool) -> None:
    part = {"type": "output_text", "text": "1, 2,"}
    item = {"type": "message", "role": "assistant", "content": [part], "status": status}
    assert read([{"role": "user", "content": "Count."}, item]).request.continue_final is continues
    assert read("", previous_response_id="r").behind([item]).continue_final is continues
    assert read([item]).behind([]).continue_final is continues
    assert read("More.").behind([item]).continue_final is False


def test_a_text_and_instructions() -> None:
    exchange = read(instructions="Be brief.")
    assert exchange.request.messages == (said("system", "Be brief."), said("user", "Hi"))
    assert exchange.store
    assert not exchange.stream


def test_items_become_messages() -> None:
    reasoning = {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Look."}],
    }
    message = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
    }
    items = [
        {"role": "developer", "content": "Rules"},
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        reasoning,
        message,
        CALL,
        {**CALL, "call_id": "c2"},
        RESULT,
        {**RESULT, "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
    ]
    calls = (ToolCall("c1", "f", '{"a":1}'), ToolCall("c2", "f", '{"a":1}'))
    assert read(items).request.messages == (
        said("system", "Rules"),
        said("user", "Weather?"),
        said("assistant", "Let me see.", reasoning="Look.", tool_calls=calls),
        said("tool", "sunny", tool_call_id="c1"),
        said("tool", "rain", tool_call_id="c2"),
    )


def test_a_summary_is_taken_for_the_reasoning() -> None:
    summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Look."}]}
    (message,) = read([summary, CALL]).request.messages
    assert message.reasoning == "Look."


def test_parts_without_a_message_are_the_users() -> None:
    url = "data:image/png;base64,AAAA"
    exchange = read(
        [{"type": "input_text", "text": "Look"}, {"type": "input_image", "image_url": url}]
    )
    picture = ImagePart(url, "input[0].content[1].image_url")
    assert exchange.request.messages == (Message(role="user", parts=(TextPart("Look"), picture)),)


def test_history_comes_first_and_instructions_before_it() -> None:
    exchange = read("And?", instructions="New rules")
    history = kept(list(read([{"role": "user", "content": "Hi"}, CALL, RESULT]).items), new_id)
    assert [message.role for message in exchange.behind(history).messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "user",
    ]


_numbers = count()


def new_id() -> str:
    return str(next(_numbers))


def test_kept_items_have_ids_and_parts() -> None:
    items = kept(
        [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Ho"},
            CALL,
            {"type": "reasoning", "id": "rs_7", "summary": []},
        ],
        new_id,
    )
    assert [item["id"].partition("_")[0] for item in items] == ["msg", "msg", "fc", "rs"]
    assert items[0]["content"] == [{"type": "input_text", "text": "Hi"}]
    assert items[1]["content"] == [{"type": "output_text", "text": "Ho", "annotations": []}]
    assert items[3] == {"type": "reasoning", "id": "rs_7", "summary": []}


def test_tools_flat_and_nested_and_those_that_run_elsewhere() -> None:
    exchange = read(tools=[FLAT, NESTED, {"type": "web_search"}])
    assert exchange.request.tools == (
        Tool(name="f", description="d", parameters=SCHEMA, strict=False),
        Tool(name="g", parameters=SCHEMA),
    )
    assert unapplied_names(exchange) == ("tools[2]",)


@pytest.mark.parametrize(
    ("choice", "meant", "left"),
    [
        (None, "auto", 2),
        ("none", "none", 2),
        ("required", "required", 2),
        ({"type": "function", "name": "g"}, NamedTool("g"), 2),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "f"}],
            },
            "required",
            1,
        ),
    ],
)
def test_tool_choices(choice: Any, meant: Any, left: int) -> None:
    request = read(tools=[FLAT, NESTED], tool_choice=choice).request
    assert (request.tool_choice, len(request.tools)) == (meant, left)


def test_options() -> None:
    exchange = read(
        max_output_tokens=7,
        temperature=0.5,
        reasoning={"effort": "low", "summary": "auto"},
        text={"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}, "verbosity": "low"},
        truncation="auto",
        top_logprobs=2,
        include=["reasoning.encrypted_content", "message.output_text.logprobs"],
        metadata={"a": "b"},
        parallel_tool_calls=False,
        service_tier="auto",
        max_tool_calls=3,
    )
    request = exchange.request
    assert request.answering.max_tokens == 7
    assert request.answering.logprobs == 2
    assert request.answering.shape == JsonSchema(
        schema=msgspec.json.encode(SCHEMA), field="text.format.schema"
    )
    assert request.thinking.effort == "low"
    assert request.template_variables == {"verbosity": "low"}
    assert not request.parallel_tool_calls
    assert exchange.summarizes
    assert exchange.truncates
    assert exchange.packs_reasoning
    assert unapplied_names(exchange) == ("max_tool_calls",)
    assert read(reasoning={"effort": "none"}).request.thinking.enabled is False
    plain = read(text={"format": {"type": "json_object"}}).request.answering
    assert plain.shape == JsonObject(field="text.format")


def test_what_is_not_read_inside_of_items_is_named() -> None:
    reasoning = {
        "type": "reasoning",
        "summary": [],
        "encrypted_content": "x",
        "status": "completed",
    }
    picture = {"type": "input_image", "image_url": "https://a.example", "detail": "low"}
    items = [{"role": "user", "content": [picture]}, reasoning, {**CALL, "namespace": "n"}]
    tool = {**FLAT, "defer_loading": True}
    assert unapplied_names(read(items, tools=[tool], reasoning={"mode": "pro"})) == (
        "tools[].defer_loading",
        "reasoning.mode",
        "input[].content[].detail",
        "input[].namespace",
        "input[].encrypted_content",
    )


def test_what_came_before() -> None:
    assert read(previous_response_id="resp_1").previous == "resp_1"
    assert read(conversation="conv_1").conversation == "conv_1"
    assert read(conversation={"id": "conv_1"}).conversation == "conv_1"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": 3}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type"),
        ({"input": [{"type": "function_call"}]}, "input[0].call_id"),
        ({"input": [{**CALL, "arguments": "[" * 200 + "]" * 200}]}, "input[0].arguments"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
            "input[0].content[0].type",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "input[0].content[0].text",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0].image_url",
        ),
        ({"input": [{"role": "user", "content": 3}]}, "input[0].content"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "perhaps"}, "tool_choice"),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [FLAT], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"truncation": "some"}, "truncation"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"background": True, "store": False}, "background"),
        ({"previous_response_id": "a", "conversation": "b"}, "conversation"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"temperature": -1}, "temperature"),
    ],
)
def test_an_error_names_the_field(fields: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(**fields)
    assert caught.value.param == param
    assert caught.value.message.startswith(f"{param}: ")
