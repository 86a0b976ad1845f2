"""Models of the shape that people run, with random weights: heads of 64 that share keys, weights at
8 bits; of 27 million weights, of 1 million and of 300 million.

The bundled model is so small, and its heads so narrow, that a step is mostly what stands around the
matrices. What is said of servers and of llama.cpp's kernels has to hold for these, too.

The command measures threads by the size of the model: tokens a second of one stream with each fixed
number of threads and with `threads: auto`, and auto's share of the best fixed number.

    python -m benchmarks.realistic [--sizes 1M 27M 300M] [--threads 1 2 …] [--rounds 8]
                                   [--seconds 2]

On two processors that takes five minutes. To shorten it leave out sizes, or on more processors
thread counts (`--threads 1 4 8`), since each is a server of its own with the model in memory; fewer
rounds or seconds make it less exact.
"""

import argparse
import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import gguf
import msgspec
import numpy as np
import numpy.typing as npt
from transformers import LlamaConfig

from backends.engines import threads
from benchmarks import report
from benchmarks.serving import Plan, by_threads
from benchmarks.turns import ROUNDS, taken
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
SIZES = MappingProxyType(
    {
        "1M": Shape(layers=4, width=128, groups=1, hidden=352, vocabulary=2_048),
        "27M": USUAL,
        "300M": Shape(layers=26, width=1_024, groups=4, hidden=2_816),
    }
)
ANSWER_TOKENS = 64  # of the largest in a second or two, so that a turn ends soon after its window
SHARE = 0.97  # that `auto` is to reach of the best fixed number of threads


def weights(shape: Shape) -> int:
    """Those of its matrices."""
    return sum(rows * columns for _, rows, columns in _matrices(shape))


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
        writer.add_tensor(name, random_matrix(dice, rows, columns), raw_dtype=kind)
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


def random_matrix(dice: np.random.Generator, rows: int, columns: int) -> Matrix:
    """Blocks of a scale and 32 numbers of 8 bits. Weights between plus and minus 2 / sqrt(columns):
    a row's sum is as large as what it is made of.
    """
    blocks = dice.integers(0, 256, (rows, columns // BLOCK, 2 + BLOCK), np.uint8)
    scale = np.float16(2 / columns**0.5 / 128)
    blocks[:, :, :2] = np.frombuffer(scale.tobytes(), np.uint8)
    return blocks.reshape(rows, -1)


# ---------------------------------------------------------------------- threads by the model's size


def measured(size: str, counts: Sequence[int], rounds: int, seconds: float) -> list[report.Row]:
    """A row for each number of threads and for `auto`, at one stream. Each server has answered for
    a turn before. Raises DidNotStart and what `run` raises.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as running:
        model = write(Path(folder) / f"{size}.gguf", SIZES[size])
        plan = Plan(model, (1,), rounds, seconds, seconds / 4, answer_tokens=ANSWER_TOKENS)
        measures = by_threads(plan, counts, running, max_concurrent="1")
        for measure in measures.values():
            measure(1)
        return taken(measures, plan.streams, rounds)


def table(rows: Mapping[str, Sequence[report.Row]], counts: Sequence[int]) -> str:
    """Markdown: a line for each size."""
    heads = [f"{count} thread{'s' * (count > 1)}" for count in counts]
    lines = [
        f"| weights | {' | '.join(heads)} | auto | auto relative to the best |",
        "|--:|" + "--:|" * (len(counts) + 2),
    ]
    names = [*map(report.with_threads, counts), report.AUTO]
    for size, each in rows.items():
        speeds = report.speeds_at(each, 1)
        cells = " | ".join(f"{speeds[name]:,.0f}" for name in names)
        lines.append(f"| {size} | {cells} | {report.share_of_fixed(speeds, counts):.0%} |")
    return "\n".join(lines)


def targets(
    rows: Mapping[str, Sequence[report.Row]], counts: Sequence[int]
) -> Iterator[report.Target]:
    """Of `auto`, at each size."""
    for size, each in rows.items():
        share = report.share_of_fixed(report.speeds_at(each, 1), counts)
        promise = f"{size} weights: threads auto at least {SHARE:.0%} of the best fixed number"
        yield report.Target(promise, f"{share:.1%}", share >= SHARE)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = range(1, threads.count() + 1)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--threads", type=int, nargs="+", default=list(every), metavar="COUNT")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=2.0, help="measured in each turn")
    options = parser.parse_args(argv)
    machine, counts = report.machine(), options.threads
    rows = {size: measured(size, counts, options.rounds, options.seconds) for size in options.sizes}
    print(f"{machine.processor}, {machine.cores} cores, load before: {machine.load_before:.1f}\n")
    print(table(rows, counts), "\n")
    report.tell(targets(rows, counts))


if __name__ == "__main__":
    main()
