"""Hugging Face folders of any size with random weights, as `random_gguf`."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
import transformers

import bundled

SMALL: Mapping[str, object] = {
    "vocab_size": 768,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
}
WINDOW: Mapping[str, object] = {
    "architecture": "Gemma3",
    "config": "Gemma3TextConfig",
    "head_dim": 32,
    "sliding_window": 64,
    "num_hidden_layers": 12,
    "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 2,
}
RECURRENT: Mapping[str, object] = {  # None: such a configuration names no attention
    "architecture": "Mamba",
    "intermediate_size": None,
    "num_attention_heads": None,
    "num_key_value_heads": None,
}
EXPERTS: Mapping[str, object] = {
    "architecture": "Qwen3Moe",
    "head_dim": 32,
    "num_experts": 16,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 256,
}
# `architecture`: of which class they are; the rest is the config's.
MODELS: Mapping[str, Mapping[str, object]] = {
    "small": {},
    "half": {"dtype": "float16"},
    "brain": {"dtype": "bfloat16", "hidden_size": 256, "intermediate_size": 1024},
    "words": {"vocab_size": 32_000},
    "inner": {"intermediate_size": 2048},
    "deep": {"hidden_size": 256, "num_hidden_layers": 8, "num_key_value_heads": 4},
    "qwen2": {"architecture": "Qwen2", "hidden_size": 256, "num_hidden_layers": 8},
    "window": WINDOW,
    "window-wide": {**WINDOW, "hidden_size": 512, "head_dim": 128, "sliding_window": 256},
    "mamba": {**RECURRENT, "hidden_size": 512, "num_hidden_layers": 8},
    "mamba-wide": {**RECURRENT, "hidden_size": 256, "state_size": 64},
    "experts": EXPERTS,
    "experts-many": {**EXPERTS, "num_experts": 64, "hidden_size": 256, "num_hidden_layers": 4},
}


def write(folder: Path, settings: Mapping[str, object]) -> Path:
    """`SMALL` with `settings` over it."""
    wanted = {name: value for name, value in ({**SMALL, **settings}).items() if value is not None}
    dtype = getattr(torch, str(wanted.pop("dtype", "float32")))
    kind = str(wanted.pop("architecture", "Llama"))
    config = getattr(transformers, str(wanted.pop("config", f"{kind}Config")))
    model = getattr(transformers, f"{kind}ForCausalLM")
    model(config(**wanted)).to(dtype).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bundled.SAFETENSORS / name, folder)
    return folder
