"""What bodies of TGI's and TEI's routes mean, and the events of a stream."""

import json
from typing import Any

import msgspec
import pytest

from backends.protocol import Candidate, JsonSchema, Regex, Shape, TokenLogprob
from gateway.dialects import tgi
from gateway.errors import InvalidRequest, QueueFull
from gateway.events import Content, Delta, Finished, Usage
from tests.unapplied import names as unapplied_names

# huggingface_hub 2.4, text_generation(prompt, max_new_tokens=8, stream=True)
HUGGING_FACE: dict[str, Any] = {
    "inputs": "Once",
    "parameters": {"details": False, "decoder_input_details": False, "max_new_tokens": 8},
    "stream": True,
}
USAGE = Usage(prompt_tokens=3, completion_tokens=2)


def read(stream: bool | None = None, **fields: Any) -> tgi.TgiExchange:
    body = {"inputs": "Once", **fields}
    return tgi.read_generate(msgspec.json.encode(body), stream=stream)


def test_hugging_face_s_client_is_understood() -> None:
    exchange = read(**HUGGING_FACE)

    assert exchange.request.prompts == ("Once",)
    assert exchange.request.answering.max_tokens == 8
    assert exchange.request.answering.logprobs is None
    assert (exchange.stream, unapplied_names(exchange)) == (True, ())


def test_the_path_says_whether_it_is_a_stream() -> None:
    assert read(stream=True).stream
    assert not read(stream=False, parameters={}).stream


def test_parameters_are_read_by_tgi_s_names() -> None:
    wanted = {
        "temperature": 0.5, "top_k": 3, "typical_p": 0.9, "repetition_penalty": 1.1, "seed": 7,
        "stop": ["."], "top_n_tokens": 2, "details": True,
    }  # fmt: skip
    answering = read(parameters=wanted).request.answering
    sampling = answering.sampling

    assert sampling.named == {"temperature", "top_k", "typical_p", "repetition_penalty", "seed"}
    assert (sampling.values.temperature, sampling.values.seed) == (0.5, 7)
    assert (answering.stop, answering.logprobs) == ((".",), 2)


def test_without_sampling_the_likeliest_token_is_taken() -> None:
    sampling = read(parameters={"do_sample": False, "temperature": 0.7}).request.answering.sampling
    assert sampling.values.temperature == 0


def test_what_has_no_meaning_is_named() -> None:
    ignored = unapplied_names(read(parameters={"watermark": True, "truncate": 5}, other=1))
    assert set(ignored) == {"parameters.watermark", "parameters.truncate", "other"}


SCHEMA = {"type": "object"}
SHAPES: list[tuple[Any, Shape]] = [
    ({"type": "json", "value": SCHEMA}, JsonSchema(schema=b'{"type":"object"}')),
    ({"type": "json", "value": json.dumps(SCHEMA)}, JsonSchema(schema=b'{"type": "object"}')),
    ({"type": "json_schema", "value": {"schema": SCHEMA}}, JsonSchema(schema=b'{"type":"object"}')),
    ({"type": "regex", "value": "a+"}, Regex(pattern="a+")),
]


@pytest.mark.parametrize(("grammar", "shape"), SHAPES)
def test_a_grammar(grammar: Any, shape: Shape) -> None:
    found = read(parameters={"grammar": grammar}).request.answering.shape
    assert found == msgspec.structs.replace(shape, field="parameters.grammar.value")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"inputs": 3}, "inputs"),
        ({"parameters": {"max_new_tokens": 0}}, "parameters.max_new_tokens"),
        ({"parameters": {"temperature": "hot"}}, "parameters.temperature"),
        ({"parameters": {"grammar": {"type": "yaml", "value": ""}}}, "parameters.grammar.type"),
    ],
)
def test_a_fault_names_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(**fields)
    assert refused.value.param == param


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
    wrong = json.loads(tgi.error_body(InvalidRequest("no", param="inputs")))
    assert wrong == {"error": "no", "error_type": "validation", "param": "inputs", "code": None}
    assert json.loads(tgi.error_body(QueueFull("full")))["error_type"] == "overloaded"
