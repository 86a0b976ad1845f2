"""A large model with random weights and a small one that mostly says the same.

The small one is the large one's first layers. In the large one, the layers behind them write
nothing into what they pass on (their output projections are zero), but for the last one, whose
feed-forward adds a little: so both agree on most tokens, and the large one takes the time of all of
its layers. How much that is, is found out by how many drafted tokens are accepted.
"""

import ctypes
from collections.abc import Iterator, Mapping
from pathlib import Path

import gguf
import llama_cpp
import msgspec
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.realistic import BLOCK, Matrix, Shape, _matrices, _norms, random_matrix
from benchmarks.vocabulary import tokenizer
from training import gguf_file

SHARED = 2  # layers
LITTLE = 0.02  # of what the last layer would add


# Of GGUF files: what llama.cpp calls a file of such weights (llama.h, llama_ftype).
WEIGHTS: Mapping[str, int] = {
    "q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
    "q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
    "q4_k_m": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M,
    "f16": llama_cpp.LLAMA_FTYPE_MOSTLY_F16,
    "bf16": llama_cpp.LLAMA_FTYPE_MOSTLY_BF16,
}


def pair(folder: Path, shape: Shape, weights: str = "q8_0") -> tuple[Path, Path]:
    """GGUF files of the large model and of the small one."""
    large, small = folder / "large.gguf", folder / "small.gguf"
    short = msgspec.structs.replace(shape, layers=SHARED)
    for path, one in ((large, shape), (small, short)):
        if not path.exists():
            _write(path, one, shape)
            convert(path, weights)
    return large, small


def convert(path: Path, weights: str) -> None:
    """A file with weights of Q8_0 gets others, of `WEIGHTS`."""
    if weights == "q8_0":
        return
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = WEIGHTS[weights], True
    made = path.with_suffix(".made")
    names = str(path).encode(), str(made).encode()
    if llama_cpp.llama_model_quantize(*names, ctypes.byref(params)):
        raise RuntimeError(f"llama.cpp made no file of {weights}")
    made.rename(path)


def _write(path: Path, shape: Shape, whole: Shape) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    gguf_file.add_metadata(writer, config_of(shape))
    gguf_file.add_tokenizer(writer, tokenizer(shape.vocabulary))
    kept = {name for name, _, _ in _matrices(shape)}
    for name, matrix in _weights(whole):
        if name in kept:
            writer.add_tensor(name, matrix, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    for name in _norms(shape):
        writer.add_tensor(name, np.ones(shape.width, np.float32))
    gguf_file.finish(writer)


def _weights(shape: Shape) -> Iterator[tuple[str, Matrix]]:
    """Of the large model: the same numbers each time."""
    dice = np.random.default_rng(0)
    for name, rows, columns in _matrices(shape):
        matrix = random_matrix(dice, rows, columns)
        part = name.split(".")
        behind = part[0] == "blk" and int(part[1]) >= SHARED
        if behind and part[2] in {"attn_output", "ffn_down"}:
            last = int(part[1]) == shape.layers - 1 and part[2] == "ffn_down"
            matrix = scaled(matrix, LITTLE if last else 0.0)
        yield name, matrix


def scaled(matrix: Matrix, factor: float) -> Matrix:
    """All weights of Q8_0 blocks, each of which begins with its scale, times `factor`."""
    blocks = matrix.reshape(len(matrix), -1, BLOCK + 2).copy()
    scales = np.ascontiguousarray(blocks[:, :, :2]).view(np.float16) * np.float16(factor)
    blocks[:, :, :2] = scales.view(np.uint8)
    return blocks.reshape(matrix.shape)


def config_of(shape: Shape) -> LlamaConfig:
    """As transformers has it."""
    return LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.width // shape.head,
        num_key_value_heads=shape.groups,
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )


def folders(folder: Path, shape: Shape) -> tuple[Path, Path]:
    """The same for transformers, with weights of 32 bits."""
    large, small = folder / "large", folder / "small"
    torch.manual_seed(0)
    whole = LlamaForCausalLM(config_of(shape))
    with torch.no_grad():
        for at, layer in enumerate(whole.model.layers[SHARED:], SHARED):
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.mul_(LITTLE if at == shape.layers - 1 else 0.0)
    short = LlamaForCausalLM(config_of(msgspec.structs.replace(shape, layers=SHARED)))
    short.load_state_dict(whole.state_dict(), strict=False)
    for path, model in ((large, whole), (small, short)):
        model.save_pretrained(path)
        tokenizer(shape.vocabulary).save(str(path / "tokenizer.json"))
    return large, small
