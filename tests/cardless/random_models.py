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
YARN = {
    "rope_theta": 1e4,
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 256,
}
OWN_YARN = {**YARN, "beta_fast": 8.0, "beta_slow": 2.0, "mscale": 1.4, "mscale_all_dim": 0.7}
# Two of three layers keep what their convolution has seen.
RECURRENT = {
    "layer_types": ["conv", "full_attention", "conv"],
    "conv_L_cache": 3,
    "block_auto_adjust_ff_dim": False,
}
# By name: the class, and what its configuration has besides `SMALL`.
FAMILIES: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "llama": ("Llama", {}),
    "llama, one base of positions": ("Llama", {"rope_parameters": {"rope_theta": 5e5}}),
    "llama 3.1": ("Llama", {"rope_parameters": LLAMA_31}),
    "llama, linear": (
        "Llama",
        {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0}},
    ),
    "llama, yarn": ("Llama", {"rope_parameters": YARN}),
    "qwen3, yarn of its own": ("Qwen3", {**HEADS, "rope_parameters": OWN_YARN}),
    "qwen2, yarn beyond what is used": (
        "Qwen2",
        {"rope_parameters": {**YARN, "original_max_position_embeddings": 1024}},
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


# -- drafts ----------------------------------------------------------------------------------------


def write_dflash(folder: Path, target: Path, block: int) -> Path:
    """A DFlash draft model for the Llama in `target`, of two layers, which drafts by blocks."""
    torch.manual_seed(3)
    config = json.loads((target / "config.json").read_text())
    wide, inner = config["hidden_size"], config["intermediate_size"]
    heads, pairs = config["num_attention_heads"], config["num_key_value_heads"]
    head = wide // heads
    shapes = {"fc": (wide, 2 * wide), "hidden_norm": (wide,), "norm": (wide,)}
    for layer in range(2):
        parts = {
            "input_layernorm": (wide,),
            "post_attention_layernorm": (wide,),
            "self_attn.q_norm": (head,),
            "self_attn.k_norm": (head,),
            "self_attn.q_proj": (heads * head, wide),
            "self_attn.k_proj": (pairs * head, wide),
            "self_attn.v_proj": (pairs * head, wide),
            "self_attn.o_proj": (wide, heads * head),
            "mlp.gate_proj": (inner, wide),
            "mlp.up_proj": (inner, wide),
            "mlp.down_proj": (wide, inner),
        }
        shapes |= {f"layers.{layer}.{name}": shape for name, shape in parts.items()}
    folder.mkdir(parents=True)
    save_file(
        {
            f"{name}.weight": (torch.randn(shape) * 0.05 + (len(shape) == 1)).half()
            for name, shape in shapes.items()
        },
        folder / "model.safetensors",
    )
    kept = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    fields = {
        **{name: config[name] for name in (*kept, "vocab_size", "max_position_embeddings")},
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "head_dim": head,
        "num_hidden_layers": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "block_size": block,
        "dflash_config": {"mask_token_id": 0, "target_layer_ids": [0, 2]},
    }
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def write_with_heads(folder: Path) -> Path:
    """A Qwen 3.5 whose layers all attend, with a head that drafts the token after the next: a copy
    of its last layer.
    """
    torch.manual_seed(5)
    sizes = {**SMALL, **HEADS, "layer_types": ["full_attention"] * 3, "full_attention_interval": 1}
    config = transformers.Qwen3_5TextConfig(**sizes)
    model = transformers.Qwen3_5ForCausalLM(config)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() > 1:
                weights.normal_(0, weights.shape[-1] ** -0.5)
    model.half().save_pretrained(folder)
    found = load_file(folder / "model.safetensors")
    last = {name: found[name].clone() for name in found if ".layers.2." in name}
    tensors = {name.replace("model.", "model.language_model.", 1): found[name] for name in found}
    tensors |= {f"mtp.layers.0.{name.split('.layers.2.')[1]}": last[name] for name in last}
    tensors["mtp.fc.weight"] = (torch.randn(128, 256) * 0.05).half()
    norms = ("mtp.pre_fc_norm_hidden", "mtp.pre_fc_norm_embedding", "mtp.norm")
    tensors |= {f"{name}.weight": torch.zeros(128).half() for name in norms}
    save_file(tensors, folder / "model.safetensors")
    path = folder / "config.json"
    text = json.loads(path.read_text()) | {"mtp_num_hidden_layers": 1}
    seeing = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2}
    fields = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "text_config": text,
        "vision_config": {**seeing, **QWEN_SEES},
        "image_token_id": 5,
        "vocab_size": text["vocab_size"],
    }
    path.write_text(json.dumps(fields))
    (folder / "preprocessor_config.json").write_text(json.dumps(QWEN_PREPARES))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bundled.SAFETENSORS / file, folder)
    return folder


QWEN_SEES = {
    "model_type": "qwen3_5",
    "out_hidden_size": 128,
    "patch_size": 16,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "num_position_embeddings": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "in_channels": 3,
    "deepstack_visual_indexes": [],
}
QWEN_PREPARES = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "size": {"longest_edge": 65536, "shortest_edge": 1024},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
}
