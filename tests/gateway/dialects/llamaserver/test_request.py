"""llama-server's small bodies, and vLLM's on the same path."""

from typing import Any

import msgspec
import pytest

from backends.contract.protocol import Candidate, Progress, TokenLogprob
from gateway.dialects.llamaserver import request as wire
from gateway.dialects.llamaserver.completion import CompletionReply, chosen
from gateway.dialects.llamaserver.request import read_completion
from gateway.terms.errors import InvalidRequest, ModelUnavailable
from gateway.terms.events import Content, Delta, Finished, Usage


def frames(data: bytes) -> list[dict[str, Any]]:
    lines = [line for line in data.decode().split("\n\n") if line]
    return [msgspec.json.decode(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize(
    ("body", "text", "add_bos"),
    [
        ({"content": "a"}, "a", False),
        ({"content": "a", "add_special": True}, "a", True),
        ({"prompt": "a"}, "a", True),
        ({"prompt": "a", "add_special_tokens": False}, "a", False),
    ],
)
def test_tokenize_reads_both_forms(body: dict[str, Any], text: str, add_bos: bool) -> None:
    order = wire.read(msgspec.json.encode(body), wire.Tokenize)
    assert (order.text, order.add_bos) == (text, add_bos)


@pytest.mark.parametrize("value", [5, "{", [1], {"mood": "good"}])
def test_what_no_tokenizer_reads_is_passed_over(value: object) -> None:
    body = {"content": "a", "generation_config": value, "mood": 1}
    _, left = wire.read_text(msgspec.json.encode(body), wire.Tokenize)
    assert left[-1].name == "mood"


@pytest.mark.parametrize("model", ["undefined", "", None])
def test_what_frontends_send_for_no_model_is_no_model(model: str | None) -> None:
    body = msgspec.json.encode({"model": model, "tokens": [1]})
    assert wire.read(body, wire.Detokenize).model is None
    with pytest.raises(InvalidRequest) as refused:
        wire.read(body, wire.NamedModel)
    assert refused.value.param == "model"


def test_pieces_join_to_the_whole() -> None:
    token = TokenLogprob(Candidate(1, b"\xc3", -0.5), (Candidate(2, b"b", -1.0),))
    deltas = [
        Delta(0, (Content("a"),), (token,)),
        Delta(1, (Content("b"),)),
        Delta(0, (Content("c"), Finished("stop"))),
        Delta(1, (Finished("length"),)),
    ]
    usage = Usage(prompt_tokens=3, completion_tokens=4, cached_tokens=1)
    exchange = read_completion(b'{"prompt": ["x", "y"]}')
    streamed, whole = (
        CompletionReply(exchange, model="m", report=lambda _: None) for _ in range(2)
    )
    sent = frames(b"".join(streamed.delta(delta) for delta in deltas) + streamed.closing(usage))
    for delta in deltas:
        whole.add(delta)
    body = msgspec.json.decode(whole.whole(usage))
    for index, text in enumerate(("ac", "b")):
        assert "".join(one["content"] for one in sent if one["index"] == index) == text
        assert body[index]["content"] == text
    assert [one["stop_type"] for one in body] == ["eos", "limit"]
    assert [one["stop_type"] for one in sent if one["stop"]] == ["eos", "limit"]
    assert body[0]["tokens_evaluated"] == 3
    (chosen,) = sent[0]["completion_probabilities"]
    assert chosen["bytes"] == [0xC3]
    assert chosen["top_logprobs"][0]["token"] == "b"
    assert body[0]["completion_probabilities"] == [chosen]


def test_a_load_is_reported_as_transformers_serve_tells_it() -> None:
    sent = frames(
        wire.progress("m", Progress("weights", 1, 4))
        + wire.ready("m", cached=False)
        + wire.failed("m", ModelUnavailable("no"))
    )
    step = {"stage": "weights", "progress": {"current": 1, "total": 4}}
    assert sent == [
        {"status": "loading", "model": "m", **step},
        {"status": "ready", "model": "m", "cached": False},
        {"status": "error", "model": "m", "message": "no"},
    ]


def test_fields_of_an_answer_are_chosen_by_paths() -> None:
    whole = {"content": "x", "generation_settings": {"n_predict": 3}, "stop": True}
    names = ("content", "generation_settings/n_predict", "nothing", "content/inside")
    assert chosen(whole, names) == {"content": "x", "generation_settings/n_predict": 3}
