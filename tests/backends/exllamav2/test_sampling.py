"""Every wish reaches exllamav2's sampler, and a neutral one changes nothing."""

from collections import deque
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import bundled
from backends.errors import InvalidJob
from backends.exllamav2.sampling import NEVER, SUPPORTED, settings
from backends.huggingface.vocabulary import HfVocabulary
from backends.protocol import Generation, Sampling
from tests.backends.exllamav2.standin import Machine
from tests.backends.exllamav2.standin_generator import Settings

VOCABULARY = HfVocabulary(bundled.SAFETENSORS, 768)
LIBRARY = Machine({}).library()


def made(prompt: tuple[int, ...] = (1, 2, 3), **wishes: Any) -> Settings:
    job = Generation(prompt=prompt, sampling=Sampling(**wishes))
    result = settings(job, LIBRARY, VOCABULARY)
    assert isinstance(result, Settings)
    return result


def test_a_neutral_job_changes_nothing() -> None:
    neutral = made()
    assert neutral.temperature == neutral.token_repetition_penalty == neutral.top_p == 1.0
    assert neutral.tfs == neutral.typical == 1.0
    assert neutral.top_k == neutral.min_p == neutral.top_a == neutral.skew == 0
    assert neutral.token_frequency_penalty == neutral.token_presence_penalty == 0
    assert neutral.min_temp == neutral.max_temp == neutral.smoothing_factor == 0
    assert neutral.dry_multiplier == neutral.xtc_probability == 0
    assert not neutral.mirostat
    assert neutral.token_bias is None


@pytest.mark.parametrize(
    ("field", "value", "theirs"),
    [
        ("temperature", 0.7, "temperature"),
        ("temperature_last", True, "temperature_last"),
        ("temp_exponent", 2.0, "temp_exponent"),
        ("smoothing_factor", 0.3, "smoothing_factor"),
        ("top_k", 20, "top_k"),
        ("top_p", 0.9, "top_p"),
        ("min_p", 0.05, "min_p"),
        ("top_a", 0.2, "top_a"),
        ("tfs", 0.9, "tfs"),
        ("typical_p", 0.8, "typical"),
        ("skew", 0.1, "skew"),
        ("xtc_probability", 0.5, "xtc_probability"),
        ("xtc_threshold", 0.2, "xtc_threshold"),
        ("repetition_penalty", 1.1, "token_repetition_penalty"),
        ("penalty_range", 64, "token_repetition_range"),
        ("repetition_decay", 32, "token_repetition_decay"),
        ("mirostat_tau", 4.0, "mirostat_tau"),
        ("mirostat_eta", 0.2, "mirostat_eta"),
    ],
)
def test_wishes_arrive_under_their_names(field: str, value: Any, theirs: str) -> None:
    assert field in SUPPORTED
    assert getattr(made(**{field: value}), theirs) == value


def test_their_penalties_that_count_the_prompt_stay_off() -> None:
    wished = made(frequency_penalty=0.5, presence_penalty=0.5)
    assert wished.token_frequency_penalty == wished.token_presence_penalty == 0


def test_all_that_is_said_to_be_supported_is_a_wish() -> None:
    assert set(Sampling.__struct_fields__) - SUPPORTED == {
        "smoothing_curve",
        "top_n_sigma",
        "adaptive_target",
        "adaptive_decay",
        "samplers",
    }


def test_temperature_zero_is_greedy_whatever_else_is_wished() -> None:
    greedy = made(temperature=0, temperature_last=True, top_k=50, xtc_probability=1.0, max_temp=2.0)
    assert (greedy.top_k, greedy.temperature, greedy.temperature_last) == (1, 1.0, False)
    assert greedy.max_temp == greedy.xtc_probability == 0


def test_dynamic_temperature_takes_the_place_of_the_fixed_one() -> None:
    dynamic = made(temperature=0.5, min_temp=0.0, max_temp=2.0)
    assert (dynamic.temperature, dynamic.max_temp) == (1.0, 2.0)
    assert 0 < dynamic.min_temp < 0.1  # they divide by it
    with pytest.raises(InvalidJob, match="min_temp"):
        made(min_temp=3.0, max_temp=2.0)


def test_a_top_p_of_zero_is_not_taken_for_off() -> None:
    assert 0 < made(top_p=0.0).top_p < 0.001


def test_mirostat_is_the_second_one() -> None:
    assert made(mirostat_mode=2).mirostat
    with pytest.raises(InvalidJob, match="mirostat 2 only"):
        made(mirostat_mode=1)


def test_dry_looks_as_far_as_told_and_stops_at_breakers() -> None:
    everywhere = made(dry_multiplier=0.8, dry_base=2.0, dry_allowed_length=3)
    assert (everywhere.dry_multiplier, everywhere.dry_base) == (0.8, 2.0)
    assert (everywhere.dry_allowed_length, everywhere.dry_range) == (3, 0)
    (newline,) = VOCABULARY.tokenize("\n", special=False)
    assert everywhere.dry_sequence_breakers is not None
    assert newline in everywhere.dry_sequence_breakers
    assert made(dry_multiplier=0.8, dry_range=0).dry_multiplier == 0
    near = made(dry_multiplier=0.8, dry_range=8)
    assert near.dry_range > near.dry_max_ngram


def test_dry_starts_with_a_history_where_the_prompt_is_one_token() -> None:
    """exllamav2 looks at the oldest entry before there is one."""
    assert made(prompt=(5,), dry_multiplier=0.8, dry_range=64).ngram_history == deque((0,))
    assert not made(prompt=(5, 6), dry_multiplier=0.8, dry_range=64).ngram_history


def test_dry_with_a_range_and_bans_exclude_each_other() -> None:
    with pytest.raises(InvalidJob, match="banned_strings with dry_range"):
        made(dry_multiplier=0.8, dry_range=64, banned_strings=("no",))


def test_biases_and_bans_become_one_addition() -> None:
    added = made(logit_bias=((7, 2.5), (8, -1.0)), banned_tokens=(9,), ban_eos=True).token_bias
    assert added is not None
    assert len(added) % 32 == 0
    assert (added[7], added[8], added[9], added[10]) == (2.5, -1.0, NEVER, 0.0)
    assert all(added[end] == NEVER for end in VOCABULARY.ends)


def test_only_what_is_allowed_is_left() -> None:
    added = made(allowed_tokens=(3, 4), logit_bias=((3, 1.0), (5, 1.0))).token_bias
    assert added is not None
    assert [at for at, value in enumerate(added.tolist()) if value != NEVER] == [3, 4]


@pytest.mark.parametrize(
    "wish",
    [{"logit_bias": ((9999, 1.0),)}, {"banned_tokens": (-1,)}, {"allowed_tokens": (768,)}],
)
def test_tokens_that_are_not_there_are_refused(wish: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob, match="not in the vocabulary") as caught:
        made(**wish)
    assert caught.value.param == next(iter(wish))
