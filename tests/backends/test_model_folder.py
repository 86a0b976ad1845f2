"""A model's own `generation_config.json` becomes sampling defaults."""

from pathlib import Path

import pytest

from backends import model_folder
from backends.samplers import Sampling


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
    assert model_folder.sampling_defaults(config) == Sampling(
        temperature=0.6, top_k=20, top_p=0.95, banned_tokens=(7, 9), logit_bias=((5, -1.5),)
    )


def test_not_to_sample_is_greedy() -> None:
    assert model_folder.sampling_defaults({"do_sample": False, "temperature": 0.6}).temperature == 0
    assert model_folder.sampling_defaults({"temperature": 0.6}).temperature == 0.6


@pytest.mark.parametrize(
    "content", ["", "[]", '{"temperature": "hot"}', '{"eos_token_id": 1}'], ids=repr
)
def test_a_file_that_says_nothing_usable_gives_no_defaults(tmp_path: Path, content: str) -> None:
    (tmp_path / model_folder.GENERATION_CONFIG).write_text(content)
    assert model_folder.generation_defaults(tmp_path) is None
    assert model_folder.generation_defaults(tmp_path / "nowhere") is None


def test_nonsense_from_a_client_is_an_error() -> None:
    with pytest.raises((ValueError, TypeError)):
        model_folder.sampling_defaults({"top_p": "most"})
