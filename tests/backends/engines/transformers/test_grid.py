"""The grid's size: never more than it may take, always room for one; what is asked for, or None."""

from hypothesis import given
from hypothesis import strategies as st

from backends.engines.transformers.files import CacheSize
from backends.engines.transformers.grid import Size, fit

LIMIT = CacheSize(rows=8, tokens=1000, length=512)


def test_a_size_that_will_do_stays() -> None:
    present = Size(4, 128)
    assert fit(present, rows=4, cells=128, limit=LIMIT) is present


def test_a_long_sequence_costs_rows() -> None:
    assert fit(Size(8, 64), rows=1, cells=290, limit=LIMIT) == Size(rows=2, capacity=448)


def test_when_the_long_one_has_gone_the_rows_come_back() -> None:
    assert fit(Size(2, 448), rows=3, cells=60, limit=LIMIT) == Size(rows=7, capacity=128)


def test_what_does_not_fit_together_waits() -> None:
    assert fit(Size(2, 448), rows=2, cells=501, limit=LIMIT) is None
    assert fit(Size(8, 64), rows=9, cells=1, limit=LIMIT) is None


@given(
    st.integers(1, 8),
    st.integers(1, 512),
    st.builds(Size, rows=st.integers(0, 8), capacity=st.integers(0, 512)),
)
def test_sizes_keep_their_promises(rows: int, cells: int, present: Size) -> None:
    size = fit(present, rows, cells, LIMIT)
    if size is None:
        assert rows * cells > LIMIT.tokens
        return
    assert size.rows >= rows
    assert size.capacity >= cells
    if size is not present:
        assert size.rows <= LIMIT.rows
        assert size.capacity <= LIMIT.length
        assert size.rows * size.capacity <= LIMIT.tokens
