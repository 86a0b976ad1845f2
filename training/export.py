"""Writes one trained model in both forms: a Hugging Face folder and a GGUF file, both F16.

Both hold the same rounded weights, so that both engines give the same greedy text. The GGUF keys
follow llama.cpp's `gguf-py/gguf/constants.py` (general.architecture "llama").
"""

import json
from pathlib import Path

import gguf
import numpy
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

from training import gguf_file
from training.gguf_file import NAME, TEMPLATE
from training.tokenizer import END_OF_TEXT, TURN_END


def export(model: LlamaForCausalLM, tokenizer: Tokenizer, out: Path) -> None:
    """Writes `roundhouse-tiny/` and `roundhouse-tiny.gguf` into `out`."""
    weights = {
        name: tensor.detach().to(torch.float16).contiguous()
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"  # tied to the embeddings
    }
    folder = out / NAME
    folder.mkdir(parents=True, exist_ok=True)
    write_folder(folder, model.config, weights, tokenizer)
    write_gguf(out / f"{NAME}.gguf", model.config, weights, tokenizer)


def write_folder(
    folder: Path, config: LlamaConfig, weights: dict[str, torch.Tensor], tokenizer: Tokenizer
) -> None:
    """The Hugging Face folder: configuration, weights, tokenizer and chat template."""
    settings = config.to_diff_dict() | {
        "architectures": ["LlamaForCausalLM"],
        "dtype": "float16",
        "tie_word_embeddings": True,
        "rope_theta": 10000.0,
    }
    write_json(folder / "config.json", settings)
    ends = {"eos_token_id": config.eos_token_id, "pad_token_id": config.pad_token_id}
    write_json(folder / "generation_config.json", {"do_sample": False} | ends)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # safetensors makes it readable by its owner only
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", tokenizer_settings(config))


def tokenizer_settings(config: LlamaConfig) -> dict[str, object]:
    """What transformers must know beside `tokenizer.json`."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config.max_position_embeddings,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    }


def write_json(path: Path, content: dict[str, object]) -> None:
    """Pretty JSON, keys in their order."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_gguf(
    path: Path, config: LlamaConfig, weights: dict[str, torch.Tensor], tokenizer: Tokenizer
) -> None:
    """The GGUF file: metadata, tokenizer, weights (matrices F16, norms F32 as llama.cpp wants)."""
    writer = gguf.GGUFWriter(path, "llama")
    gguf_file.add_metadata(writer, config)
    gguf_file.add_tokenizer(writer, tokenizer)
    for name, tensor in weights.items():
        array = tensor.numpy()
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            array = gguf_file.interleave_rotary(array, config.num_attention_heads)
        if array.ndim == 1:
            array = array.astype(numpy.float32)
        writer.add_tensor(gguf_file.gguf_name(name), numpy.ascontiguousarray(array))
    gguf_file.finish(writer)
