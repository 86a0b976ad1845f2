"""Frontends send all that they know: nothing of it is ignored on llama.cpp and transformers."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("backends.engines.llamacpp.library")

import bundled
from backends.contract.protocol import Generation, ModelInfo
from backends.contract.samplers import Sampling, order_of
from config.settings import ModelConfig
from gateway.answers.parameters import parameters, unapplied_here, unapplied_sampling
from gateway.dialects.openai import read_text
from tests.gateway.http.serving import config, serving

pytestmark = pytest.mark.anyio

# What SillyTavern 1.19 sends to TabbyAPI, every slider moved but mirostat's.
SILLYTAVERN: dict[str, Any] = {
    "prompt": "Once",
    "max_new_tokens": 4,
    "max_tokens": 4,
    "logprobs": 3,
    "temperature": 0.9,
    "top_p": 0.95,
    "typical_p": 0.97,
    "typical": 0.97,
    "min_p": 0.01,
    "repetition_penalty": 1.1,
    "frequency_penalty": 0.1,
    "presence_penalty": 0.1,
    "top_k": 40,
    "skew": 0.2,
    "min_tokens": 1,
    "add_bos_token": True,
    "smoothing_factor": 0.2,
    "smoothing_curve": 1.5,
    "dry_allowed_length": 2,
    "dry_multiplier": 0.8,
    "dry_base": 1.75,
    "dry_penalty_last_n": 0,
    "dry_sequence_breakers": '["\\n",":","\\"","*"]',
    "max_tokens_second": 0,
    "stopping_strings": ["\nUser:"],
    "stop": ["\nUser:"],
    "truncation_length": 8192,
    "ban_eos_token": True,
    "skip_special_tokens": True,
    "include_reasoning": True,
    "top_a": 0.1,
    "tfs": 0.98,
    "mirostat_mode": 0,
    "mirostat_tau": 5,
    "mirostat_eta": 0.1,
    "custom_token_bans": "5,6",
    "banned_strings": ["a testament to"],
    "api_type": "tabby",
    "api_server": "http://127.0.0.1:8200/",
    "xtc_threshold": 0.1,
    "xtc_probability": 0.5,
    "nsigma": 1.5,
    "top_n_sigma": 1.5,
    "min_keep": 0,
    "adaptive_target": 0.5,
    "adaptive_decay": 0.9,
    "n": 1,
    "rep_pen": 1.1,
    "rep_pen_range": 64,
    "repetition_decay": 8,
    "repetition_penalty_range": 64,
    "temperature_last": True,
    "speculative_ngram": False,
    "guidance_scale": 1,
    "negative_prompt": "",
    "repeat_penalty": 1.1,
    "repeat_last_n": 64,
    "n_predict": 4,
    "num_predict": 4,
    "num_ctx": 8192,
    "mirostat": 0,
    "ignore_eos": True,
    "n_probs": 3,
    "rep_pen_slope": 1,
    "seed": 1,
    "sampler_seed": 1,
    "logit_bias": {"9": -5},
    "dynamic_temperature": True,
    "dynatemp_low": 0.5,
    "dynatemp_high": 1.5,
    "dynatemp_exponent": 1.2,
}
LLAMACPP = SILLYTAVERN | {
    "samplers": [
        *("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "tfs_z", "typical_p", "xtc"),
        *("top_p", "adaptive_p", "min_p", "temperature"),
    ],
    "logit_bias": [[9, -5], [10, False]],
    "dry_sequence_breakers": ["\n", ":", '"', "*"],
    "cache_prompt": True,
    "grammar": "",
}
# Every sampler of TabbyAPI's own schema, by its first name.
TABBY: dict[str, Any] = {
    "prompt": "Once",
    "max_tokens": 4,
    "min_tokens": 1,
    "stop": ["\n"],
    "banned_strings": ["x"],
    "banned_tokens": [5],
    "allowed_tokens": [7, 8, 9, 300],
    "token_healing": False,
    "temperature": 1.2,
    "temperature_last": True,
    "smoothing_factor": 0.3,
    "top_k": 40,
    "top_p": 0.9,
    "min_p": 0.02,
    "top_a": 0.1,
    "tfs": 0.95,
    "typical": 0.95,
    "skew": 0.1,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.1,
    "frequency_penalty": 0.1,
    "presence_penalty": 0.1,
    "repetition_penalty": 1.1,
    "penalty_range": 64,
    "repetition_decay": 8,
    "dry_multiplier": 0.8,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_range": 256,
    "dry_sequence_breakers": '"\\n", ":"',
    "mirostat_mode": 0,
    "mirostat_tau": 1.5,
    "mirostat_eta": 0.3,
    "min_temp": 0.5,
    "max_temp": 1.5,
    "temp_exponent": 1.1,
    "add_bos_token": True,
    "ban_eos_token": True,
    "logit_bias": {"9": -5},
    "logprobs": 3,
    "adaptive_target": 0.5,
    "adaptive_decay": 0.9,
    "loop_detect_window": 0,
    "n": 1,
    "best_of": 1,
    "echo": False,
    "suffix": "",
    "user": "me",
}
BODIES = {"SillyTavern": SILLYTAVERN, "SillyTavern to llama-server": LLAMACPP, "TabbyAPI": TABBY}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize(
    "backend", ["llamacpp", pytest.param("transformers", marks=pytest.mark.slow)]
)
async def test_nothing_of_a_full_body_is_ignored(
    backend: str, body: dict[str, Any], tmp_path: Path
) -> None:
    path = bundled.GGUF if backend == "llamacpp" else bundled.SAFETENSORS
    settings = config(tmp_path)
    model = ModelConfig(name="whole", path=str(path))
    settings = msgspec.structs.replace(settings, models=(*settings.models, model))
    async with serving(settings, tmp_path) as running:
        answer = await running.client.post("/v1/completions", json={**body, "model": "whole"})
        assert answer.status_code == 200, answer.text
        assert "x-roundhouse-ignored" not in answer.headers
        strict = {**body, "model": "whole", "strict_parameters": True}
        answer = await running.client.post("/v1/completions", json=strict)
        assert answer.status_code == 200, answer.text


def able(*samplers: str) -> ModelInfo:
    """An engine that has these samplers, and nothing else."""
    return ModelInfo(
        backend="x",
        format="x",
        architecture="x",
        context_length=1,
        max_concurrent=1,
        vocab_size=1,
        size_bytes=1,
        samplers=frozenset(samplers),
    )


def test_all_that_is_not_applied_is_told_with_its_reason_wherever_it_was_decided() -> None:
    body = {"prompt": "x", "temperature": 0.5, "rep_pen": 1.5, "id_slot": 1, "strange": 1}
    asked = read_text(msgspec.json.encode(body)).request.answering
    info = able("temperature")
    unapplied = unapplied_here(asked, asked.sampling.values, info)
    assert [(field.name, field.reason) for field in unapplied] == [
        ("id_slot", "x does not have it"),
        ("rep_pen", "x does not have it"),
        ("strange", "this API has no such field"),
    ]
    report = parameters(asked, Generation(prompt=(), sampling=asked.sampling.values), unapplied)
    assert report.applied == {"temperature": 0.5}
    assert report.unapplied.keys() == {"id_slot", "rep_pen", "strange"}


def test_mirostat_takes_the_place_of_truncations_and_says_so() -> None:
    body = msgspec.json.encode({**SILLYTAVERN, "mirostat": 2, "mirostat_mode": 2})
    sampling = read_text(body).request.answering.sampling.values
    assert sampling.mirostat_mode == 2
    info = able(*Sampling.__struct_fields__)
    ignored = unapplied_sampling(info, sampling)
    assert {"top_p", "min_p", "top_k", "xtc_probability", "adaptive_target", "skew"} <= set(ignored)
    assert "temperature" not in ignored


@pytest.mark.parametrize(
    ("samplers", "order"),
    [
        ((), None),
        (("top_p", "temperature"), ("tfs", "top_p", "top_a", "temperature")),
        (("temperature",), ("temperature", "tfs", "top_a")),
    ],
)
def test_a_list_leaves_out_what_llama_server_knows_and_it_does_not_name(
    samplers: tuple[str, ...], order: tuple[str, ...] | None
) -> None:
    sampling = Sampling(samplers=samplers)
    given = {"tfs", "top_a", "top_p", "temperature"}
    assert tuple(name for name in order_of(sampling) if order is None or name in given) == (
        order or order_of(Sampling())
    )
