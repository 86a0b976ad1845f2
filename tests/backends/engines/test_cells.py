"""Where a prompt starts: the longest shared beginning wins, and nobody's cells are given up without
need.
"""

from hypothesis import given
from hypothesis import strategies as st

from backends.contract.beginnings import common_length
from backends.engines.cells import Placement, Slot, place

SYSTEM = list(range(100, 140))


def slots(*held: list[int], busy: tuple[int, ...] = ()) -> list[Slot]:
    made = []
    for index, tokens in enumerate(held):
        slot = Slot(index)
        slot.tokens, slot.busy, slot.used = list(tokens), index in busy, index + 1
        made.append(slot)
    return made


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_common_is_the_length_of_the_shared_beginning(left: list[int], right: list[int]) -> None:
    length = common_length(left, right)
    assert left[:length] == right[:length]
    assert left[length : length + 1] != right[length : length + 1] or length == min(
        len(left), len(right)
    )


def test_the_next_turn_continues_in_its_own_slot() -> None:
    turn = [*SYSTEM, 1, 2, 3]
    assert place([*turn, 4, 5], slots([9] * 50, turn), compact=False) == Placement(1, 1, 43)


def test_one_token_is_always_left_to_compute() -> None:
    assert place(SYSTEM, slots(SYSTEM), compact=False).keep == len(SYSTEM) - 1


def test_a_shared_beginning_is_copied_from_who_is_busy() -> None:
    held = slots([*SYSTEM, 1, 2], [], busy=(0,))
    assert place([*SYSTEM, 7], held, compact=False) == Placement(1, 0, 40)


def test_another_conversation_keeps_its_cells() -> None:
    held = slots([*SYSTEM, *range(200)], [])
    assert place([*SYSTEM, 7], held, compact=False) == Placement(1, 0, 40)


def test_a_few_shared_tokens_give_up_nobody() -> None:
    held = slots([1, 2, 3, *range(50, 90)], [8] * 30, [])
    assert place([1, 2, 3, 4], held, compact=False).slot == 2


def test_the_longest_unused_goes_first() -> None:
    held = slots([7] * 20, [8] * 20, [9] * 20)
    held[0].used = 10
    assert place([1, 2], held, compact=False).slot == 1


def test_a_split_cache_keeps_neighbours_together() -> None:
    held = slots([7] * 20, [8] * 20, [9] * 20, busy=(2,))
    assert place([1, 2], held, compact=True).slot == 1
    assert place([1, 2], held, compact=False).slot == 0
