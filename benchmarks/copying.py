"""A model that edits: after each token comes the one that follows it in a fixed walk over the
vocabulary. So a prompt that is a part of the walk with some tokens changed is answered, where it
is asked for again, with that part as it should be.

All matrices have the size that `Shape` says and random weights, so that a step takes what it takes;
but what the layers write into what they pass on is nothing (their output projections are zero).
What is left is the embedding of the newest token, and the output matrix has at each token the
embedding of the one before it in the walk. What is likeliest is the next one by far, so rounding
changes no text, and every server that has the file gives the same answer by itself.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import gguf
import numpy as np

from benchmarks.drafting import config_of, scaled
from benchmarks.realistic import Matrix, Shape, _matrices, _norms, random_matrix
from benchmarks.vocabulary import tokenizer
from training import gguf_file

FIRST = 300  # token of the walk; those before it are special ones and bytes


def write(path: Path, shape: Shape) -> Path:
    """The GGUF file, at `path`, with weights of 8 bits."""
    writer = gguf.GGUFWriter(path, "llama")
    gguf_file.add_metadata(writer, config_of(shape))
    gguf_file.add_tokenizer(writer, tokenizer(shape.vocabulary))
    for name, matrix in _weights(shape):
        writer.add_tensor(name, matrix, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    for name in _norms(shape):
        writer.add_tensor(name, np.ones(shape.width, np.float32))
    gguf_file.finish(writer)
    return path


def _weights(shape: Shape) -> Iterator[tuple[str, Matrix]]:
    dice = np.random.default_rng(0)
    for name, rows, columns in _matrices(shape):
        matrix = random_matrix(dice, rows, columns)
        if name == "token_embd.weight":
            output = matrix.copy()
            steps = walk(shape)
            output[np.roll(steps, -1)] = matrix[steps]
            yield "output.weight", output
        elif name.split(".")[2] in {"attn_output", "ffn_down"}:
            matrix = scaled(matrix, 0.0)
        yield name, matrix


def walk(shape: Shape) -> Sequence[int]:
    """Every token from `FIRST` on once; behind the last comes the first."""
    return list(np.random.default_rng(1).permutation(np.arange(FIRST, shape.vocabulary)))
