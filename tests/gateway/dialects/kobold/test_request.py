"""What bodies of KoboldAI's routes mean: SillyTavern's own, KoboldCpp's additions, and faults."""

from typing import Any

import msgspec
import pytest

from backends.protocol import Grammar
from gateway.dialects import kobold
from gateway.dialects.kobold import KoboldExchange
from gateway.dialects.kobold.request import MAX_LENGTH
from gateway.errors import InvalidRequest
from tests.unapplied import names as unapplied_names

SILLY_TAVERN: dict[str, Any] = {  # src/endpoints/backends/kobold.js, with its defaults
    "prompt": "Once",
    "use_story": False,
    "use_memory": False,
    "use_authors_note": False,
    "use_world_info": False,
    "max_context_length": 2048,
    "max_length": 80,
    "rep_pen": 1.1,
    "rep_pen_range": 0,
    "rep_pen_slope": 0.9,
    "temperature": 0.7,
    "tfs": 1,
    "top_a": 0,
    "top_k": 0,
    "top_p": 0.9,
    "min_p": 0,
    "typical": 1,
    "sampler_order": [6, 0, 1, 3, 4, 2, 5],
    "singleline": False,
    "use_default_badwordsids": False,
    "mirostat": 0,
    "mirostat_eta": 0.1,
    "mirostat_tau": 5,
    "grammar": "",
    "stop_sequence": ["\nUser:", None, "\n***"],
}


def read(*, stream: bool = False, **body: Any) -> KoboldExchange:
    return kobold.read_generate(msgspec.json.encode({"prompt": "Once", **body}), stream=stream)


def test_the_body_of_sillytavern_is_understood() -> None:
    exchange = read(**SILLY_TAVERN)
    answering, sampling = exchange.request.answering, exchange.request.answering.sampling.values
    assert exchange.request.prompts == ("Once",)
    assert answering.max_tokens == 80
    assert answering.stop == ("\nUser:", "\n***")
    assert (sampling.temperature, sampling.top_p, sampling.repetition_penalty) == (0.7, 0.9, 1.1)
    assert sampling.penalty_range == -1
    assert sampling.samplers[-2:] == ("temperature", "xtc")
    assert sampling.samplers.index("penalties") < sampling.samplers.index("top_k")
    assert exchange.shows_stop
    assert unapplied_names(exchange) == ("rep_pen_slope",)


def test_memory_stands_before_the_prompt() -> None:
    assert read(memory="Long ago. ").request.prompts == ("Long ago. Once",)


def test_a_body_without_a_length_gets_the_one_that_is_reported() -> None:
    assert read().request.answering.max_tokens == MAX_LENGTH


def test_texts_are_banned_by_either_name_and_ids_by_their_own() -> None:
    for name in ("banned_tokens", "banned_strings"):
        body: dict[str, Any] = {name: ["shivers"], "custom_token_bans": "5,1"}
        sampling = read(**body).request.answering.sampling
        assert sampling.values.banned_strings == ("shivers",)
        assert sampling.values.banned_tokens == (5, 1)


def test_bad_words_are_the_end_of_the_text_unless_it_is_named() -> None:
    assert read(use_default_badwordsids=True).request.answering.sampling.values.ban_eos
    both = read(use_default_badwordsids=True, ban_eos_token=False)
    assert not both.request.answering.sampling.values.ban_eos


def test_a_grammar_is_a_shape() -> None:
    grammar = 'root ::= "a"'
    assert read(grammar=grammar).request.answering.shape == Grammar(text=grammar)


def test_one_line_ends_before_its_end() -> None:
    exchange = read(singleline=True, stop_sequence=["X"])
    assert exchange.request.answering.stop == ("X", "\n")
    assert not exchange.shows_stop


def test_what_has_no_meaning_here_is_named() -> None:
    assert unapplied_names(read(bypass_eos=True, quiet=True, use_story=True)) == (
        "bypass_eos",
        "use_story",
    )


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"prompt": 5}, "prompt"),
        ({"max_length": 0}, "max_length"),
        ({"sampler_order": [7]}, "sampler_order[0]"),
        ({"sampler_order": "6,0"}, "sampler_order"),
        ({"banned_tokens": [5]}, "banned_tokens[0]"),
        ({"images": ["AAAA"]}, "images"),
        ({"stop_sequence": [5]}, "stop_sequence[0]"),
        ({"genkey": "k" * 257}, "genkey"),
        ({"n": 6}, "n"),
        ({"rep_pen": -1}, "rep_pen"),
        ({"typical": 2}, "typical"),
        ({"sampler_seed": "x"}, "sampler_seed"),
        ({"memory": []}, "memory"),
    ],
    ids=str,
)
def test_a_fault_is_named_as_the_client_wrote_the_field(body: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as found:
        read(**body)
    assert found.value.param == field


def test_a_stream_has_one_text() -> None:
    with pytest.raises(InvalidRequest, match="n: "):
        read(stream=True, n=2)
