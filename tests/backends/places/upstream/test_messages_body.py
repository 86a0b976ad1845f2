"""Conversations in Anthropic's words."""

from typing import Any

import msgspec
import pytest

from backends.contract.conversation import (
    ImagePart,
    JsonSchema,
    Message,
    NamedTool,
    Regex,
    TextPart,
    Tool,
    ToolCall,
)
from backends.contract.remote import RemoteChat, RemoteThinking
from backends.places.upstream.messages import (
    NO_FIELD,
    Signatures,
    messages_body,
    messages_changes,
)
from backends.places.upstream.wire import DROPPED
from config.upstreams import UpstreamConfig

CONFIG = UpstreamConfig(name="there", urls=("http://there/v1",), protocol="anthropic")
HELLO = (Message(role="user", parts=(TextPart("Hello!"),)),)


def body(request: RemoteChat, config: UpstreamConfig = CONFIG, **signed: str) -> dict[str, Any]:
    kept = Signatures()
    for thinking, signature in signed.items():
        kept.keep(thinking, signature)
    return dict(msgspec.json.decode(messages_body(request, "theirs", config, kept)))


def chat(**fields: Any) -> RemoteChat:
    return RemoteChat(**{"messages": HELLO, **fields})


def test_a_conversation_takes_turns() -> None:
    messages = (
        Message(role="system", parts=(TextPart("Be brief."),)),
        Message(role="user", parts=(TextPart("Look"), ImagePart("data:image/jpeg;base64,AAAA"))),
        Message(role="user", parts=(ImagePart("https://example.org/cat.png"), TextPart("  "))),
        Message(
            role="assistant",
            parts=(TextPart("Well."),),
            reasoning="hm",
            tool_calls=(ToolCall("call:1", "look", '{"at": 1}'), ToolCall("2", "look", "[]")),
        ),
        Message(role="tool", parts=(TextPart("a cat"),), tool_call_id="call:1"),
        Message(role="tool", tool_call_id="2"),
        Message(role="user", parts=(TextPart("Go on"),)),
    )
    sent = body(chat(messages=messages), hm="signed")

    assert sent["system"] == [{"type": "text", "text": "Be brief."}]
    assert [turn["role"] for turn in sent["messages"]] == ["user", "assistant", "user"]
    seen, answered, results = (turn["content"] for turn in sent["messages"])
    assert [block["type"] for block in seen] == ["text", "image", "image"]
    assert seen[1]["source"] == {"type": "base64", "media_type": "image/jpeg", "data": "AAAA"}
    assert seen[2]["source"] == {"type": "url", "url": "https://example.org/cat.png"}
    assert answered == [
        {"type": "thinking", "thinking": "hm", "signature": "signed"},
        {"type": "text", "text": "Well."},
        {"type": "tool_use", "id": "call_1", "name": "look", "input": {"at": 1}},
        {"type": "tool_use", "id": "2", "name": "look", "input": {"arguments": "[]"}},
    ]
    assert results == [
        {
            "type": "tool_result",
            "tool_use_id": "call_1",
            "content": [{"type": "text", "text": "a cat"}],
        },
        {"type": "tool_result", "tool_use_id": "2"},
        {"type": "text", "text": "Go on"},
    ]


def test_thinking_that_nobody_signed_is_left_out() -> None:
    messages = (*HELLO, Message(role="assistant", parts=(TextPart("Hi"),), reasoning="other"))
    assert body(chat(messages=messages), hm="signed")["messages"][1]["content"] == [
        {"type": "text", "text": "Hi"}
    ]


@pytest.mark.parametrize(
    ("choice", "parallel", "expected"),
    [
        ("auto", True, {"type": "auto"}),
        ("required", False, {"type": "any", "disable_parallel_tool_use": True}),
        ("none", False, {"type": "none"}),
        (NamedTool("look"), True, {"type": "tool", "name": "look"}),
    ],
)
def test_tools(choice: Any, parallel: bool, expected: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"at": {"type": "integer"}}}
    tools = (Tool(name="look", description="Looks", parameters=schema, strict=True), Tool(name="x"))
    sent = body(chat(tools=tools, tool_choice=choice, parallel_tool_calls=parallel))

    assert sent["tool_choice"] == expected
    assert sent["tools"] == [
        {"name": "look", "description": "Looks", "input_schema": schema, "strict": True},
        {"name": "x", "input_schema": {"type": "object", "properties": {}}},
    ]


def test_parameters_have_its_names_and_limits_are_always_there() -> None:
    parameters = {"max_completion_tokens": 9, "stop": ["\n"], "temperature": 0.5, "user": "me"}
    sent = body(chat(parameters=parameters))

    expected = {"max_tokens": 9, "stop_sequences": ["\n"], "temperature": 0.5}
    assert {name: sent[name] for name in expected} == expected
    assert sent["metadata"] == {"user_id": "me"}
    assert sent["stream"] is True
    assert body(chat())["max_tokens"] == 4096


@pytest.mark.parametrize(
    ("asked", "limit", "thinking", "effort"),
    [
        (RemoteThinking(), 4096, None, None),
        (RemoteThinking(enabled=False), 4096, {"type": "disabled"}, None),
        (RemoteThinking(effort="none"), 4096, {"type": "disabled"}, None),
        (RemoteThinking(effort="minimal"), 4096, {"type": "adaptive"}, "low"),
        (RemoteThinking(enabled=True), 4096, {"type": "adaptive"}, None),
        (RemoteThinking(budget=2000), 4096, {"type": "enabled", "budget_tokens": 2000}, None),
        (RemoteThinking(budget=9000), 4096, {"type": "enabled", "budget_tokens": 4095}, None),
        (RemoteThinking(budget=9000), 1024, {"type": "disabled"}, None),
    ],
)
def test_thinking(asked: RemoteThinking, limit: int, thinking: Any, effort: str | None) -> None:
    sent = body(chat(thinking=asked, parameters={"max_tokens": limit}))
    assert sent.get("thinking") == thinking
    assert sent.get("output_config", {}).get("effort") == effort


def test_a_schema_is_asked_for_and_no_other_shape() -> None:
    schema = JsonSchema(schema=b'{"type":"object"}')
    sent = body(chat(shape=schema))
    expected = {"type": "json_schema", "schema": {"type": "object"}}
    assert sent["output_config"] == {"format": expected}
    assert messages_changes(chat(shape=schema), CONFIG).holds_shape
    assert not messages_changes(chat(shape=Regex(pattern="a")), CONFIG).holds_shape


def test_what_it_has_no_word_for_is_left_out_and_told() -> None:
    config = msgspec.structs.replace(
        CONFIG, drop=("top_k",), set={"temperature": 0.1}, rename={"odd": "strange"}
    )
    parameters = {"min_p": 0.1, "store": True, "top_k": 3, "temperature": 1, "odd": 1}
    variables = {"enable_thinking": True, "depth": 2}
    request = chat(parameters={**parameters, "chat_template_kwargs": variables})
    changes = messages_changes(request, config)

    assert changes.unapplied == {
        "min_p": NO_FIELD,
        "store": NO_FIELD,
        "chat_template_kwargs": NO_FIELD,
        "top_k": DROPPED,
    }
    assert changes.replaced == {"temperature": 0.1}
    sent = body(request, config)
    assert not {"min_p", "store", "top_k", "chat_template_kwargs", "odd"} & sent.keys()
    assert (sent["temperature"], sent["strange"]) == (0.1, 1)


def test_signatures_without_end_are_forgotten_at_last() -> None:
    kept = Signatures(most=2, most_bytes=10)
    for number in range(3):
        kept.keep(str(number), "abc")
    assert [kept.of(str(number)) for number in range(3)] == [None, "abc", "abc"]
    kept.keep("long", "x" * 9)
    assert [kept.of(text) for text in ("1", "2", "long")] == [None, None, "x" * 9]
    kept.keep("long", "y")
    assert kept.of("long") == "y"
