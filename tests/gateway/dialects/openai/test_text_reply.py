"""Legacy completions: raw text, one shape for chunks and the whole body."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion

from gateway.dialects.models import error_event
from gateway.dialects.openai import TextReply, read_text
from gateway.dialects.openai.reply import AnswerFacts
from gateway.terms.errors import InternalError
from gateway.terms.events import Content, Delta, Finished, Reasoning
from tests.gateway.dialects.openai.streams import (
    DONE,
    STOP,
    USAGE,
    choices,
    objects,
    payloads,
    said,
    stream,
    text_reply,
    token,
)


def whole(reply: TextReply, deltas: list[Delta]) -> dict[str, Any]:
    for delta in deltas:
        reply.add(delta)
    body: dict[str, Any] = msgspec.json.decode(reply.whole(USAGE))
    Completion.model_validate(body)
    return body


def test_a_stream_is_text_then_the_finish_then_done() -> None:
    data = stream(text_reply(), said(Content("a"), Content("<think>"), STOP))
    assert choices(data) == [
        {"index": 0, "text": "a", "finish_reason": None},
        {"index": 0, "text": "<think>", "finish_reason": None},
        {"index": 0, "text": "", "finish_reason": "stop"},
    ]
    assert payloads(data)[-1] == DONE
    assert {payload["object"] for payload in objects(data)} == {"text_completion"}
    assert {payload["model"] for payload in objects(data)} == {"org/model"}


def test_the_whole_body_is_the_official_clients() -> None:
    body = whole(text_reply(), said(Content("a"), Content("b"), Finished("length")))
    assert body["choices"] == [{"index": 0, "text": "ab", "finish_reason": "length"}]
    assert body["usage"]["total_tokens"] == 16


def test_usage_comes_once_and_last_when_asked_for() -> None:
    data = stream(text_reply(stream_options={"include_usage": True}), said(Content("a"), STOP))
    assert ["usage" in payload for payload in objects(data)] == [False, False, True]
    assert objects(data)[-1]["choices"] == []
    assert b"usage" not in stream(text_reply(), said(Content("a"), STOP))


def test_every_prompt_has_n_choices() -> None:
    reply = text_reply(prompt=["x", "y"], n=2)
    deltas = [delta for k in range(4) for delta in said(Content(f"t{k}"), STOP, choice=k)]
    choices = [(choice["index"], choice["text"]) for choice in whole(reply, deltas)["choices"]]
    assert choices == [(0, "t0"), (1, "t1"), (2, "t2"), (3, "t3")]


def test_the_echo_stands_before_every_choice_of_its_prompt() -> None:
    fields = {"prompt": ["x", "y"], "n": 2, "echo": True}
    opened = [
        (choice["index"], choice["text"]) for choice in choices(text_reply(**fields).opening())
    ]
    assert opened == [(0, "x"), (1, "x"), (2, "y"), (3, "y")]
    deltas = [delta for k in range(4) for delta in said(Content("!"), STOP, choice=k)]
    texts = [choice["text"] for choice in whole(text_reply(**fields), deltas)["choices"]]
    assert texts == ["x!", "x!", "y!", "y!"]


def test_the_echo_of_token_ids_is_what_the_tokenizer_read() -> None:
    exchange = read_text(b'{"prompt": [1, 2], "echo": true}')
    reply = TextReply(exchange, AnswerFacts(id="c", created=0, model="m"), echoes=["once"])
    assert choices(reply.opening())[0]["text"] == "once"


def test_without_echo_nothing_opens() -> None:
    assert text_reply().opening() == b""


def test_logprobs_are_columns_and_never_null() -> None:
    reply = text_reply(logprobs=2)
    data = reply.delta(Delta(0, (Content("ja"),), (token("ja", -0.5, [("nein", -1.0)]),)))
    assert choices(data)[0]["logprobs"] == {
        "tokens": ["ja"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{"nein": -1.0, "ja": -0.5}],
        "text_offset": [0],
    }
    data = reply.delta(Delta(0, (Content("!"),), (token("!", float("-inf")),)))
    assert choices(data)[0]["logprobs"] == {
        "tokens": ["!"],
        "token_logprobs": [-9999.0],
        "top_logprobs": [{"!": -9999.0}],
        "text_offset": [2],
    }


def test_offsets_cut_a_javascript_string_into_its_tokens() -> None:
    pieces: list[bytes] = [b"a", "🙂".encode()[:2], "🙂".encode()[2:], "é".encode(), b"z"]
    delta = Delta(0, (Content("a🙂éz"),), tuple(token(piece) for piece in pieces))
    columns = whole(text_reply(logprobs=0), [delta, *said(STOP)])["choices"][0]["logprobs"]
    assert columns["text_offset"] == [0, 1, 1, 3, 4]


def test_logprobs_of_held_back_text_wait_for_it() -> None:
    reply = text_reply(logprobs=0, stream_options={"include_usage": True})
    assert reply.delta(Delta(0, (), (token("\n"),))) == b""
    held, said = choices(reply.delta(Delta(0, (Content("\nb"),), (token("b"),))))
    assert (held["text"], held["logprobs"]["tokens"]) == ("\n", ["\n"])
    assert (said["text"], said["logprobs"]["tokens"]) == ("b", ["b"])
    reply.delta(Delta(0, (), (token("\n"),)))
    (choice,) = choices(reply.delta(Delta(0, (STOP,))))
    assert (choice["text"], choice["logprobs"]["tokens"]) == ("", ["\n"])


def test_every_token_with_logprobs_has_a_chunk_of_its_own() -> None:
    smile = "🙂".encode()
    tokens = tuple(token(piece) for piece in (b"a", smile[:2], smile[2:], b"b"))
    chunks = choices(text_reply(logprobs=0).delta(Delta(0, (Content("a🙂b"),), tokens)))
    assert [chunk["text"] for chunk in chunks] == ["a", "🙂", "b"]
    assert [chunk["logprobs"]["text_offset"] for chunk in chunks] == [[0], [1, 1], [3]]


def test_a_character_begun_in_one_delta_is_cut_in_the_next() -> None:
    reply = text_reply(logprobs=0)
    smile = "🙂".encode()
    reply.delta(Delta(0, (Content("a"),), (token(b"a"), token(smile[:2]))))
    tokens = tuple(token(piece) for piece in (smile[2:], b"b", b"c"))
    chunks = choices(reply.delta(Delta(0, (Content("🙂bc"),), tokens)))
    assert [chunk["text"] for chunk in chunks] == ["🙂", "b", "c"]


def test_text_longer_than_its_tokens_is_said_all_the_same() -> None:
    delta = Delta(0, (Content("abcd"),), (token("a"), token("b")))
    chunks = choices(text_reply(logprobs=0, stream_options={"include_usage": True}).delta(delta))
    assert [chunk["text"] for chunk in chunks] == ["a", "b", "cd"]


def test_logprobs_of_text_that_comes_with_the_end_are_reported_once() -> None:
    delta = Delta(0, (Content("b"), STOP), (token("b"),))
    text, end = choices(text_reply(logprobs=0, stream_options={"include_usage": True}).delta(delta))
    assert (text["text"], text["logprobs"]["tokens"]) == ("b", ["b"])
    assert (end["text"], end["finish_reason"], "logprobs" in end) == ("", "stop", False)


def test_a_broken_stream_ends_with_an_error_and_without_done() -> None:
    data = error_event(InternalError("broken"))
    assert objects(data)[0]["error"]["message"] == "broken"
    assert DONE not in payloads(data)


def test_split_events_are_our_mistake() -> None:
    with pytest.raises(AssertionError):
        text_reply().delta(Delta(0, (Reasoning("hm"),)))


@given(st.lists(st.tuples(st.integers(0, 1), st.lists(st.text(max_size=5), max_size=3))))
def test_a_stream_put_together_is_the_body(parts: list[tuple[int, list[str]]]) -> None:
    fields = {"prompt": "once", "n": 2, "echo": True}
    deltas = [Delta(k, tuple(Content(text) for text in texts)) for k, texts in parts]
    deltas += [Delta(k, (STOP,)) for k in range(2)]
    streamed = ["", ""]
    for choice in choices(stream(text_reply(**fields), deltas)):
        streamed[choice["index"]] += choice["text"]
    body = whole(text_reply(**fields), deltas)
    assert [choice["text"] for choice in body["choices"]] == streamed
