"""How good is the scheduler? A study without an engine: `python -m benchmarks.scheduler`.

The same crowds are answered by our scheduler and by plain FIFO, over mixes of load times and
arrival rates; in small cases also by the best order there is, found by trying all. Prints tables
(Markdown) and writes JSON. The clock is virtual and the crowds come from a seed, so every run gives
the same figures.
"""

import argparse
import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from benchmarks.simulation import Case, Outcome, Request, best_order, first_in_first_out, scheduled
from config.settings import SwapConfig

RULES = SwapConfig(max_waiting=1_000_000)  # the defaults, but nobody is sent away
SLOTS = 32  # twice the default `max_concurrent`
POPULARITY = (0.6, 0.3, 0.1)  # of three models
MOST_SWAPS = 6


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One policy with one crowd, or the middle of several."""

    policy: str
    loads: float
    mean_wait: float  # seconds
    p95_wait: float  # seconds
    throughput: float  # answers per second


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What each policy made of the same crowd."""

    title: str
    rows: tuple[Figures, ...]


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """Everything, as it is written."""

    rules: SwapConfig
    alternating: Comparison
    mixes: tuple[Comparison, ...]
    against_best: tuple[Comparison, ...]


def figures(policy: str, outcomes: Sequence[Outcome]) -> Figures:
    """The means over crowds of one kind."""

    def mean(values: Iterable[float]) -> float:
        return sum(values) / len(outcomes)

    return Figures(
        policy=policy,
        loads=mean(outcome.loads for outcome in outcomes),
        mean_wait=mean(outcome.mean_wait for outcome in outcomes),
        p95_wait=mean(outcome.p95_wait for outcome in outcomes),
        throughput=mean(outcome.throughput for outcome in outcomes),
    )


# ------------------------------------------------------------------------------------ crowds


def alternating(requests: int = 200) -> Case:
    """All at once, for two models in turn of which only one fits."""
    return Case(
        loads={"a": 5.0, "b": 5.0},
        room=1,
        slots=SLOTS,
        requests=tuple(Request("ab"[n % 2], 0.0, 4.0) for n in range(requests)),
    )


def mix(seed: int, loads: Sequence[float], room: int, every: float, requests: int) -> Case:
    """Three models of unlike popularity, requests at random, one in `every` seconds."""
    chance = random.Random(seed)
    names = ("often", "sometimes", "rarely")
    now, crowd = 0.0, []
    for _ in range(requests):
        now += chance.expovariate(1 / every)
        (name,) = chance.choices(names, POPULARITY)
        crowd.append(Request(name, now, min(60.0, chance.expovariate(1 / 8.0))))
    return Case(
        loads=dict(zip(names, loads, strict=True)), room=room, slots=SLOTS, requests=tuple(crowd)
    )


def small(seed: int, load: float, every: float) -> Case:
    """Ten requests for three models, of which one fits: few enough to try every order."""
    whole = mix(seed, (load, load, load), room=1, every=every, requests=10)
    return msgspec.structs.replace(whole, slots=len(whole.requests))


# ------------------------------------------------------------------------------------ the study


def study(seeds: int = 10) -> Study:
    """Run everything."""
    return Study(
        rules=RULES,
        alternating=compare("200 requests at once, two models in turn", [alternating()]),
        mixes=(*even_mixes(seeds), uneven_mix(seeds)),
        against_best=tuple(
            compare(
                f"10 requests, loads of {load:g} s, room for 1 of 3, a request every {every:g} s",
                [small(seed, load, every) for seed in range(seeds)],
                best=True,
            )
            for load in (1.0, 10.0, 60.0)
            for every in (0.5, 5.0, 30.0)
        ),
    )


def even_mixes(seeds: int) -> Iterator[Comparison]:
    """All models load alike: quick or slow, for a crowd or a trickle, with more or less room."""
    for load, room, every in itertools.product((1.0, 10.0, 60.0), (1, 2), (1.0, 10.0, 60.0)):
        yield compare(
            f"loads of {load:g} s, room for {room} of 3, a request every {every:g} s",
            [mix(seed, (load, load, load), room, every, 400) for seed in range(seeds)],
        )


def uneven_mix(seeds: int) -> Comparison:
    """The rarer a model is wanted, the longer it loads."""
    return compare(
        "loads of 2, 20 and 60 s, room for 1 of 3, a request every 5 s",
        [mix(seed, (2.0, 20.0, 60.0), 1, 5.0, 400) for seed in range(seeds)],
    )


def compare(title: str, cases: Sequence[Case], *, best: bool = False) -> Comparison:
    """The policies beside each other; the best order only where it can be searched for."""
    rows = [
        figures("scheduler", [scheduled(case, RULES) for case in cases]),
        figures("FIFO", [first_in_first_out(case) for case in cases]),
    ]
    if best:
        rows.append(figures("best order", [best_order(case) for case in cases]))
    return Comparison(title=title, rows=tuple(rows))


def table(comparisons: Iterable[Comparison]) -> str:
    """Markdown."""
    lines = [
        "| crowd | policy | loads | mean wait s | p95 wait s | answers/s |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for each in comparisons:
        for number, row in enumerate(each.rows):
            title = each.title if number == 0 else ""
            waits = f"{row.mean_wait:.1f} | {row.p95_wait:.1f}"
            lines.append(
                f"| {title} | {row.policy} | {row.loads:.1f} | {waits} | {row.throughput:.3f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """The command."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--output", type=Path, default=Path("benchmarks/results/scheduler.json"))
    arguments.add_argument("--seeds", type=int, default=10, help="crowds of each kind")
    given = arguments.parse_args()
    result = study(given.seeds)
    swaps = result.alternating.rows[0].loads - 1
    print(table([result.alternating]))
    print(
        f"\nat most {MOST_SWAPS} swaps: {swaps:g}, {'met' if swaps <= MOST_SWAPS else 'MISSED'}\n"
    )
    print(table(result.mixes))
    print()
    print(table(result.against_best))
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_bytes(msgspec.json.format(msgspec.json.encode(result)))


if __name__ == "__main__":
    main()
