"""Folders with random weights of every family that exllamav2 knows and transformers has, large
enough to differ and small enough to compute in a moment.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

import bundled

SMALL: Mapping[str, object] = {
    "vocab_size": 768,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
HEADS = {"head_dim": 32}
EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2}
LLAMA_31 = {
    "rope_theta": 500000.0,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
PARTIAL = {"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 0.5}
FACTORS = {"short_factor": [1.0 + n / 40 for n in range(16)], "long_factor": [1.5] * 16}
LONG = {  # trained for more than is used here, and first for less
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 256,
    "rope_parameters": {"rope_theta": 1e4, "rope_type": "longrope", **FACTORS},
}
LONG_BUT_SHORT = {**LONG, "original_max_position_embeddings": 1024}
# By name: the class, and what its configuration has besides `SMALL`.
FAMILIES: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "llama": ("Llama", {}),
    "llama, one base of positions": ("Llama", {"rope_parameters": {"rope_theta": 5e5}}),
    "llama 3.1": ("Llama", {"rope_parameters": LLAMA_31}),
    "llama, linear": (
        "Llama",
        {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0}},
    ),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral nemo": ("Mistral", {"sliding_window": None, "head_dim": 64}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", HEADS),
    "qwen3 moe": (
        "Qwen3Moe",
        {
            **HEADS,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 128,
            "norm_topk_prob": True,
        },
    ),
    "gemma": ("Gemma", HEADS),
    "gemma 2": ("Gemma2", {**HEADS, "sliding_window": 1024, "query_pre_attn_scalar": 32}),
    "gemma 2, a short window": ("Gemma2", {**HEADS, "sliding_window": 64}),
    "cohere": ("Cohere", {"logit_scale": 1.0}),
    "cohere 2": ("Cohere2", {**HEADS, "sliding_window": 1024, "logit_scale": 1.0}),
    "cohere 2, a short window": (
        "Cohere2",
        {**HEADS, "sliding_window": 64, "logit_scale": 1.0},
    ),
    "cohere 2, four layers": (
        "Cohere2",
        {**HEADS, "sliding_window": 64, "logit_scale": 1.0, "num_hidden_layers": 4},
    ),
    "phi 3": ("Phi3", {"sliding_window": None}),
    "phi 3, long": ("Phi3", {"sliding_window": None, **LONG}),
    "phi 3, long, at most short": ("Phi3", {"sliding_window": None, **LONG_BUT_SHORT}),
    "phi 4 mini": (
        "Phi3",
        {"sliding_window": None, "rope_parameters": PARTIAL, "tie_word_embeddings": True},
    ),
    "granite": (
        "Granite",
        {
            "attention_multiplier": 0.1,
            "residual_multiplier": 0.5,
            "embedding_multiplier": 4.0,
            "logits_scaling": 2.0,
        },
    ),
    "glm 4": ("Glm4", {**HEADS, "rope_parameters": PARTIAL}),
    "gpt 2": (
        "GPT2",
        {
            "n_positions": 1024,
            "n_embd": 128,
            "n_layer": 3,
            "n_head": 4,
            "intermediate_size": None,
            "num_key_value_heads": None,
        },
    ),
    "starcoder": (
        "GPTBigCode",
        {"n_positions": 1024, "n_embd": 128, "n_layer": 3, "n_head": 4, "n_inner": 256},
    ),
}


def write(folder: Path, kind: str, settings: Mapping[str, object], **over: Any) -> Path:
    """A model of this class, whose weights say something; `over` goes into its `config.json`."""
    torch.manual_seed(7)
    wanted = {**SMALL, **settings}
    absent = [name for name in ("intermediate_size", "num_key_value_heads") if not wanted[name]]
    for name in absent:
        del wanted[name]
    config = getattr(transformers, f"{kind}Config")(**wanted)
    name = "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
    model = getattr(transformers, name)(config)
    with torch.no_grad():
        for key, weights in model.named_parameters():
            if weights.dim() > 1:
                weights.normal_(0, weights.shape[-1] ** -0.5)
            elif "bias" in key:
                weights.normal_(0, 0.1)
            else:
                weights.add_(torch.randn_like(weights) * 0.2)
    model.half().save_pretrained(folder)
    if kind == "GPT2":  # as on the hub
        path = folder / "model.safetensors"
        found = load_file(path)
        save_file({key.removeprefix("transformer."): found[key] for key in found}, path)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bundled.SAFETENSORS / file, folder)
    if over:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | over))
    return folder
