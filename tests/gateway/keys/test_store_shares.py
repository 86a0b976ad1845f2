"""What one can keep beside others: an equal part, and what the others leave of theirs."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.keys.store import share

SIZES = st.lists(st.integers(0, 1_000))


def test_examples() -> None:
    assert share(100, []) == 100
    assert share(100, [10]) == 90
    assert share(100, [80]) == 50
    assert share(100, [80, 10]) == 45
    assert share(100, [80, 80, 80]) == 25


@given(st.integers(1, 1_000), SIZES)
def test_an_equal_part_is_everybodys(total: int, others: list[int]) -> None:
    assert share(total, others) >= total // (len(others) + 1)


@given(st.integers(1, 1_000), SIZES)
def test_those_with_less_give_up_nothing(total: int, others: list[int]) -> None:
    mine = share(total, others)
    assert mine + sum(min(size, mine) for size in others) <= total
