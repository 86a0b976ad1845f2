"""A model of the shape that people run, with random weights: heads of 64 that share keys, weights
at 8 bits, 8,192 tokens, some 27 million weights.

The bundled model is so small, and its heads so narrow, that a step is mostly what stands around the
matrices. What is said of servers and of llama.cpp's kernels has to hold for this one, too.
"""

from collections.abc import Iterator
from pathlib import Path

import gguf
import msgspec
import numpy as np
import numpy.typing as npt
from transformers import LlamaConfig

from benchmarks.vocabulary import tokenizer
from training import gguf_file

BLOCK = 32  # weights that share a scale: ggml-common.h, block_q8_0
Matrix = npt.NDArray[np.uint8]


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """Of a Llama. `head`: the width of one."""

    layers: int = 8
    width: int = 512
    head: int = 64
    groups: int = 2  # heads of keys and values
    hidden: int = 1_408
    vocabulary: int = 8_192


USUAL = Shape()


def write(path: Path, shape: Shape = USUAL) -> Path:
    """The GGUF file, at `path`."""
    writer = gguf.GGUFWriter(path, "llama")
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.width // shape.head,
        num_key_value_heads=shape.groups,
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
    )
    gguf_file.add_metadata(writer, config)
    gguf_file.add_tokenizer(writer, tokenizer(shape.vocabulary))
    dice, kind = np.random.default_rng(0), gguf.GGMLQuantizationType.Q8_0
    for name, rows, columns in _matrices(shape):
        writer.add_tensor(name, _random(dice, rows, columns), raw_dtype=kind)
    for name in _norms(shape):
        writer.add_tensor(name, np.ones(shape.width, np.float32))
    gguf_file.finish(writer)
    return path


def _matrices(shape: Shape) -> Iterator[tuple[str, int, int]]:
    """Name, rows and columns of each."""
    keys = shape.groups * shape.head
    yield "token_embd.weight", shape.vocabulary, shape.width
    for layer in range(shape.layers):
        for name, rows, columns in (
            ("attn_q", shape.width, shape.width),
            ("attn_k", keys, shape.width),
            ("attn_v", keys, shape.width),
            ("attn_output", shape.width, shape.width),
            ("ffn_gate", shape.hidden, shape.width),
            ("ffn_up", shape.hidden, shape.width),
            ("ffn_down", shape.width, shape.hidden),
        ):
            yield f"blk.{layer}.{name}.weight", rows, columns


def _norms(shape: Shape) -> Iterator[str]:
    yield "output_norm.weight"
    for layer in range(shape.layers):
        yield from (f"blk.{layer}.attn_norm.weight", f"blk.{layer}.ffn_norm.weight")


def _random(dice: np.random.Generator, rows: int, columns: int) -> Matrix:
    """Blocks of a scale and 32 numbers of 8 bits. Weights between plus and minus 2 / sqrt(columns):
    a row's sum is as large as what it is made of.
    """
    blocks = dice.integers(0, 256, (rows, columns // BLOCK, 2 + BLOCK), np.uint8)
    scale = np.float16(2 / columns**0.5 / 128)
    blocks[:, :, :2] = np.frombuffer(scale.tobytes(), np.uint8)
    return blocks.reshape(rows, -1)
