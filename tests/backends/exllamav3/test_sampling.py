"""Every wish reaches exllamav3's sampler, and a neutral one changes nothing."""

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import torch

import bundled
from backends.errors import InvalidJob
from backends.exllama.jobs import ExLlamaJob
from backends.exllamav3.sampling import EVERYTHING, SUPPORTED, OfTheAnswer, sampler
from backends.huggingface.vocabulary import HfVocabulary
from backends.protocol import Generation, Sampling
from tests.backends.exllamav3.standin import Machine
from tests.backends.exllamav3.standin_sampler import CustomSampler

VOCABULARY = HfVocabulary(bundled.SAFETENSORS, 768)
LIBRARY = Machine({}).library()
PROMPT = (1, 2, 3)


def made(**wishes: Any) -> Any:
    running = ExLlamaJob(1, Generation(prompt=PROMPT, sampling=Sampling(**wishes)))
    return sampler(running, LIBRARY, VOCABULARY)


def steps(**wishes: Any) -> list[tuple[str, dict[str, Any]]]:
    """Names and settings, in order."""
    result = made(**wishes)
    assert isinstance(result, CustomSampler)
    return [(type(step).__name__, vars(step)) for step in result.steps]


def step(name: str, **wishes: Any) -> dict[str, Any]:
    (found,) = [settings for called, settings in steps(**wishes) if called == name]
    return found


def test_a_neutral_job_changes_nothing() -> None:
    assert steps() == [
        ("SS_LogitBias", {"logit_bias": {}}),
        ("SS_RepP", {"rep_p": 1.0, "sustain_range": EVERYTHING, "decay_range": 0}),
        (
            "SS_PresFreqP",
            {"pres_p": 0.0, "freq_p": 0.0, "sustain_range": EVERYTHING, "decay_range": 0},
        ),
        (
            "SS_DRY",
            {
                "dry_multiplier": 0.0,
                "dry_base": 1.75,
                "dry_allowed_length": 2,
                "dry_range": 0,
                "dry_sequence_breakers": frozenset(),
            },
        ),
        ("SS_BanTokens", {"token_ids": []}),
        ("SS_Temperature", {"temperature": 1.0}),
        ("SS_MinP", {"min_p": 0.0}),
        ("SS_TopK", {"top_k": 0}),
        ("SS_TopP", {"top_p": 1.0}),
        ("SS_Temperature", {"temperature": 1.0}),
        ("SS_Sample", {}),
    ]


@pytest.mark.parametrize(
    ("field", "value", "name", "theirs"),
    [
        ("top_k", 20, "SS_TopK", "top_k"),
        ("top_p", 0.9, "SS_TopP", "top_p"),
        ("min_p", 0.05, "SS_MinP", "min_p"),
        ("repetition_penalty", 1.1, "SS_RepP", "rep_p"),
        ("penalty_range", 64, "SS_RepP", "sustain_range"),
        ("penalty_range", 0, "SS_RepP", "sustain_range"),
        ("repetition_decay", 32, "SS_RepP", "decay_range"),
        ("xtc_probability", 0.5, "SS_XTC", "probability"),
    ],
)
def test_wishes_arrive_under_their_names(field: str, value: Any, name: str, theirs: str) -> None:
    assert field in SUPPORTED
    assert step(name, **{field: value})[theirs] == value


def test_what_it_lacks() -> None:
    assert set(Sampling.__struct_fields__) - SUPPORTED == {
        "min_temp",
        "max_temp",
        "temp_exponent",
        "smoothing_factor",
        "smoothing_curve",
        "top_a",
        "tfs",
        "typical_p",
        "skew",
        "top_n_sigma",
        "mirostat_mode",
        "mirostat_tau",
        "mirostat_eta",
        "adaptive_target",
        "adaptive_decay",
        "samplers",
    }


def test_temperature_comes_before_the_truncations_or_last() -> None:
    def temperatures(**wishes: Any) -> list[float]:
        return [s["temperature"] for name, s in steps(**wishes) if name == "SS_Temperature"]

    assert temperatures(temperature=0.7) == [0.7, 1.0]
    assert temperatures(temperature=0.7, temperature_last=True) == [1.0, 0.7]


def test_temperature_zero_is_greedy_whatever_else_is_wished() -> None:
    names = [name for name, _ in steps(temperature=0, top_k=50, xtc_probability=1.0)]
    assert names[-2:] == ["SS_BanTokens", "SS_Argmax"]


def test_xtc_leaves_line_ends_and_control_tokens_alone() -> None:
    asked = step("SS_XTC", xtc_probability=0.5, xtc_threshold=0.2)
    (newline,) = VOCABULARY.tokenize("\n", special=False)
    assert asked["threshold"] == 0.2
    assert {newline, *VOCABULARY.ends} <= asked["protected_token_ids"]


def test_dry_looks_as_far_as_told_and_stops_at_breakers() -> None:
    everywhere = step("SS_DRY", dry_multiplier=0.8, dry_base=2.0, dry_allowed_length=3)
    assert (everywhere["dry_multiplier"], everywhere["dry_base"]) == (0.8, 2.0)
    assert (everywhere["dry_allowed_length"], everywhere["dry_range"]) == (3, 0)
    (newline,) = VOCABULARY.tokenize("\n", special=False)
    assert newline in everywhere["dry_sequence_breakers"]
    assert step("SS_DRY", dry_multiplier=0.8, dry_range=64)["dry_range"] == 64
    assert step("SS_DRY", dry_multiplier=0.8, dry_range=0)["dry_multiplier"] == 0


def test_biases_and_bans() -> None:
    wishes = {"logit_bias": ((7, 2.5), (8, -1.0), (7, 1.0)), "banned_tokens": (9,), "ban_eos": True}
    assert step("SS_LogitBias", **wishes)["logit_bias"] == {7: 3.5, 8: -1.0}
    assert step("SS_BanTokens", **wishes)["token_ids"] == sorted({9, *VOCABULARY.ends})


def test_only_what_is_allowed_is_left() -> None:
    banned = step("SS_BanTokens", allowed_tokens=(3, 4), banned_tokens=(4,))["token_ids"]
    assert set(range(768)) - set(banned) == {3}


@pytest.mark.parametrize(
    "wish",
    [{"logit_bias": ((9999, 1.0),)}, {"banned_tokens": (-1,)}, {"allowed_tokens": (768,)}],
)
def test_tokens_that_are_not_there_are_refused(wish: dict[str, Any]) -> None:
    with pytest.raises(InvalidJob, match="not in the vocabulary") as caught:
        made(**wish)
    assert caught.value.param == next(iter(wish))


@pytest.mark.parametrize(
    ("written", "penalty_range", "back"), [(0, -1, 0), (5, -1, 5), (5, 2, 2), (1, 2, 1)]
)
def test_frequency_looks_back_to_where_the_answer_begins(
    written: int, penalty_range: int, back: int
) -> None:
    result = made(presence_penalty=0.5, frequency_penalty=0.2, penalty_range=penalty_range)
    assert isinstance(result, OfTheAnswer)
    assert result.reqs_past_ids
    sequence = torch.tensor([[*PROMPT, *range(10, 10 + written)]])
    result.forward(torch.zeros((1, 1, 768)), sequence, 1, None, logit_mask=None)
    penalty = next(s for s in result._sampler.steps if type(s).__name__ == "SS_PresFreqP")  # noqa: SLF001
    assert (penalty.pres_p, penalty.freq_p) == (0.5, 0.2)
    assert penalty.sustain_range == back
