"""A model's own `generation_config.json` becomes sampling defaults."""

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from backends.contract import bounds
from backends.contract.samplers import DEFAULTS, Sampling
from backends.engines import model_folder


def test_what_is_named_is_taken_and_the_rest_stays_neutral() -> None:
    config = {
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "repetition_penalty": None,
        "suppress_tokens": [7, 9],
        "sequence_bias": [[[5], -1.5], [[5, 6], 2.0]],
        "eos_token_id": [1, 2],
        "transformers_version": "5.0.0",
    }
    named = model_folder.sampling_named(config)
    assert bounds.recommended(named) == Sampling(
        temperature=0.6, top_k=20, top_p=0.95, banned_tokens=(7, 9), logit_bias=((5, -1.5),)
    )


def test_not_to_sample_is_greedy() -> None:
    named = model_folder.sampling_named({"do_sample": False, "temperature": 0.6})
    assert named == {"temperature": 0}
    assert model_folder.sampling_named({"temperature": 0.6}) == {"temperature": 0.6}


@pytest.mark.parametrize(
    "content", ["", "[]", '{"temperature": "hot"}', '{"eos_token_id": 1}'], ids=repr
)
def test_a_file_that_says_nothing_usable_gives_no_defaults(tmp_path: Path, content: str) -> None:
    (tmp_path / model_folder.GENERATION_CONFIG).write_text(content)
    assert model_folder.generation_defaults(tmp_path) == DEFAULTS
    assert model_folder.generation_defaults(tmp_path / "nowhere") == DEFAULTS


@pytest.mark.parametrize(
    ("said", "used"),
    [
        # Gemma's: who names one of them chose the others, too
        ({"top_k": 64, "top_p": 0.95}, Sampling(top_k=64, top_p=0.95)),
        ({"temperature": 1.0}, Sampling()),
        ({"repetition_penalty": 1.1}, replace(DEFAULTS, repetition_penalty=1.1)),
        ({"temperature": -1.0, "top_k": 20}, Sampling(top_k=20)),
        ({"temperature": -1.0}, DEFAULTS),
    ],
)
def test_temperature_and_truncation_are_one_choice(said: dict[str, float], used: Sampling) -> None:
    assert bounds.recommended(said) == used


def test_nonsense_from_a_client_is_an_error() -> None:
    with pytest.raises((ValueError, TypeError)):
        model_folder.sampling_named({"top_p": "most"})


@pytest.mark.parametrize("place", ["tokenizer_config.json", "additional_chat_templates"])
def test_a_folder_may_have_a_template_for_tools(place: str, tmp_path: Path) -> None:
    named = [{"name": "default", "template": "one"}, {"name": "tool_use", "template": "two"}]
    if place == "additional_chat_templates":
        (tmp_path / place).mkdir()
        (tmp_path / place / "tool_use.jinja").write_text("two")
        named = named[:1]
    config = tmp_path / "tokenizer_config.json"
    config.write_bytes(msgspec.json.encode({"chat_template": named}))
    assert model_folder.chat_template(tmp_path) == "one"
    assert model_folder.chat_template(tmp_path, model_folder.TOOL_USE) == "two"
    config.write_bytes(msgspec.json.encode({"chat_template": "three"}))
    assert model_folder.chat_template(tmp_path) == "three"
