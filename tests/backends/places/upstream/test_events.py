"""Bytes to events, however they are cut."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.contract.errors import UpstreamError
from backends.places.upstream.events import EventReader


def reader(**limits: int) -> EventReader:
    return EventReader(**{"max_line": 1_000, "max_total": 100_000} | limits)


STREAM = (
    b': hello\nevent: x\ndata: {"a":1}\n\ndata:two\ndata: lines\n\r\nid: 3\r\ndata: last\r\n\r\n'
)
EVENTS = [b'{"a":1}', b"two\nlines", b"last"]


@given(st.lists(st.integers(min_value=0, max_value=len(STREAM)), max_size=20))
def test_however_a_stream_is_cut_its_events_are_the_same(cuts: list[int]) -> None:
    edges = sorted({0, len(STREAM), *cuts})
    one = reader()

    found = [
        event for begin, end in itertools.pairwise(edges) for event in one.feed(STREAM[begin:end])
    ]

    assert found == EVENTS


def test_an_event_that_the_end_cut_from_its_empty_line_is_read() -> None:
    one = reader()
    assert one.feed(b"data: x") == []

    assert one.rest() == [b"x"]


def test_a_byte_order_mark_takes_no_event_with_it() -> None:
    assert reader().feed(b"\xef\xbb\xbfdata: x\n\n") == [b"x"]


@pytest.mark.parametrize("size", [1, 7, 5_000])
def test_a_long_line_is_refused_in_pieces_of_any_size(size: int) -> None:
    one = reader(max_line=1_000)

    def feed() -> None:
        for _ in range(0, 5_000, size):
            one.feed(b"x" * size)

    with pytest.raises(UpstreamError, match="a line of more than 1000 bytes"):
        feed()


def test_a_line_that_ends_at_last_is_refused_too() -> None:
    with pytest.raises(UpstreamError, match="a line of more than"):
        reader(max_line=10).feed(b"data: much too long\n\n")


def test_a_stream_is_refused_past_its_limit() -> None:
    one = reader(max_total=100)
    one.feed(b"data: x\n\n" * 11)

    with pytest.raises(UpstreamError, match="a stream of more than 100 bytes"):
        one.feed(b"data: x\n\n")


def test_a_million_small_pieces_of_one_line_are_not_copied_again_and_again() -> None:
    one = reader(max_line=2_000_000, max_total=2_000_000)
    for _ in range(1_000_000):
        assert one.feed(b"x") == []

    assert one.feed(b"\n\n") == []
