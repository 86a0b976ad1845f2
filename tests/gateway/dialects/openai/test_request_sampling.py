"""Sampling parameters: what was named, and what its spellings mean."""

import math
from typing import Any

import pytest

from backends.protocol import Sampling
from gateway.dialects.parameters import SamplingWire
from tests.gateway.dialects.openai.bodies import chat, chat_fault


def wishes(**fields: Any) -> dict[str, Any]:
    """The named wishes and their values."""
    sampling = chat(**fields).request.answering.sampling
    return {name: getattr(sampling.values, name) for name in sampling.named}


def test_only_what_was_named_is_a_wish() -> None:
    assert wishes() == {}
    assert wishes(temperature=1) == {"temperature": 1.0}  # as neutral as it is, it was asked for


def test_a_wish_goes_over_the_configured_default() -> None:
    sampling = chat(temperature=0.2, seed=-1).request.answering.sampling
    merged = sampling.over(Sampling(temperature=0.9, top_k=40, seed=5))
    assert (merged.temperature, merged.top_k, merged.seed) == (0.2, 40, None)


def test_every_sampler_of_the_protocol_can_be_asked_for() -> None:
    wire = set(SamplingWire.__struct_fields__) - {"dynatemp_range", "dynamic_temperature"}
    assert wire == set(Sampling.__struct_fields__)


@pytest.mark.parametrize(
    ("fields", "meant"),
    [
        ({"top_k": -1}, {"top_k": 0}),
        ({"top_n_sigma": -1}, {"top_n_sigma": 0}),
        ({"seed": -1}, {"seed": None}),
        ({"sampler_seed": 5}, {"seed": 5}),
        ({"rep_pen_range": 0}, {"penalty_range": -1}),
        ({"repeat_last_n": 64}, {"penalty_range": 64}),
        ({"typical": 0.5}, {"typical_p": 0.5}),
        ({"mirostat": 2}, {"mirostat_mode": 2}),
        ({"ignore_eos": True}, {"ban_eos": True}),
        ({"dynatemp_low": 0.5, "dynatemp_high": 2}, {"min_temp": 0.5, "max_temp": 2.0}),
        ({"dynatemp_range": 0.5}, {"min_temp": 0.5, "max_temp": 1.5}),
        (
            {"temperature": 0.25, "dynatemp_range": 0.5},
            {"temperature": 0.25, "min_temp": 0.0, "max_temp": 0.75},
        ),
        ({"dynatemp_range": 3, "min_temp": 0.5}, {"min_temp": 0.5}),
        ({"dynatemp_range": 0}, {}),
        ({"dynatemp_low": 0.5, "dynatemp_high": 2, "dynamic_temperature": False}, {}),
        (
            {"dynatemp_low": 0.5, "dynatemp_high": 2, "dynamic_temperature": True},
            {"min_temp": 0.5, "max_temp": 2.0},
        ),
        ({"adaptive_target": -0.01}, {"adaptive_target": -1.0}),
        ({"adaptive_target": 1.0}, {"adaptive_target": -1.0}),
        ({"adaptive_target": 0.4}, {"adaptive_target": 0.4}),
        ({"samplers": ["typ_p", "top-k", "infill"]}, {"samplers": ("typical_p", "top_k")}),
        ({"samplers": "kpt"}, {"samplers": ("top_k", "top_p", "temperature")}),
        ({"sampler_priority": ["presence_penalty"]}, {"samplers": ("penalties",)}),
        ({"samplers": []}, {"samplers": ()}),
        ({"banned_tokens": [5, 1]}, {"banned_tokens": (5, 1)}),
        ({"custom_token_bans": "5,1, 2"}, {"banned_tokens": (5, 1, 2)}),
        ({"custom_token_bans": ""}, {"banned_tokens": ()}),
        ({"allowed_token_ids": [3]}, {"allowed_tokens": (3,)}),
        ({"banned_strings": "x"}, {"banned_strings": ("x",)}),
        ({"banned_strings": ["x", "", "y"]}, {"banned_strings": ("x", "y")}),
        ({"dry_sequence_breakers": '["\\n", ":"]'}, {"dry_sequence_breakers": ("\n", ":")}),
        ({"dry_sequence_breakers": '"\\n", ":"'}, {"dry_sequence_breakers": ("\n", ":")}),
        ({"dry_sequence_breakers": ["*"]}, {"dry_sequence_breakers": ("*",)}),
        ({"logit_bias": {"9": -5, "10": 2.5}}, {"logit_bias": ((9, -5.0), (10, 2.5))}),
        (
            {"logit_bias": [[9, 1.5], [10, False], ["11", -1]]},
            {"logit_bias": ((9, 1.5), (10, -math.inf), (11, -1.0))},
        ),
    ],
)
def test_a_spelling_means(fields: dict[str, Any], meant: dict[str, Any]) -> None:
    assert wishes(**fields) == meant


def test_a_bias_may_name_a_text() -> None:
    asked = chat(logit_bias={"7": 1, " the": -2, "12a": 3}).request.answering.sampling
    assert asked.values.logit_bias == ((7, 1.0),)
    assert asked.text_biases == ((" the", -2.0), ("12a", 3.0))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"x" * 16_385: 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"1": "x"}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"rep_pen": 1e300}, "rep_pen"),
        ({"dry_base": 1e300}, "dry_base"),
        ({"dry_sequence_breakers": ["x"] * 65}, "dry_sequence_breakers"),
        ({"dynatemp_range": 1e9}, "dynatemp_range"),
        ({"logit_bias": [[1, True]]}, "logit_bias"),
        ({"logit_bias": [["Hello", True]]}, "logit_bias"),
        ({"logit_bias": [[-1, 1]]}, "logit_bias"),
        ({"custom_token_bans": "5,x"}, "custom_token_bans"),
        ({"banned_tokens": [-5]}, "banned_tokens"),
        ({"dry_sequence_breakers": '["\\n'}, "dry_sequence_breakers"),
        ({"min_temp": 2, "max_temp": 1}, "min_temp"),
        ({"dynatemp_low": 2, "dynatemp_high": 1}, "dynatemp_low"),
    ],
)
def test_what_can_not_be_meant_is_refused(fields: dict[str, Any], param: str) -> None:
    assert chat_fault(**fields).param == param
