"""What a body of `/v1/messages` means, and which field of it is at fault."""

from typing import Any

import msgspec
import pytest

from backends.protocol import JsonSchema
from gateway.dialects.anthropic import MessagesExchange, read_messages
from gateway.errors import InvalidRequest
from gateway.request import ImagePart, Message, NamedTool, TextPart, Tool, ToolCall
from tests.unapplied import names as unapplied_names

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"name": "get_weather", "description": "Weather", "input_schema": SCHEMA}
USER = {"role": "user", "content": "Hi"}
PIXEL = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Rome"}}


def read(*messages: Any, **fields: Any) -> MessagesExchange:
    body = {"model": "m", "max_tokens": 9, "messages": messages or (USER,), **fields}
    return read_messages(msgspec.json.encode(body))


def block(role: str = "user", **fields: Any) -> dict[str, Any]:
    """The messages of a body with one block."""
    return {"messages": [{"role": role, "content": [fields]}]}


def said(role: Any, *texts: str, **fields: Any) -> Message:
    return Message(role=role, parts=tuple(map(TextPart, texts)), **fields)


def test_a_conversation_with_system_blocks() -> None:
    blocks = [
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be kind."},
    ]
    answer = {"role": "assistant", "content": [{"type": "text", "text": "Hello."}]}
    exchange = read(USER, answer, USER, system=blocks)
    assert exchange.request.messages == (
        said("system", "Be brief.", "Be kind."),
        said("user", "Hi"),
        said("assistant", "Hello."),
        said("user", "Hi"),
    )
    assert exchange.request.answering.max_tokens == 9
    assert unapplied_names(exchange) == ()
    assert not exchange.request.continue_final


def test_calls_results_and_thoughts_become_messages_of_their_own() -> None:
    thinking = {"type": "thinking", "thinking": "Rome it is.", "signature": "s"}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}
    failed = {
        "type": "tool_result",
        "tool_use_id": "toolu_2",
        "is_error": True,
        "content": [{"type": "text", "text": "no such city"}],
    }
    seen = {
        "type": "tool_result",
        "tool_use_id": "toolu_3",
        "content": [{"type": "image", "source": PIXEL}],
    }
    place = "messages[2].content[2].content[0].source.data"
    exchange = read(
        USER,
        {"role": "assistant", "content": [thinking, CALL]},
        {"role": "user", "content": [result, failed, seen, {"type": "text", "text": "And?"}]},
        tools=[WEATHER],
    )
    picture = ImagePart("data:image/png;base64,AAAA", place)
    assert exchange.request.messages == (
        said("user", "Hi"),
        Message(
            role="assistant",
            reasoning="Rome it is.",
            tool_calls=(ToolCall("toolu_1", "get_weather", '{"city":"Rome"}'),),
        ),
        said("tool", "sunny", tool_call_id="toolu_1"),
        said("tool", "Error: no such city", tool_call_id="toolu_2"),
        Message(role="tool", parts=(picture,), tool_call_id="toolu_3"),
        said("user", "And?"),
    )
    tool = Tool(name="get_weather", description="Weather", parameters=SCHEMA)
    assert exchange.request.tools == (tool,)
    assert exchange.request.tool_choice == "auto"


def test_documents_and_search_results_are_read_as_text() -> None:
    document = {
        "type": "document",
        "title": "Notes",
        "source": {"type": "text", "media_type": "text/plain", "data": "Rain."},
    }
    found = {
        "type": "search_result",
        "source": "https://a.example",
        "title": "A",
        "content": [{"type": "text", "text": "Sun."}],
    }
    (message,) = read({"role": "user", "content": [document, found]}).request.messages
    assert message == said("user", "Notes", "Rain.", "A\nhttps://a.example", "Sun.")


def test_a_last_turn_of_the_assistant_is_gone_on_from() -> None:
    exchange = read(USER, {"role": "assistant", "content": "The answer is ("})
    assert exchange.request.continue_final
    empty = read(USER, {"role": "assistant", "content": ""})
    assert not empty.request.continue_final
    assert empty.request.messages == (said("user", "Hi"),)


@pytest.mark.parametrize(
    ("choice", "meant", "parallel"),
    [
        (None, "auto", True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
        ({"type": "any"}, "required", True),
        ({"type": "none"}, "none", True),
        ({"type": "tool", "name": "get_weather"}, NamedTool("get_weather"), True),
    ],
)
def test_tool_choices(choice: Any, meant: Any, parallel: bool) -> None:
    request = read(tools=[WEATHER], tool_choice=choice).request
    assert (request.tool_choice, request.parallel_tool_calls) == (meant, parallel)


@pytest.mark.parametrize(
    ("thinking", "enabled", "budget", "shown"),
    [
        (None, False, None, "hidden"),
        ({"type": "disabled"}, False, None, "hidden"),
        ({"type": "enabled", "budget_tokens": 1024}, True, 1024, "split"),
        ({"type": "adaptive", "display": "omitted"}, True, None, "hidden"),
        ({"type": "adaptive"}, True, None, "split"),
    ],
)
def test_thinking(thinking: Any, enabled: bool, budget: int | None, shown: str) -> None:
    meant = read(thinking=thinking, output_config={"effort": "low"}).request.thinking
    assert (meant.enabled, meant.budget, meant.shown) == (enabled, budget, shown)
    assert meant.effort == "low"


def test_sampling_stops_and_shapes() -> None:
    answering = read(
        temperature=0.5,
        top_k=3,
        min_p=0.1,
        stop_sequences=["END", ""],
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
    ).request.answering
    assert answering.sampling.named == {"temperature", "top_k", "min_p"}
    assert answering.stop == ("END",)
    assert answering.shape == JsonSchema(
        schema=msgspec.json.encode(SCHEMA), strict=True, field="output_config.format.schema"
    )


def test_what_has_no_meaning_here_is_named() -> None:
    tool = {
        **WEATHER,
        "strict": True,
        "input_examples": [{"city": "Rome"}],
        "defer_loading": True,
        "cache_control": {"type": "ephemeral"},
    }
    redacted = {"type": "redacted_thinking", "data": "x"}
    books = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=00000;"}
    exchange = read(
        USER,
        {"role": "assistant", "content": [redacted, {"type": "text", "text": "A"}]},
        USER,
        tools=[tool],
        system=[books, {"type": "text", "text": "Be brief."}],
        metadata={"user_id": "me"},
        service_tier="auto",
        cache_control={"type": "ephemeral"},
        mcp_servers=[{"name": "x"}],
        context_management={"edits": [1]},
    )
    assert unapplied_names(exchange) == (
        "context_management",
        "mcp_servers",
        "tools[].input_examples",
        "tools[].defer_loading",
        "system[0]",
        "messages[].content[].redacted_thinking",
    )
    assert exchange.request.messages[0] == said("system", "Be brief.")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        (block(type="text"), "messages[0].content[0].text"),
        (block(type="audio"), "messages[0].content[0].type"),
        (
            block(type="tool_result"),
            "messages[0].content[0].tool_use_id",
        ),
        (
            block(type="image", source={"type": "file"}),
            "messages[0].content[0].source.type",
        ),
        (
            block(type="image", source={"type": "url", "url": "file:///etc/passwd"}),
            "messages[0].content[0].source",
        ),
        (
            block(type="document", source={"type": "base64", "data": "JVBERi0="}),
            "messages[0].content[0].source.type",
        ),
        (block("assistant", type="tool_use"), "messages[0].content[0]"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "perhaps"}}, "tool_choice"),
        ({"thinking": {"type": "hard"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
        ({"stop_sequences": "END"}, "stop_sequences"),
        ({"stop_sequences": ["x"] * 200}, "stop_sequences"),
        ({"temperature": -1}, "temperature"),
        ({"keep_alive": "soon"}, "keep_alive"),
    ],
)
def test_an_error_names_the_field(fields: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(**fields)
    assert caught.value.param == param
    assert caught.value.message.startswith(f"{param}: ")


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"messages":' + b"[" * 200 + b"]" * 200 + b"}"]
)
def test_bodies_that_are_none(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read_messages(body)
