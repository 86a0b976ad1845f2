"""Hugging Face folders of any size with random weights, as `random_gguf`."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

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
MODELS: Mapping[str, Mapping[str, object]] = {
    "small": {},
    "half": {"dtype": "float16"},
    "brain": {"dtype": "bfloat16", "hidden_size": 256, "intermediate_size": 1024},
    "words": {"vocab_size": 32_000},
    "inner": {"intermediate_size": 2048},
    "deep": {"hidden_size": 256, "num_hidden_layers": 8, "num_key_value_heads": 4},
}


def write(folder: Path, settings: Mapping[str, object]) -> Path:
    """`SMALL` with `settings` over it."""
    wanted = {**SMALL, **settings}
    dtype = getattr(torch, str(wanted.pop("dtype", "float32")))
    LlamaForCausalLM(LlamaConfig(**wanted)).to(dtype).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bundled.SAFETENSORS / name, folder)
    return folder
