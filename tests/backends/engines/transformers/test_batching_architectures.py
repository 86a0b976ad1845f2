"""Whatever a model's layers keep (windows, states, compressed keys): jobs that run together get
what its own `generate` gives each alone. The models are tiny and have random weights.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
import transformers

import bundled
from backends.contract.protocol import Generation, ModelContainer
from backends.engines.vocabulary import HfVocabulary
from tests.backends.batching import ENDLESS
from tests.backends.container_contract import run
from tests.backends.engines.transformers.test_container import load
from tests.backends.engines.transformers.tiny import COMPRESSED
from tests.backends.pairs import quick

pytestmark = pytest.mark.anyio

LENGTH = 24  # tokens of an answer: longer than the windows
ENDS = sorted(HfVocabulary(bundled.SAFETENSORS, 768).ends)
PROMPTS = ("x", "One two three four five six seven eight nine ten eleven twelve")
SMALL = {
    "vocab_size": 768,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 2,
    "initializer_range": 0.3,  # so that attention matters
    "tie_word_embeddings": False,
}
WINDOWS = {
    "sliding_window": 16,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "query_pre_attn_scalar": 8,
}
EXPERTS = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
STATES = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16}
SHARED = {  # the later layers use the earlier ones' keys
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 768,
    "num_kv_shared_layers": 2,
    "global_head_dim": 8,
}

STATEFUL: Mapping[str, Mapping[str, Any]] = {
    "mamba": {"state_size": 8},  # it goes on from a state token by token
    "mamba2": {"state_size": 8, "num_heads": 8, "n_groups": 1},
    "falcon_h1": STATES | {"mamba_d_ssm": 64},
    "qwen3_next": LINEAR | EXPERTS | {"shared_expert_intermediate_size": 16},
    "qwen3_5_text": LINEAR,
    "granitemoehybrid": STATES
    | EXPERTS
    | {"layer_types": ["linear_attention", "full_attention"] * 2}
    | {"shared_intermediate_size": 16},
    "nemotron_h": {"layer_types": ["linear_attention", "full_attention", "moe", "mlp"]}
    | {"mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 16, "n_groups": 2}
    | {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    | {"moe_shared_expert_intermediate_size": 16},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2, "block_multiple_of": 8},
    "jamba": EXPERTS | {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8},
}
BATCHED: Mapping[str, Mapping[str, Any]] = {
    "gemma3_text": WINDOWS,
    "gemma4_text": WINDOWS | SHARED,
    "mixtral": EXPERTS,
    "qwen3_moe": EXPERTS,
    "gpt_oss": WINDOWS | EXPERTS,  # attention sinks
    "deepseek_v3": COMPRESSED,
    "llama4_text": EXPERTS | {"attention_chunk_size": 16, "intermediate_size_mlp": 48},
    **STATEFUL,
}
# What takes seconds a model is tried each time on one with windows and on one with recurrent states
# and experts; on all others (chunks, compressed keys, convolutions) among the slow tests.
QUICK = ("gemma3_text", "qwen3_next")
TRIED = quick(BATCHED, *QUICK)
ALONE: Mapping[str, Mapping[str, Any]] = {
    "recurrent_gemma": {"attention_window_size": 16},
}


def write(kind: str, folder: Path, **changes: Any) -> Any:
    """The model, and its folder. `changes`: of its configuration."""
    torch.manual_seed(0)
    own = {**BATCHED, **ALONE}.get(kind, {})
    config = transformers.AutoConfig.for_model(kind, **{**SMALL, **own, **changes})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bundled.SAFETENSORS / name, folder)
    return model


def alone(model: Any, prompt: tuple[int, ...]) -> list[int]:
    with torch.inference_mode():
        tokens = model.generate(
            torch.tensor([prompt]), max_new_tokens=LENGTH, do_sample=False, suppress_tokens=ENDS
        )
    written: list[int] = tokens[0, len(prompt) :].tolist()
    return written


@pytest.mark.parametrize("kind", [*TRIED, *ALONE])
async def test_together_they_get_what_each_gets_alone(kind: str, tmp_path: Path) -> None:
    model = write(kind, tmp_path)
    container = await load(path=tmp_path)
    said: dict[tuple[int, ...], list[int]] = {}

    async def ask(prompt: tuple[int, ...]) -> None:
        said[prompt] = await _answer(container, prompt)

    async with anyio.create_task_group() as tasks:
        for text in PROMPTS:
            tasks.start_soon(ask, container.tokenize(text, special=True))
    assert (container.info.max_concurrent > 1) == (kind in BATCHED)
    await container.aclose()
    assert said == {prompt: alone(model, prompt) for prompt in said}


async def _answer(container: ModelContainer, prompt: tuple[int, ...]) -> list[int]:
    job = Generation(prompt=prompt, sampling=ENDLESS, max_tokens=LENGTH)
    pieces, _ = await run(container, job)
    return [token for piece in pieces for token in piece.tokens]
