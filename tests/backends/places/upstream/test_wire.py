"""What is sent."""

from typing import Any

import msgspec

from backends.contract.conversation import ImagePart, Message, NamedTool, TextPart, Tool, ToolCall
from backends.contract.remote import RemoteChat, RemoteText
from backends.places.upstream.wire import chat_body, text_body
from config.upstreams import UpstreamConfig


def config(**options: Any) -> UpstreamConfig:
    return UpstreamConfig(name="far", urls=("http://far/v1",), **options)


def chat(*messages: Message, **fields: Any) -> dict[str, Any]:
    options = fields.pop("options", {})
    request = RemoteChat(messages=messages, **fields)
    return dict(msgspec.json.decode(chat_body(request, "theirs", config(**options))))


def test_a_conversation_is_written_as_it_was_meant() -> None:
    body = chat(
        Message(role="system", parts=(TextPart("Be kind."),)),
        Message(role="user", parts=(TextPart("See"), ImagePart("https://x/y.png"))),
        Message(role="assistant", reasoning="Hm.", tool_calls=(ToolCall("1", "look", "{}"),)),
        Message(role="tool", parts=(TextPart("seen"),), tool_call_id="1", name="look"),
    )
    function = {"name": "look", "arguments": "{}"}
    assert body == {
        "model": "theirs",
        "messages": [
            {"role": "system", "content": "Be kind."},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "See"},
                    {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
                ],
            },
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "Hm.",
                "tool_calls": [{"id": "1", "type": "function", "function": function}],
            },
            {"role": "tool", "content": "seen", "tool_call_id": "1", "name": "look"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_tools_go_along() -> None:
    tool = Tool(name="look", parameters={"type": "object"}, strict=True)
    body = chat(tools=(tool,), tool_choice=NamedTool("look"), parallel_tool_calls=False)

    function = {"name": "look", "parameters": {"type": "object"}, "strict": True}
    assert body["tools"] == [{"type": "function", "function": function}]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "look"}}
    assert body["parallel_tool_calls"] is False


def test_parameters_are_renamed_dropped_and_set() -> None:
    body = chat(
        parameters={"max_tokens": 5, "top_k": 3, "user": "me"},
        n=2,
        options={
            "rename": {"max_tokens": "max_completion_tokens"},
            "drop": ("top_k", "stream_options"),
            "set": {"user": "nobody"},
        },
    )
    del body["messages"]
    assert body == {
        "model": "theirs",
        "max_completion_tokens": 5,
        "user": "nobody",
        "n": 2,
        "stream": True,
    }


def test_a_client_cannot_change_what_the_request_is_made_of() -> None:
    """Fields that nobody read are handed on, but never over those that count."""
    body = chat(parameters={"model": "other", "messages": [], "stream": False, "tools": []})

    assert body["model"] == "theirs"
    assert body["stream"] is True


def test_one_prompt_is_a_text_and_several_are_a_list() -> None:
    def prompt(*prompts: str | tuple[int, ...]) -> Any:
        body = text_body(RemoteText(prompts=prompts), "theirs", config())
        return msgspec.json.decode(body)["prompt"]

    assert prompt("a") == "a"
    assert prompt((1, 2)) == [1, 2]
    assert prompt("a", "b") == ["a", "b"]
