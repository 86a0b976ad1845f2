"""llama-server's small bodies, and vLLM's on the same path."""

from typing import Any

import msgspec
import pytest

from backends.protocol import Candidate, Progress, TokenLogprob
from gateway.dialects.llamaserver import request as loading
from gateway.dialects.llamaserver import request as wire
from gateway.dialects.llamaserver.completion import CompletionReply, chosen
from gateway.dialects.llamaserver.request import read_completion, read_infill
from gateway.errors import InvalidRequest, ModelUnavailable
from gateway.events import Content, Delta, Finished, Usage
from tests.unapplied import names as unapplied_names

AROUND = {"input_prefix": "a", "input_suffix": "b"}


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
        loading.progress("m", Progress("weights", 1, 4))
        + loading.ready("m", cached=False)
        + loading.failed("m", ModelUnavailable("no"))
    )
    step = {"stage": "weights", "progress": {"current": 1, "total": 4}}
    assert sent == [
        {"status": "loading", "model": "m", **step},
        {"status": "ready", "model": "m", "cached": False},
        {"status": "error", "model": "m", "message": "no"},
    ]


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ("a",)),
        ([1, 2], ((1, 2),)),
        ([1, "a", 2], ((1, "a", 2),)),
        (["a", "b"], ("a", "b")),
        (["a", [1, 2], {"prompt_string": "b"}], ("a", (1, 2), "b")),
        ([[1, "a"], "b"], ((1, "a"), "b")),
        ({"prompt_string": "a"}, ("a",)),
        ({"prompt_string": "a", "multimodal_data": []}, ("a",)),
    ],
)
def test_prompts_in_every_form(prompt: object, prompts: object) -> None:
    read = read_completion(msgspec.json.encode({"prompt": prompt}))
    assert read.request.prompts == prompts
    assert unapplied_names(read) == ()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": {"text": "a"}}, "prompt"),
        ({"prompt": [1, [2]]}, "prompt[0]"),
        ({"prompt": ["a", []]}, "prompt[1]"),
        ({"prompt": [1, -2]}, "prompt[1]"),
        ({"prompt": [True, 1]}, "prompt[0]"),
        ({"prompt": ["a", {"prompt_string": 1}]}, "prompt[1].prompt_string"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["b"]}}, "prompt.multimodal_data"),
        ({"prompt": "a", "n_predict": -2}, "n_predict"),
        ({"prompt": "a", "n_probs": 21}, "n_probs"),
        ({"prompt": "a", "response_fields": ["a"] * 65}, "response_fields"),
        ({"prompt": "a", "n_cmpl": 0}, "n_cmpl"),
        ({"prompt": "a", "return_tokens": 1}, "return_tokens"),
        ({"prompt": "a", "id_slot": -2}, "id_slot"),
    ],
)
def test_what_can_not_be_meant_is_named_as_it_was_sent(fields: object, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_completion(msgspec.json.encode(fields))
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input_suffix": "b"}, "input_prefix"),
        ({"input_prefix": "a"}, "input_suffix"),
        ({**AROUND, "input_extra": {}}, "input_extra"),
        ({**AROUND, "input_extra": [{"filename": "ok"}]}, "input_extra[0].text"),
        ({**AROUND, "input_extra": [{"text": 1}]}, "input_extra[0].text"),
        ({**AROUND, "input_extra": [{"text": "a", "filename": 1}]}, "input_extra[0].filename"),
        ({**AROUND, "prompt": ["a"]}, "prompt"),
    ],
)
def test_what_can_not_be_filled_in_is_named(fields: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_infill(msgspec.json.encode(fields))
    assert refused.value.param == param


def test_fields_of_an_answer_are_chosen_by_paths() -> None:
    whole = {"content": "x", "generation_settings": {"n_predict": 3}, "stop": True}
    names = ("content", "generation_settings/n_predict", "nothing", "content/inside")
    assert chosen(whole, names) == {"content": "x", "generation_settings/n_predict": 3}
