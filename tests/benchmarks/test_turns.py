"""Candidates take turns, and a figure is the median of its turns."""

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from benchmarks.answers import Figures
from benchmarks.turns import ROUNDS, in_turn, taken


def measure(clock: Iterator[int], speed: float, slow: range) -> Callable[[int], Figures]:
    """Of a server with that speed, on a machine that is slow in some of the turns of all."""

    def measured(streams: int) -> Figures:
        return Figures(tokens_per_second=streams * speed / (5 if next(clock) in slow else 1))

    return measured


def test_in_each_round_everybody_has_a_turn() -> None:
    turns: list[str] = []

    def measures(name: str) -> Callable[[], int]:
        def turn() -> int:
            turns.append(name)
            return len(turns)

        return turn

    results = in_turn({name: measures(name) for name in ("ours", "theirs")}, 3)
    assert turns == ["ours", "theirs"] * 3
    assert results == {"ours": [1, 3, 5], "theirs": [2, 4, 6]}


def test_what_a_turn_raises_ends_the_run() -> None:
    def failing() -> Figures:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        in_turn({"ours": failing}, ROUNDS)


def test_a_machine_that_slows_down_for_three_rounds_changes_no_median() -> None:
    clock, slow = count(), range(4, 10)
    measures = {"ours": measure(clock, 120.0, slow), "theirs": measure(clock, 100.0, slow)}
    rows = taken(measures, (1,), ROUNDS)
    assert [len(row.rounds) for row in rows] == [8, 8]
    assert {row.candidate: row.middle.tokens_per_second for row in rows} == {
        "ours": 120.0,
        "theirs": 100.0,
    }


def test_each_number_of_streams_has_a_row_for_each_candidate() -> None:
    clock, never = count(), range(0)
    measures = {"ours": measure(clock, 2.0, never), "theirs": measure(clock, 1.0, never)}
    rows = taken(measures, (1, 4), 2)
    assert {(row.candidate, row.streams): row.middle.tokens_per_second for row in rows} == {
        ("ours", 1): 2.0,
        ("theirs", 1): 1.0,
        ("ours", 4): 8.0,
        ("theirs", 4): 4.0,
    }


def test_progress_stays_out_of_the_tables(capsys: pytest.CaptureFixture[str]) -> None:
    taken({"ours": measure(count(), 2.0, range(0))}, (1,), 2)
    printed = capsys.readouterr()
    assert not printed.out
    assert printed.err.splitlines() == [
        "round 1 of 2",
        "   1  ours: 2",
        "round 2 of 2",
        "   1  ours: 2",
    ]
