"""Kinds of jobs that can't be computed together take turns, and nobody waits for ever."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from backends.engines.jobs import Turns


def in_order(jobs: Sequence[tuple[str, int]], together: int) -> list[list[tuple[str, int]]]:
    """All of them come at once; each list is computed together, to the end."""
    turns: Turns[tuple[str, int]] = Turns()
    for job in jobs:
        turns.join(job[0], "", job[1], job)
    passes: list[list[tuple[str, int]]] = []
    while True:
        active: list[tuple[str, int]] = []
        while len(active) < together and (begun := turns.next([""] * len(active))) is not None:
            active.append(begun)
        if not active:
            return passes
        passes.append(active)


def test_those_who_came_together_are_computed_by_kinds() -> None:
    jobs = [(kind, number) for number in range(3) for kind in "ab"]
    assert in_order(jobs, 8) == [
        [("a", 0), ("a", 1), ("a", 2)],
        [("b", 0), ("b", 1), ("b", 2)],
    ]


def test_a_turn_that_has_begun_takes_newcomers_until_another_kind_waits() -> None:
    turns: Turns[str] = Turns()
    turns.join("a", "", 0, "first")
    assert turns.next() == "first"
    turns.join("a", "", 1, "second")
    assert turns.next([""]) == "second"
    turns.join("b", "", 2, "other")
    turns.join("a", "", 3, "late")
    assert turns.next([""]) is None
    assert turns.next() == "other"
    turns.join("b", "", 4, "later")
    assert turns.next([""]) is None
    assert turns.next() == "late"
    assert turns.next() == "later"
    assert turns.next() is None


def test_a_kind_that_nobody_waits_for_any_more_closes_no_turn() -> None:
    turns: Turns[str] = Turns()
    turns.join("a", "", 0, "first")
    assert turns.next() == "first"
    turns.join("b", "", 1, "impatient")
    turns.leave("b", "", 1, "impatient")
    turns.join("a", "", 2, "second")
    assert turns.next([""]) == "second"
    turns.join("a", "", 3, "third")
    turns.leave("a", "", 3, "third")
    turns.join("b", "", 4, "other")
    assert turns.leave_all() == ["other"]
    assert turns.next() is None


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.sampled_from("abc")),
        st.tuples(st.sampled_from(("begin", "end", "leave")), st.integers(0, 9)),
    ),
    max_size=60,
)


@given(EVENTS)
def test_kinds_never_mix_and_nobody_waits_for_more_than_a_turn_of_each(
    events: list[tuple[str, str | int]],
) -> None:
    turns: Turns[tuple[str, int]] = Turns()
    waiting: list[tuple[str, int]] = []
    active: list[tuple[str, int]] = []
    for number, (event, what) in enumerate(events):
        if event == "join":
            waiting.append((str(what), number))
            turns.join(str(what), "", number, waiting[-1])
        elif event == "begin" and (begun := turns.next([""] * len(active))) is not None:
            waiting.remove(begun)
            active.append(begun)
            assert {kind for kind, _ in active} == {begun[0]}
        elif event == "end" and active:
            del active[int(what) % len(active)]
        elif event == "leave" and waiting:
            left = waiting.pop(int(what) % len(waiting))
            turns.leave(left[0], "", left[1], left)
    rest = list(iter(turns.next, None))
    assert sorted(rest) == sorted(waiting)
    kinds = [kind for kind, _ in rest]
    changes = sum(one != other for one, other in pairwise(kinds))
    assert changes <= 3  # the rest of the turn under way, and one of each kind
