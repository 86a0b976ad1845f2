"""Where snapshots are taken, and which are kept: what saves the most, of what may come again."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from backends.engines.cells import Placement, Slot, Snapshot, place
from backends.engines.snapshots import APART, MOST, SPARED, SnapshotBudget, places

SIZE = 100


def slot(index: int, length: int, *cells: int, used: int = 0) -> Slot:
    made = Slot(index)
    made.tokens = list(range(length))
    made.cuts_from, made.used = length, used
    made.snapshots = [Snapshot(place, None, SIZE) for place in cells]
    return made


def kept(held: Slot) -> list[int]:
    return [snapshot.cells for snapshot in held.snapshots]


def take(budget: SnapshotBudget, held: Slot, cells: int) -> bool:
    if not budget.room_for(held, cells, SIZE):
        return False
    held.snapshots.append(Snapshot(cells, None, SIZE))
    return True


def test_a_prompt_gets_them_where_its_marks_are_and_at_its_end() -> None:
    assert places(528, 0, (490, 500)) == [490, 500, 527]


def test_a_mark_close_to_the_end_stands_for_it() -> None:
    assert places(528, 0, (490, 523)) == [490, 523]


def test_a_prompt_of_which_nothing_is_known_gets_another_before_its_end() -> None:
    assert places(1_000, 0, ()) == [743, 999]


def test_a_short_prompt_gets_none() -> None:
    assert places(64, 0, (40, 60)) == []


def test_a_long_prompt_gets_them_on_its_way() -> None:
    assert places(10_000, 5_000, (9_990,)) == [8_192, 9_990]


@given(st.integers(1, 9_999), st.integers(0, 9_999), st.lists(st.integers(-5, 12_000)))
def test_they_are_ahead_apart_and_leave_a_token(length: int, keep: int, marks: list[int]) -> None:
    found = places(length, keep, marks)
    assert found == sorted(set(found))
    assert all(keep < place < length for place in found)
    apart = pairwise(found[:-1])
    assert all(after - before >= APART for before, after in apart)


def test_what_saves_the_least_goes_first() -> None:
    held = slot(0, 1_000, 100, 110, 900)
    assert take(SnapshotBudget([held], 3 * SIZE), held, 990)
    assert kept(held) == [100, 900, 990]


def test_what_was_used_long_ago_goes_before_what_is_in_use() -> None:
    old, new = slot(0, 1_000, 500, used=1), slot(1, 1_000, 400, used=9)
    assert take(SnapshotBudget([old, new], 2 * SIZE), new, 900)
    assert (kept(old), kept(new)) == ([], [400, 900])


def test_what_would_save_less_than_all_others_is_not_taken() -> None:
    held = slot(0, 1_000, 400, 900)
    assert not take(SnapshotBudget([held], 2 * SIZE), held, 905)
    assert kept(held) == [400, 900]


def test_what_is_larger_than_the_budget_is_not_taken() -> None:
    held = slot(0, 1_000)
    assert not SnapshotBudget([held], SIZE - 1).room_for(held, 900, SIZE)


def test_no_more_is_kept_than_main_memory_has_free() -> None:
    held = slot(0, 1_000, 100, 110)
    free = SPARED + 4 * SIZE
    budget = SnapshotBudget([held], 9 * SIZE, lambda: free)

    assert take(budget, held, 800)
    free = 0  # other models have come: the least useful makes room
    assert take(budget, held, 900)
    assert kept(held) == [100, 800, 900]


def test_copies_have_theirs_in_common() -> None:
    one, other = slot(0, 1_000, 400, 900), slot(1, 0)
    other.copy(one)
    budget = SnapshotBudget([one, other], 3 * SIZE)
    assert budget.taken == 2 * SIZE
    assert take(budget, other, 990)
    assert take(budget, other, 999) is False


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(0, 12))
def test_the_budget_is_never_exceeded(steps: list[int], count: int) -> None:
    held = slot(0, 5_000)
    budget = SnapshotBudget([held], count * SIZE)
    cells = 0
    for step in steps:
        cells += step
        take(budget, held, cells)
        assert budget.taken <= count * SIZE
        assert len(held.snapshots) <= MOST


def test_a_prompt_starts_at_the_snapshot_before_it_parts() -> None:
    held = slot(0, 1_000, 400, 900)
    prompt = [*range(950), *range(5_000, 5_050)]
    assert place(prompt, [held, slot(1, 0)], compact=False) == Placement(0, 0, 900, parted=950)


def test_a_prompt_goes_on_where_its_sequence_ends() -> None:
    held = slot(0, 1_000, 400)
    prompt = [*range(1_000), 7, 8]
    assert place(prompt, [held], compact=False) == Placement(0, 0, 1_000)


def test_the_start_with_the_least_to_compute_wins() -> None:
    longer, nearer = slot(0, 1_000, 100), slot(1, 600, 550)
    prompt = [*range(590), *range(5_000, 5_400)]
    found = place(prompt, [longer, nearer], compact=False)
    assert found == Placement(1, 1, 550, parted=590)


def test_an_answer_swiped_away_stays_while_there_is_an_empty_slot() -> None:
    held = slot(0, 1_000, 900)
    prompt = [*range(900), 7]
    assert place(prompt, [held, slot(1, 0)], compact=False, spare=50) == Placement(1, 0, 900)
    assert place(prompt, [held, slot(1, 0)], compact=False, spare=100) == Placement(0, 0, 900)
    assert place(prompt, [held], compact=False, spare=50) == Placement(0, 0, 900)
