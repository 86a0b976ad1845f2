"""Bodies that cost too much are refused by what stands in them, before anything is made of them."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gateway.dialects import anthropic, ollama, openai, rerank, responses
from gateway.dialects.fields import (
    COUNTS,
    ORDER,
    SORTS,
    check_size,
    given_fields,
    json_object,
    order_object,
)
from gateway.dialects.responses.stored import read_conversation
from gateway.terms.errors import GatewayError, InvalidRequest, TooLarge

MESSAGE: dict[str, Any] = {"role": "user", "content": "Hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def listed(item: bytes, count: int) -> bytes:
    return b'{"x": [%s]}' % b",".join([item] * count)


@pytest.mark.parametrize(
    ("called", "body"),
    [
        ("values", lambda count: listed(b"1", count)),
        ("objects and lists", lambda count: listed(b"{}", count)),
        ("objects and lists", lambda count: listed(b"[]", count)),
        ("names", lambda count: b"{%s}" % b",".join(b'"x%d":1' % k for k in range(count))),
    ],
)
def test_too_many_are_refused(called: str, body: Callable[[int], bytes]) -> None:
    (sort,) = (one for one in SORTS if one.called == called)
    check_size(body(sort.most - 2))
    with pytest.raises(TooLarge, match=f"{sort.most:,} {called}"):
        json_object(body(sort.most + 2))


def test_what_stands_in_texts_is_not_counted() -> None:
    text = '{"a": [1, 2, 3], \\ "b": ":"},' * 100_000
    assert json_object(msgspec.json.encode({"prompt": text}))["prompt"] == text
    for ending in ("\\", '\\"', "\\\\"):
        assert json_object(msgspec.json.encode({"prompt": text + ending, "more": [1]}))


@pytest.mark.parametrize(
    "body", [b'{"x": "' + b"," * (2 << 20), b'"' * (3 << 20), b"," * (2 << 20)]
)
def test_what_is_no_json_is_refused_all_the_same(body: bytes) -> None:
    with pytest.raises(GatewayError):
        json_object(body)


def test_too_many_messages_are_refused_without_memory_for_them() -> None:
    (objects,) = (sort for sort in SORTS if sort.called == "objects and lists")
    message = b'{"role":"user","content":"a"}'
    body = b'{"messages": [%s]}' % b",".join([message] * 2 * objects.most)
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            openai.read_chat(body)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("field", "read", "body"),
    [
        ("messages", openai.read_chat, lambda count: {"messages": [MESSAGE] * count}),
        ("messages", anthropic.read_messages, lambda count: {"messages": [MESSAGE] * count}),
        ("messages", ollama.read_chat, lambda count: {"messages": [MESSAGE] * count}),
        ("input", responses.read_response, lambda count: {"input": [MESSAGE] * count}),
        ("items", read_conversation, lambda count: {"items": [MESSAGE] * count}),
        (
            "tools",
            openai.read_chat,
            lambda count: {"messages": [MESSAGE], "tools": [TOOL] * count},
        ),
    ],
)
def test_lists_have_bounds_by_their_names(
    field: str, read: Callable[[bytes], object], body: Callable[[int], dict[str, Any]]
) -> None:
    most = COUNTS[field]
    fields = {"max_tokens": 1, "model": "m"}
    assert read(msgspec.json.encode({**fields, **body(most)}))
    with pytest.raises(InvalidRequest, match=f"{field}: Expected at most {most:,}") as caught:
        read(msgspec.json.encode({**fields, **body(most + 1)}))
    assert caught.value.param == field


def test_texts_and_token_ids_are_no_items() -> None:
    assert json_object(b'{"input": [%s]}' % b",".join([b'"a"'] * 20_000))
    assert json_object(b'{"input": [%s]}' % b",".join([b"1"] * 1_000_000))


def test_an_order_is_short() -> None:
    with pytest.raises(TooLarge, match=f"{ORDER:,}"):
        order_object(b'{"model": "%s"}' % (b"x" * ORDER))


def test_what_no_struct_reads_is_said_below_lists_too() -> None:
    documents = [{"text": "a", "title": "b"}, {"text": "c", "title": "d"}]
    body = msgspec.json.encode({"query": "q", "documents": documents, "mood": "good"})
    asked = rerank.read_rerank(body).request
    assert [field.name for field in asked.unapplied] == ["mood", "documents[].title"]


def test_without_a_body_an_order_is_empty() -> None:
    assert order_object(b" ") == {}


def test_of_a_field_under_two_names_the_other_one_is_said() -> None:
    fields = given_fields({"p": 0.1, "top_p": 0.2, "k": 3}, {"p": "top_p", "k": "top_k"})
    assert fields.values == {"p": 0.1, "top_p": 0.2, "top_k": 3}
    assert [field.name for field in fields.unapplied(("top_p", "top_k"))] == ["p"]
