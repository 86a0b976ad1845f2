"""Passes over ragged rows give what the model's plain forward gives, for every family that can be
batched; which those are is found out by trial. The models are tiny and have random weights.
"""

import random
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import transformers

from backends.engines.transformers.forward import Forward, batching_pattern
from backends.engines.transformers.grid import Grid
from tests.backends.engines.transformers.tiny import COMPRESSED
from tests.backends.pairs import quick

LAYERS = 3
SMALL = {
    "vocab_size": 120,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.3,  # so that attention matters
}
WINDOW = {"sliding_window": 8}
MIXED = WINDOW | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}

BATCHED: Mapping[str, Mapping[str, Any]] = {
    "llama": {},
    "mistral": WINDOW,
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "gemma": {},
    "gemma2": MIXED | {"query_pre_attn_scalar": 8, "attn_implementation": "eager"},
    "gemma3_text": MIXED | {"query_pre_attn_scalar": 8},
    "phi3": {},
    "olmo2": {},
    "cohere2": MIXED,
    "gpt2": {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 128},
    "gpt_neox": {},
    "falcon": {"alibi": False, "new_decoder_architecture": True, "num_kv_heads": 2},
    "gpt_oss": MIXED | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek_v3": COMPRESSED,
}
ALONE: Mapping[str, Mapping[str, Any]] = {
    "bloom": {"n_layer": 2, "n_head": 4},  # its positions come from the padding mask
}


def model_of(kind: str, changes: Mapping[str, Any]) -> Any:
    torch.manual_seed(0)
    own = dict(changes)
    attention = own.pop("attn_implementation", None)
    small = {name: value for name, value in SMALL.items() if kind != "falcon" or name != "head_dim"}
    config = transformers.AutoConfig.for_model(kind, **(small | own))
    return transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation=attention
    ).eval()


def plain(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=torch.tensor([tokens]), use_cache=False).logits
    return logits[0, -1]


@pytest.mark.parametrize("kind", quick(BATCHED, "llama", "gemma3_text", "deepseek_v3", "gpt_oss"))
def test_ragged_rows_compute_what_each_computes_alone(kind: str) -> None:
    model = model_of(kind, BATCHED[kind])
    pattern = batching_pattern(model)
    assert pattern is not None
    rng = random.Random(kind)
    rows = [[rng.randrange(3, 120) for _ in range(length)] for length in (40, 7, 23)]
    grid = Grid(pattern.layers)
    grid.reshape(rows=4, capacity=48)
    forward = Forward(model, grid, pattern)
    fed = [0, 0, 0]
    with torch.inference_mode():
        while any(done < len(row) for done, row in zip(fed, rows, strict=True)):
            first = next(at for at in range(3) if fed[at] < len(rows[at]))
            last = next((at for at in range(first, 3) if fed[at] >= len(rows[at])), 3)
            span = range(first, last)
            counts = [min(rng.choice((1, 3, 9)), len(rows[at]) - fed[at]) for at in span]
            chunks = [rows[at][fed[at] : fed[at] + n] for at, n in zip(span, counts, strict=True)]
            logits = forward.run(first, chunks, [fed[at] for at in span])
            for place, (at, count) in enumerate(zip(span, counts, strict=True)):
                fed[at] += count
                torch.testing.assert_close(
                    logits[place], plain(model, rows[at][: fed[at]]), atol=2e-4, rtol=2e-3
                )


SEEING: Mapping[str, Mapping[str, Any]] = {
    "qwen2_5_vl": {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2]}},
    "gemma3": MIXED | {"query_pre_attn_scalar": 8},
}


@pytest.mark.parametrize("kind", SEEING)
def test_a_model_that_sees_batches_its_text(kind: str) -> None:
    torch.manual_seed(0)
    eyes: dict[str, Any] = {"depth": 1, "num_hidden_layers": 1, "hidden_size": 32}
    eyes |= {"num_attention_heads": 2, "num_heads": 2, "out_hidden_size": 32}
    eyes |= {"intermediate_size": 32, "image_size": 28}
    config = transformers.AutoConfig.for_model(
        kind, text_config={**SMALL, **SEEING[kind]}, vision_config=eyes
    )
    model = transformers.AutoModelForImageTextToText.from_config(config).eval()
    assert batching_pattern(model) is not None


@pytest.mark.parametrize("kind", ALONE)
def test_what_cannot_share_passes_is_noticed(kind: str) -> None:
    model = model_of(kind, ALONE[kind])
    assert batching_pattern(model) is None


def test_rows_move_with_their_cells() -> None:
    model = model_of("llama", {})
    pattern = batching_pattern(model)
    assert pattern is not None
    grid = Grid(pattern.layers)
    grid.reshape(rows=3, capacity=16)
    forward = Forward(model, grid, pattern)
    one, other = [5, 6, 7, 8], [9, 10]
    with torch.inference_mode():
        forward.run(0, [one, other], [0, 0])
        grid.swap(0, 1, 4)
        grid.copy(1, 2, 3)  # the first three of `one`
        grid.reshape(rows=3, capacity=32)
        logits = forward.run(0, [[20], [21], [22]], [2, 4, 3])
    for row, tokens in enumerate(([*other, 20], [*one, 21], [*one[:3], 22])):
        torch.testing.assert_close(logits[row], plain(model, tokens), atol=2e-4, rtol=2e-3)
