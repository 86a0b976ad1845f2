"""What the transformers container does with each kind of cache: whether requests share passes, and
what of a conversation's prompts is computed again. Tiny models with random weights, over HTTP.

    python -m benchmarks.transformers_caches [--kinds lfm2 …] [--lengths 528 4000]
"""

import argparse
import contextlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.peers import Running, roundhouse
from benchmarks.turns import TURNS, turns
from tests.backends.engines.transformers.test_batching_architectures import ALONE, BATCHED
from tests.backends.engines.transformers.test_batching_turns import LONGEST, WORDS, written
from tests.backends.turns import LENGTHS

KINDS = (*BATCHED, *ALONE)


@contextlib.contextmanager
def serving(kinds: Sequence[str], folder: Path) -> Iterator[Running]:
    """A server with a model of each kind."""
    options = {"context_length": LONGEST, "threads": 1, "device": "cpu"}
    models = [
        {"name": kind, "path": str(written(kind, folder)), "options": options} for kind in kinds
    ]
    config = folder / "config.yaml"
    config.write_text(json.dumps({"models": models}))
    with roundhouse("--config", str(config)) as running:
        yield running


def rows(kinds: Sequence[str], lengths: Sequence[int]) -> Iterator[str]:
    """A line of the table for each kind and length."""
    with tempfile.TemporaryDirectory() as made, serving(kinds, Path(made)) as running:
        for kind in kinds:
            for length in lengths:
                found = turns(running.port, kind, 2 * length, str(length), WORDS)
                cells = (f"{found[turn].cached} of {found[turn].prompt}" for turn in TURNS[1:])
                yield f"| {kind} | {found['cold'].prompt} | {' | '.join(cells)} |"


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    options = parser.parse_args(argv)
    print(f"| model | prompt | {' | '.join(TURNS[1:])} |\n|---|--:|{'--:|' * len(TURNS[1:])}")
    for row in rows(options.kinds, options.lengths):
        print(row, flush=True)


if __name__ == "__main__":
    main()
