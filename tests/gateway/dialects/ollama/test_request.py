"""What bodies of `/api/chat` and `/api/generate` mean, and which field of them is at fault."""

from base64 import b64encode
from typing import Any

import msgspec
import pytest

from backends.protocol import JsonObject, JsonSchema
from gateway.dialects.ollama import (
    OllamaExchange,
    Presence,
    hub_name,
    read_chat,
    read_generate,
    read_named,
    without_latest,
)
from gateway.errors import InvalidRequest
from gateway.request import ChatRequest, ImagePart, Message, TextPart, TextRequest, Tool, ToolCall
from tests.unapplied import names as unapplied_names

USER = {"role": "user", "content": "Hi"}
SCHEMA = {"type": "object"}


def chat(*messages: Any, **fields: Any) -> OllamaExchange:
    return read_chat(msgspec.json.encode({"model": "m", "messages": messages or (USER,), **fields}))


def asked(*messages: Any, **fields: Any) -> ChatRequest:
    request = chat(*messages, **fields).request
    assert isinstance(request, ChatRequest)
    return request


def generate(**fields: Any) -> OllamaExchange:
    return read_generate(msgspec.json.encode({"model": "m", **fields}))


def test_streams_unless_told_otherwise() -> None:
    assert chat().stream
    assert not chat(stream=False).stream


def test_calls_are_numbered_and_results_find_them() -> None:
    calls = [
        {"function": {"name": "weather", "arguments": {"city": "Rome"}}},
        {"function": {"name": "time", "arguments": {}}},
        {"id": "x", "function": {"name": "time"}},
    ]
    messages = asked(
        USER,
        {"role": "assistant", "content": "", "thinking": "Two things.", "tool_calls": calls},
        {"role": "tool", "tool_name": "time", "content": "noon"},
        {"role": "tool", "tool_call_id": "x", "content": "one"},
        {"role": "tool", "content": "sunny"},
        {"role": "tool", "content": "nobody asked"},
    ).messages
    assert messages[1] == Message(
        role="assistant",
        reasoning="Two things.",
        tool_calls=(
            ToolCall("call_1_0", "weather", '{"city":"Rome"}'),
            ToolCall("call_1_1", "time", "{}"),
            ToolCall("x", "time", "{}"),
        ),
    )
    ids = [message.tool_call_id for message in messages[2:]]
    assert ids == ["call_1_1", "x", "call_1_0", None]


def test_images_come_without_a_media_type() -> None:
    (message,) = asked({"role": "user", "content": "Look", "images": ["AAAA"]}).messages
    picture = ImagePart("data:;base64,AAAA", "messages[0].images[0]")
    assert message.parts == (picture, TextPart("Look"))
    request = generate(prompt="Look", images=["AAAA"]).request
    assert isinstance(request, ChatRequest)
    assert request.messages[0].parts[0] == ImagePart("data:;base64,AAAA", "images[0]")


def test_what_kind_a_picture_is_its_first_bytes_tell() -> None:
    kinds = {
        b"\x89PNG\r\n\x1a\n": "image/png",
        b"\xff\xd8\xff\xe0": "image/jpeg",
        b"GIF89a": "image/gif",
    }
    for begin, kind in kinds.items():
        data = b64encode(begin + bytes(9)).decode()
        (message,) = asked({"role": "user", "images": [data]}).messages
        assert message.parts == (ImagePart(f"data:{kind};base64,{data}", "messages[0].images[0]"),)


def test_options_are_the_names_of_llama_cpp() -> None:
    options = {
        "num_predict": 7,
        "repeat_penalty": 1.1,
        "repeat_last_n": 64,
        "tfs_z": 0.9,
        "mirostat": 1,
        "seed": 3,
        "stop": ["END"],
        "num_ctx": 8192,
        "num_gpu": 33,
        "num_thread": 8,
    }
    exchange = chat(options=options, truncate=True)
    assert isinstance(exchange.request, ChatRequest)
    answering = exchange.request.answering
    assert answering.max_tokens == 7
    assert answering.stop == ("END",)
    assert answering.sampling.named == {
        "repetition_penalty",
        "penalty_range",
        "tfs",
        "mirostat_mode",
        "seed",
    }
    assert answering.spelled["repetition_penalty"] == "options.repeat_penalty"
    assert answering.spelled["seed"] == "options.seed"
    assert unapplied_names(exchange) == (
        "truncate",
        "options.num_gpu",
        "options.num_thread",
    )


@pytest.mark.parametrize("value", [-1, -2, 0])
def test_as_many_tokens_as_there_is_room_for(value: int) -> None:
    assert asked(options={"num_predict": value}).answering.max_tokens is None


@pytest.mark.parametrize(
    ("think", "enabled", "effort", "shown"),
    [
        (None, None, None, "split"),
        (True, True, None, "split"),
        (False, False, None, "hidden"),
        ("high", True, "high", "split"),
    ],
)
def test_thinking(think: Any, enabled: bool | None, effort: str | None, shown: str) -> None:
    meant = asked(think=think).thinking
    assert (meant.enabled, meant.effort, meant.shown) == (enabled, effort, shown)


def test_what_is_not_read_inside_of_messages_is_named() -> None:
    exchange = chat({**USER, "mood": "good"}, tools=[{"function": {"name": "f", "strict": True}}])
    assert unapplied_names(exchange) == (
        "messages[].mood",
        "tools[].function.strict",
    )


def test_formats_are_shapes() -> None:
    assert asked(format="").answering.shape is None
    assert asked(format="json").answering.shape == JsonObject(field="format")
    assert asked(format=SCHEMA).answering.shape == JsonSchema(
        schema=msgspec.json.encode(SCHEMA), field="format"
    )


def test_tools_and_a_prefix() -> None:
    function = {"name": "f", "description": "d", "parameters": SCHEMA}
    request = asked(
        USER,
        {"role": "assistant", "content": "Well, "},
        tools=[{"type": "function", "function": function}],
    )
    assert request.tools == (Tool(name="f", description="d", parameters=SCHEMA),)
    assert request.tool_choice == "auto"
    assert request.continue_final


@pytest.mark.parametrize("read", [read_chat, read_generate])
@pytest.mark.parametrize(
    ("keep_alive", "seconds"), [(None, None), (0, 0.0), ("0", 0.0), (-1, -1.0), ("5m", 300.0)]
)
def test_an_empty_request_is_for_the_models_presence(
    read: Any, keep_alive: Any, seconds: float | None
) -> None:
    exchange = read(msgspec.json.encode({"model": "m", "keep_alive": keep_alive}))
    assert exchange.request == Presence(model="m", keep_alive=seconds)


def test_generate_asks_the_model_or_goes_on_from_a_text() -> None:
    request = generate(prompt="Why?", system="Be brief.").request
    assert isinstance(request, ChatRequest)
    assert [(message.role, message.text) for message in request.messages] == [
        ("system", "Be brief."),
        ("user", "Why?"),
    ]
    raw = generate(prompt="Once", raw=True).request
    assert isinstance(raw, TextRequest)
    assert raw.prompts == ("Once",)
    middle = generate(prompt="def f(", suffix="return x").request
    assert isinstance(middle, TextRequest)
    assert middle.suffix == "return x"
    assert unapplied_names(generate(prompt="x", context=[1], template="t")) == (
        "context",
        "template",
    )


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [{"role": "robot", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"content": "Hi"}]}, "messages[0].role"),
        ({"tools": [{"type": "web", "function": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [{"function": {"name": ""}}]}, "tools[0].function.name"),
        ({"options": {"num_predict": -3}}, "options.num_predict"),
        ({"options": {"temperature": "hot"}}, "options.temperature"),
        ({"options": {"repeat_penalty": 0}}, "options.repeat_penalty"),
        ({"options": {"stop": ["x"] * 200}}, "options.stop"),
        ({"options": 3}, "options"),
        ({"format": "xml"}, "format"),
        ({"think": "hard"}, "think"),
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"top_logprobs": 21}, "top_logprobs"),
    ],
)
def test_an_error_names_the_field(fields: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    assert caught.value.param == param
    assert caught.value.message.startswith(f"{param}: ")


def test_a_text_has_no_images_and_no_system() -> None:
    for field in ({"images": ["AAAA"]}, {"system": "s"}):
        with pytest.raises(InvalidRequest, match=next(iter(field))):
            generate(prompt="x", raw=True, **field)


def test_names() -> None:
    assert without_latest("qwen:latest") == "qwen"
    assert without_latest("qwen:8b") == "qwen:8b"
    assert read_named(b'{"name": "old"}').model == "old"
    assert hub_name("hf.co/org/repo:Q4_K_M") == "org/repo:Q4_K_M"
    assert hub_name("org/repo:latest") == "org/repo"
    for name in ("llama3", "a/b/c", "registry.ollama.ai/library/llama3"):
        with pytest.raises(InvalidRequest, match="hub"):
            hub_name(name)
    with pytest.raises(InvalidRequest) as caught:
        read_named(b"{}")
    assert caught.value.param == "model"
