"""What a step of llama.cpp takes by its tokens and by the form of the weights: whether drafts can
pay (`backends.engines.speculation`) is decided by that.

    python -m benchmarks.step_costs [--size 27M] [--weights q8_0 q4_0 …] [--rows 1 2 3 …]
                                    [--repetitions 15]

One thread, one sequence, logits of every token; milliseconds of processor time, the middle of the
repetitions, and in brackets how many times a step of one token. `repacked`: the weights are copied
into the form that the CPU multiplies fastest (AMX, or tiles of AVX-512 and NEON), as they are when
a model is loaded; `plain`: as they are in the file, by llama.cpp's and llamafile's kernels.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

import msgspec

from backends.contract import catalog
from backends.engines.llamacpp import loading
from backends.engines.llamacpp.batch import Batch
from backends.engines.llamacpp.library import api
from benchmarks import drafting, realistic, report
from benchmarks.realistic import SIZES, Shape
from config.engines import LlamaCppOptions

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 32)
LENGTH = 2_048
FORMS = {"repacked": True, "plain": False}
WARM = 2  # steps of each size that come first and don't count


class Costs(msgspec.Struct, frozen=True):
    """Seconds of a step by its tokens."""

    weights: str
    form: str
    seconds: Mapping[int, float]


def step_seconds(
    path: Path, *, repacked: bool, rows: Sequence[int], count: int
) -> dict[int, float]:
    """Of the model in `path`, each the middle of `count`."""
    files = catalog.recognise(path, "llamacpp")
    assert files is not None
    options = LlamaCppOptions(max_concurrent=1, context_length=LENGTH, threads=1)
    files = msgspec.structs.replace(files, repacked=files.repacked and repacked)
    loaded = loading.load(files, options, lambda _: True)
    batch = Batch(max(rows))
    try:
        return {one: median(_steps(loaded.context, batch, one, count)) for one in rows}
    finally:
        loaded.free()


def _steps(context: api.llama_context_p, batch: Batch, rows: int, count: int) -> Iterator[float]:
    api.llama_memory_clear(api.llama_get_memory(context), True)  # noqa: FBT003 - a C function's
    for number in range(WARM + count):
        batch.clear()
        tokens = [300 + place for place in range(rows)]
        batch.chunk(tokens, number * rows, 0, last=True, every=True)
        began = time.thread_time()
        if api.llama_decode(context, batch.ready()):
            raise RuntimeError("llama_decode failed")
        api.llama_synchronize(context)
        if number >= WARM:
            yield time.thread_time() - began


def measured(
    shape: Shape, weights: Sequence[str], rows: Sequence[int], count: int
) -> Iterator[Costs]:
    """Of each form of a model of that shape."""
    with tempfile.TemporaryDirectory() as made:
        for kind in weights:
            path = Path(made) / f"{kind}.gguf"
            realistic.write(path, shape)
            drafting.convert(path, kind)
            for form, repacked in FORMS.items():
                seconds = step_seconds(path, repacked=repacked, rows=rows, count=count)
                yield Costs(kind, form, seconds)


def table(found: Sequence[Costs], rows: Sequence[int]) -> Iterator[str]:
    """Markdown."""
    yield f"| weights | form | {' | '.join(f'{count} tokens' for count in rows)} |"
    yield "|---|---|" + "--:|" * len(rows)
    for one in found:
        least = one.seconds[rows[0]]
        cells = (
            f"{1e3 * one.seconds[count]:.1f} ({one.seconds[count] / least:.1f})" for count in rows
        )
        yield f"| {one.weights} | {one.form} | {' | '.join(cells)} |"


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=SIZES, default="27M")
    parser.add_argument(
        "--weights", nargs="+", choices=drafting.WEIGHTS, default=list(drafting.WEIGHTS)
    )
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS))
    parser.add_argument("--repetitions", type=int, default=15)
    options = parser.parse_args(argv)
    machine = report.machine()
    rows = sorted(options.rows)
    found = list(measured(SIZES[options.size], options.weights, rows, options.repetitions))
    print(f"{machine.processor}, {machine.cores} cores, load {machine.load_before:.1f}\n")
    print("\n".join(table(found, rows)))


if __name__ == "__main__":
    main()
