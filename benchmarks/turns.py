"""Candidates measured in turns, so that what the machine does meanwhile hits all alike."""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from benchmarks import report
from benchmarks.answers import Figures

Measure: TypeAlias = Callable[[int], Figures]  # number of streams -> what came out


def taken(measures: Mapping[str, Measure], streams: Sequence[int], rounds: int) -> list[report.Row]:
    """A row for each candidate and number of streams: the middle of the rounds. Tells how it goes;
    raises what a measure raises.
    """
    measured: dict[tuple[str, int], list[Figures]] = {}
    for number in range(1, rounds + 1):
        for count in streams:
            for name, measure in measures.items():
                figures = measure(count)
                measured.setdefault((name, count), []).append(figures)
                speed = f"{figures.tokens_per_second:,.0f}"
                print(f"{number}/{rounds}  {count:>2}  {name}: {speed}", flush=True)
    return [report.row(name, count, every) for (name, count), every in measured.items()]
