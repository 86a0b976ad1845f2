"""The events of TGI's streams. What its bodies mean: request.jsonl."""

import json
from typing import Any

import msgspec
import pytest

from backends.contract.protocol import Candidate, TokenLogprob
from gateway.dialects import tgi
from gateway.terms.errors import InvalidRequest, QueueFull
from gateway.terms.events import Content, Delta, Finished, Usage

# huggingface_hub 2.4, text_generation(prompt, max_new_tokens=8, stream=True)
USAGE = Usage(prompt_tokens=3, completion_tokens=2)


def read(stream: bool | None = None, **fields: Any) -> tgi.TgiExchange:
    body = {"inputs": "Once", **fields}
    return tgi.read_generate(msgspec.json.encode(body), stream=stream)


@pytest.mark.parametrize(
    ("fields", "wants"),
    [
        ({"inputs": "a"}, None),
        ({"inputs": ["a", "b"]}, True),
        ({"inputs": "a", "parameters": {}}, False),
        ({"inputs": "a", "stream": False}, False),
    ],
)
def test_what_a_body_to_the_root_wants(fields: dict[str, Any], wants: bool | None) -> None:
    assert tgi.read_inputs(msgspec.json.encode(fields)) is wants


def likely(text: str, token: int) -> TokenLogprob:
    chosen = Candidate(token, text.encode(), -0.5)
    return TokenLogprob(chosen, (chosen, Candidate(9, b"x", -1.0)))


def streamed(exchange: tgi.TgiExchange, *deltas: Delta) -> list[Any]:
    reply = tgi.TgiReply(exchange)
    frames = b"".join((reply.opening(), *map(reply.delta, deltas), reply.closing(USAGE)))
    return [json.loads(line[5:]) for line in frames.split(b"\n\n") if line]


def test_each_token_is_an_event_and_the_last_has_the_text() -> None:
    exchange = read(stream=True, parameters={"details": True, "top_n_tokens": 2, "seed": 3})
    both = Delta(0, (Content(" upon a"),), (likely(" upon", 1), likely(" a", 2)))
    first, second, last = streamed(exchange, both, Delta(0, (Finished("stop"),)))

    assert first["token"] == {"id": 1, "text": " upon", "logprob": -0.5, "special": False}
    assert [token["id"] for token in second["top_tokens"]] == [2, 9]
    assert (first["index"], second["index"], last["index"]) == (1, 2, 3)
    assert last["generated_text"] == " upon a"
    assert last["details"] == {
        "finish_reason": "eos_token", "generated_tokens": 2, "input_length": 3, "seed": 3,
    }  # fmt: skip


def test_text_that_was_held_back_comes_as_one() -> None:
    exchange = read(stream=True, parameters={"details": True})
    held = Delta(0, (), (likely("a", 1),))
    first, _ = streamed(exchange, held, Delta(0, (Content("ab?"),), (likely("b", 2),)))
    assert first["token"]["text"] == "ab?"


def test_a_whole_answer_ends_with_its_stop_sequence() -> None:
    reply = tgi.TgiReply(read(parameters={"return_full_text": True, "details": True}), listed=True)
    reply.add(Delta(0, (Content(" upon"),), (likely(" upon", 1),)))
    reply.add(Delta(0, (Finished("stop", stop="."),)))
    (whole,) = json.loads(reply.whole(USAGE))

    assert whole["generated_text"] == "Once upon."
    assert whole["details"]["finish_reason"] == "stop_sequence"
    assert [token["text"] for token in whole["details"]["tokens"]] == [" upon", "."]


def test_an_error_has_tgi_s_type() -> None:
    said = tgi.DIALECT.error
    assert said is not None
    wrong = msgspec.to_builtins(said(InvalidRequest("no", param="inputs")))
    assert wrong == {"error": "no", "error_type": "validation", "param": "inputs", "code": None}
    assert msgspec.to_builtins(said(QueueFull("full")))["error_type"] == "overloaded"
