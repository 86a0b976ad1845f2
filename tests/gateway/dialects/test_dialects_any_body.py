"""Whatever a client sends: a body is read, or its fault is named. Nothing else is raised."""

import copy
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.dialects import anthropic, cohere, kobold, ollama, openai, responses, tgi
from gateway.dialects.fields import given_fields, order_object
from gateway.dialects.llamaserver.request import read_completion, read_infill
from gateway.dialects.responses import ResponsesExchange, stored
from gateway.dialects.responses.items import referred
from gateway.terms.errors import InvalidRequest
from tests.growth import GROWTH, growth

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}
URL = "https://a.example/b.png"

ANTHROPIC: dict[str, Any] = {
    "model": "m",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Hi"},
                {"type": "image", "source": {"type": "url", "url": URL}},
                {"type": "document", "title": "t", "source": {"type": "text", "data": "x"}},
                {"type": "search_result", "source": "s", "title": "t", "content": []},
            ],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "1", "is_error": True, "content": "no"}
            ],
        },
    ],
    "tools": [{"name": "f", "input_schema": SCHEMA}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
    "stop_sequences": ["x"],
    "temperature": 0.5,
    "metadata": {"user_id": "me"},
}
OLLAMA: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "user", "content": "Hi", "images": ["AAAA"]},
        {
            "role": "assistant",
            "thinking": "t",
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"a": 1}}}],
        },
        {"role": "tool", "tool_name": "f", "content": "x"},
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
    "prompt": "p",
    "suffix": "",
    "think": True,
    "format": SCHEMA,
    "options": {"num_predict": 5, "temperature": 0.5, "stop": ["x"], "num_ctx": 4096},
    "keep_alive": "5m",
    "logprobs": True,
    "top_logprobs": 3,
}
OLLAMA_CREATE: dict[str, Any] = {
    "model": "m",
    "from": "b",
    "system": "s",
    "parameters": {"temperature": 0.5, "stop": ["x"]},
}
KOBOLD: dict[str, Any] = {
    "prompt": "p",
    "memory": "m",
    "max_length": 9,
    "stop_sequence": ["x", None],
    "sampler_order": [6, 0, 1, 3, 4, 2, 5],
    "banned_tokens": ["b"],
    "logit_bias": {"5": -1.5},
    "custom_token_bans": "5,1",
    "grammar": 'root ::= "a"',
    "genkey": "k",
    "temperature": 0.5,
}
COHERE: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": URL}}]},
        {
            "role": "assistant",
            "tool_plan": "p",
            "content": [{"type": "thinking", "thinking": "t"}],
            "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}],
        },
        {
            "role": "tool",
            "tool_call_id": "1",
            "content": [{"type": "document", "document": {"data": {"a": 1}}}],
        },
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": "REQUIRED",
    "response_format": {"type": "json_object", "json_schema": SCHEMA},
    "thinking": {"type": "enabled", "token_budget": 5},
    "k": 3,
    "p": 0.5,
    "stop_sequences": ["x"],
    "texts": ["a"],
    "inputs": [{"content": [{"type": "text", "text": "b"}]}],
    "embedding_types": ["float"],
    "input_type": "search_query",
    "truncate": "END",
}
TGI: dict[str, Any] = {
    "inputs": "p",
    "parameters": {
        "max_new_tokens": 9,
        "stop": ["x"],
        "do_sample": False,
        "details": True,
        "top_n_tokens": 2,
        "grammar": {"type": "json", "value": SCHEMA},
        "temperature": 0.5,
    },
    "stream": True,
    "truncate": True,
    "dimensions": 4,
}
RESPONSES: dict[str, Any] = {
    "model": "m",
    "instructions": "i",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "input_image", "image_url": URL},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "x"},
    ],
    "tools": [{"type": "function", **FUNCTION}, {"type": "function", "function": FUNCTION}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "f"}]},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
    "reasoning": {"effort": "low", "summary": "auto"},
    "conversation": {"id": "conv_1"},
    "include": ["reasoning.encrypted_content"],
    "metadata": {"a": "b"},
    "top_logprobs": 2,
}
CHAT = {
    "model": "m",
    "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
    "tools": [{"type": "function", "function": FUNCTION}],
    "stop": ["x"],
    "logit_bias": {"1": 2},
}

COMPLETION = {
    "model": "m",
    "prompt": ["a", [1, "b", 2], {"prompt_string": "c", "multimodal_data": []}],
    "n_predict": 5,
    "n_probs": 2,
    "post_sampling_probs": True,
    "response_fields": ["content", "a/b"],
    "logit_bias": [["x", -1], [5, False]],
    "id_slot": 1,
}
INFILL = {
    "input_prefix": "a",
    "input_suffix": "b",
    "input_extra": [{"filename": "f", "text": "t"}],
    "prompt": "c",
}


def read_response(body: bytes) -> ResponsesExchange:
    """As the routes read it, with nothing before it; each reference is one to an item that is
    there.
    """
    exchange = responses.read_response(body)
    there = {"role": "user", "content": "Hi"}
    return exchange.after(found=dict.fromkeys(referred(exchange.items), there))


READERS: dict[str, tuple[Callable[[bytes], object], dict[str, Any]]] = {
    "chat": (openai.read_chat, CHAT),
    "messages": (anthropic.read_messages, ANTHROPIC),
    "ollama chat": (ollama.read_chat, OLLAMA),
    "completion": (read_completion, COMPLETION),
    "infill": (read_infill, INFILL),
    "ollama generate": (ollama.read_generate, OLLAMA),
    "ollama name": (ollama.read_named, OLLAMA),
    "ollama create": (ollama.read_create, OLLAMA_CREATE),
    "ollama copy": (ollama.read_copy, {"source": "a", "destination": "b"}),
    "kobold": (partial(kobold.read_generate, stream=False), KOBOLD),
    "kobold key": (lambda body: given_fields(order_object(body)).read(kobold.Keyed), KOBOLD),
    "cohere": (cohere.read_chat, COHERE),
    "cohere vectors": (cohere.read_embed, COHERE),
    "tgi": (tgi.read_generate, TGI),
    "tei": (tgi.read_embed, TGI),
    "responses": (read_response, RESPONSES),
    "conversation": (stored.read_conversation, {"items": RESPONSES["input"], "metadata": {}}),
}

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(["user", "assistant", "text", "tool_result", "message", "", "-1", "json"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "role", "content", "id", "x"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something stands in `value`."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in inside:
        yield (*path, key)
        if isinstance(item, dict | list):
            yield from places(item, (*path, key))


def changed(body: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """`body` with another value in one place."""
    copied = copy.deepcopy(body)
    outer: Any = copied
    for key in path[:-1]:
        outer = outer[key]
    outer[path[-1]] = value
    return copied


@pytest.mark.parametrize("api", READERS)
def test_the_body_that_is_changed_is_read(api: str) -> None:
    read, body = READERS[api]
    assert read(msgspec.json.encode(body))


@pytest.mark.parametrize("api", READERS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_body_is_read_or_its_fault_is_named(api: str, data: st.DataObject) -> None:
    read_or_named(api, data)


@pytest.mark.slow
@pytest.mark.parametrize("api", READERS)
@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_many_bodies_are_read_or_their_faults_are_named(api: str, data: st.DataObject) -> None:
    read_or_named(api, data)


def read_or_named(api: str, data: st.DataObject) -> None:
    read, body = READERS[api]
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(sorted(places(body), key=str)))
        body = changed(body, path, data.draw(JSON))
    try:
        read(msgspec.json.encode(body))
    except InvalidRequest as error:
        assert error.message  # noqa: PT017 - whether it is raised is the draw's


@pytest.mark.parametrize("api", READERS)
@given(data=st.binary(max_size=30))
def test_what_is_no_json_is_named_too(api: str, data: bytes) -> None:
    read, _ = READERS[api]
    try:
        read(data)
    except InvalidRequest as error:
        assert error.message  # noqa: PT017 - a few bytes can be a body


CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
TURN = {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}
RESULT = {"role": "tool", "tool_name": "f", "content": "x"}
NAMELESS = {"role": "tool", "content": "x"}
BLOCK = {"type": "tool_result", "tool_use_id": "t", "content": "x"}


def _allowed(wire: Callable[[str], dict[str, Any]], size: int) -> dict[str, Any]:
    """Many tools, and all of them allowed by name. `wire`: a tool in the dialect's form."""
    named = [wire(f"f{k}") for k in range(size)]
    choice = {"tools": named, "mode": "auto"}
    return {
        "input": "Hi",
        "messages": [{"role": "user", "content": "Hi"}],
        "tools": named,
        "tool_choice": {"type": "allowed_tools", "allowed_tools": choice, **choice},
    }


HUGE: dict[str, tuple[Callable[[bytes], object], Callable[[int], dict[str, Any]]]] = {
    "responses": (read_response, lambda size: {"input": [CALL] * size}),
    "responses, tools": (
        read_response,
        partial(_allowed, lambda name: {"type": "function", "name": name}),
    ),
    "chat, tools": (
        openai.read_chat,
        partial(_allowed, lambda name: {"type": "function", "function": {"name": name}}),
    ),
    "ollama": (ollama.read_chat, lambda size: {"messages": [TURN] * size + [RESULT] * size}),
    "ollama, without names": (
        ollama.read_chat,
        lambda size: {"messages": [TURN] * size + [NAMELESS] * size},
    ),
    "messages": (
        anthropic.read_messages,
        lambda size: {"messages": [{"role": "user", "content": [BLOCK] * size}]},
    ),
}


@pytest.mark.parametrize("api", HUGE)
def test_reading_is_linear(api: str) -> None:
    read, body = HUGE[api]

    def seconds(size: int) -> float:
        encoded = msgspec.json.encode(body(size))
        began = time.process_time()
        assert read(encoded)
        return time.process_time() - began

    assert growth(seconds, 128, 1_024) < GROWTH
