"""Mutated outputs, none of which may raise, disorder its events or depend on its cuts.

    python -m tests.gateway.splitter.fuzz --mutations 1000000 --seed 20261120 --results FILE

Every mutation of a case is run in random pieces and checked as the tests check cases: the order of
events, arguments that are JSON objects, unique ids. One in ten is run a second time, cut otherwise,
and has to give the same. The seeds and the outcome of the last long run are in
benchmarks/results/splitter-fuzz.json.
"""

import argparse
import json
import platform
import random
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec

from tests.gateway.splitter.corpus import Case, join, load, run

# Characters that mean something in some format, and some that are awkward everywhere.
AWKWARD = [
    *"<>|[]{}()\"'\\/=:,;`_ \n\t\r\u0000\u00e9\u6f22\U0001f680\u2581\uff5c0e+-.",
    "</",
    "<|",
    "\\u",
    "\\ud83d",
]


def mutated(text: str, other: str, chance: random.Random) -> str:
    """`text` with one to four random changes, some of them taken from `other`."""
    for _ in range(chance.randint(1, 4)):
        begin, end = sorted(chance.randint(0, len(text)) for _ in range(2))
        begin = max(begin, end - chance.choice((1, 3, 20, 200)))
        match chance.randrange(6):
            case 0:
                text = text[:begin] + text[end:]
            case 1:
                text = text[:begin] + text[begin:end] * 2 + text[end:]
            case 2:
                text = text[:begin] + chance.choice(AWKWARD) + text[begin:]
            case 3:
                text = text[:begin] + chance.choice(AWKWARD) + text[begin + 1 :]
            case 4:
                at = chance.randint(0, len(other))
                text = text[:begin] + other[at : at + 40] + text[begin:]
            case _:
                text = text[:end]
    return text


def pieces(text: str, chance: random.Random) -> Iterator[str]:
    """`text` cut at random: whole, in tokens, or one character at a time."""
    size = chance.choice((1, 4, 12, len(text) + 1))
    at = 0
    while at < len(text):
        step = chance.randint(1, size)
        yield text[at : at + step]
        at += step


def fuzz(mutations: int, seed: str) -> None:
    """Runs the mutations. Raises, with the output that did it, at the first that fails."""
    chance = random.Random(seed)
    cases = load("cases.jsonl")
    for number in range(mutations):
        case, other = chance.choice(cases), chance.choice(cases)
        changes = {
            "raw": mutated(case.raw, other.raw, chance),
            "finish_reason": chance.choice(("stop", "length")),
            "format": chance.choice((case, case, case, other)).format,
        }
        check(msgspec.structs.replace(case, **changes), chance, again=number % 10 == 0)


def check(case: Case, chance: random.Random, *, again: bool) -> None:
    """Runs one output, and again cut otherwise."""
    try:
        answer = join(run(case, pieces(case.raw, chance))).without_ids()
        if again:
            other = join(run(case, pieces(case.raw, chance))).without_ids()
            assert other == answer, (answer, other)
    except BaseException as failure:
        failure.add_note(f"{case.id} as {case.format}: {case.raw!r}")
        raise


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=20261120)
    parser.add_argument("--shards", type=int, default=2, help="processes; part of the seed")
    parser.add_argument("--results", type=Path, default=None)
    wanted = parser.parse_args()
    begin = time.perf_counter()
    share = wanted.mutations // wanted.shards
    seeds = [f"{wanted.seed}/{shard}" for shard in range(wanted.shards)]
    with ProcessPoolExecutor(wanted.shards) as pool:
        list(pool.map(fuzz, [share] * wanted.shards, seeds))
    result = {
        "mutations": share * wanted.shards,
        "seeds": seeds,
        "exceptions": 0,
        "seconds": round(time.perf_counter() - begin),
        "python": platform.python_version(),
    }
    text = json.dumps(result, indent=2)
    print(text)  # noqa: T201 — a script
    if wanted.results is not None:
        wanted.results.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
