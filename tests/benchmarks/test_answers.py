from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.answers import Answer, Arrival, figures, percentile, read, whole_answers

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
FINISH = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}\n\n'
DONE = b"data: [DONE]\n\n"


def frame(text: bytes, field: bytes = b"content") -> bytes:
    return b'data: {"choices":[{"delta":{"' + field + b'":"' + text + b'"}}]}\n\n'


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def answer(*parts: bytes, sent: float = 0.0, every: float = 1.0) -> Answer:
    """The head and each part arrive one after the other, `every` seconds apart."""
    arrivals = [Arrival(sent + every * number, data) for number, data in enumerate((HEAD, *parts))]
    return Answer(sent, tuple(arrivals))


def test_frames_with_text_are_counted_and_no_others() -> None:
    parts = (ROLE, frame(b"a"), frame(b"b", b"reasoning_content"), FINISH, USAGE, DONE)
    reading = read(answer(*map(chunk, parts)), asked=4)
    assert reading.texts == (2.0, 3.0)
    assert reading.accepted
    assert reading.ended


def test_text_that_looks_like_a_frame_is_text() -> None:
    tricky = frame(rb"data: {\"content\":\"x\"}")
    assert len(read(answer(chunk(tricky)), asked=1).texts) == 1


def test_tokens_are_those_of_the_usage() -> None:
    assert read(answer(chunk(frame(b"a") + USAGE + DONE)), asked=9).tokens == 4


def test_without_usage_an_answer_that_reached_its_limit_has_the_tokens_asked_for() -> None:
    limit = b'data: {"choices": [{"delta": {}, "finish_reason": "length"}]}\n\n'
    assert read(answer(chunk(frame(b"a")), chunk(limit)), asked=7).tokens == 7


def test_without_usage_and_limit_each_frame_is_a_token() -> None:
    assert read(answer(chunk(frame(b"a")), chunk(frame(b"b"))), asked=7).tokens == 2


@given(st.lists(st.integers(1, 400), max_size=8))
def test_how_the_bytes_are_cut_changes_no_count(cuts: list[int]) -> None:
    whole = (
        HEAD + b"".join(map(chunk, (ROLE, frame(b"a"), frame(b"b"), USAGE, DONE))) + b"0\r\n\r\n"
    )
    edges = sorted({0, *(cut for cut in cuts if cut < len(whole)), len(whole)})
    pieces = [whole[start:end] for start, end in pairwise(edges)]
    arrivals = tuple(Arrival(float(at), piece) for at, piece in enumerate(pieces))
    reading = read(Answer(0.0, arrivals), asked=4)
    assert (len(reading.texts), reading.tokens, reading.ended) == (2, 4, True)


def test_only_tokens_that_came_in_the_window_count() -> None:
    parts = (frame(b"a"), frame(b"b"), frame(b"c"), frame(b"d"), USAGE + DONE)
    result = figures([answer(*map(chunk, parts))], start=1.5, end=3.5, asked=4)
    assert result.tokens_per_second == pytest.approx(2 / 2.0)


def test_frames_of_several_tokens_share_the_usage() -> None:
    parts = (frame(b"ab"), frame(b"cd"), USAGE + DONE)
    result = figures([answer(*map(chunk, parts))], start=0.0, end=10.0, asked=4)
    assert result.tokens_per_second == pytest.approx(0.4, rel=0.01)


def test_the_wait_is_that_for_text_and_not_for_the_role() -> None:
    result = figures([answer(chunk(ROLE), chunk(frame(b"a")))], start=0.0, end=9.0, asked=1)
    assert result.ttft_p50 == 2.0


def test_frames_that_come_together_are_one_arrival() -> None:
    parts = (chunk(frame(b"a") + frame(b"b")), chunk(frame(b"c")))
    result = figures([answer(*parts, every=0.5)], start=0.0, end=9.0, asked=3)
    assert (result.gap_p50, result.gap_p99) == (0.5, 0.5)


def test_an_answer_that_ends_early_is_cut_off() -> None:
    short = answer(chunk(frame(b"a")), chunk(DONE))
    silent = answer(chunk(DONE))
    whole = answer(chunk(frame(b"a") + USAGE), chunk(DONE))
    assert figures([short, silent, whole], start=0.0, end=9.0, asked=4).cut_off == 2


def test_an_answer_that_never_says_done_is_cut_off() -> None:
    assert figures([answer(chunk(frame(b"a") + USAGE))], start=0.0, end=9.0, asked=4).cut_off == 1


def test_a_refusal_is_an_error_and_not_cut_off() -> None:
    refusal = Answer(0.0, (Arrival(0.1, b"HTTP/1.1 429 Too Many Requests\r\n\r\n{}"),))
    result = figures([refusal], start=0.0, end=9.0, asked=4)
    assert (result.errors, result.cut_off, result.tokens_per_second) == (1, 0, 0.0)


def test_an_answer_sent_before_the_window_is_not_judged() -> None:
    result = figures([answer(chunk(DONE), sent=-1.0)], start=0.0, end=9.0, asked=4)
    assert (result.answers, result.cut_off, result.ttft_p50) == (0, 0, None)


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([], 50, None), ([3.0], 99, 3.0), ([1.0, 2.0], 50, 1.0), ([3.0, 1.0, 2.0], 50, 2.0)],
)
def test_percentiles_are_nearest_ranks(
    values: list[float], percent: float, expected: float | None
) -> None:
    assert percentile(values, percent) == expected


def test_the_99th_of_a_hundred_leaves_one_above() -> None:
    assert percentile([float(value) for value in range(1, 101)], 99) == 99.0


@pytest.mark.parametrize("start", [0.5, 1.5, 4.0, 9.5])
def test_one_stream_s_speed_does_not_depend_on_where_its_window_begins(start: float) -> None:
    """The prompt takes some six seconds, four tokens one each: 0.4 tokens a second."""
    parts = (*map(frame, (b"a", b"b", b"c")), frame(b"d") + USAGE + DONE)
    answers = []
    for sent in (0.0, 10.0, 20.0, 30.0):
        arrivals = (
            Arrival(sent + 5.99, HEAD),
            *(Arrival(sent + 6.99 + n, p) for n, p in enumerate(parts)),
        )
        answers.append(Answer(sent, arrivals))
    window = whole_answers(answers, start, start + 15)
    assert window[0] == 10.0
    assert figures(answers, *window, asked=4).tokens_per_second == pytest.approx(0.4, rel=0.01)
    assert figures(answers, start, start + 15, asked=4).tokens_per_second != pytest.approx(
        0.4, rel=0.1
    )


def test_a_window_within_an_answer_stays_as_it_is() -> None:
    assert whole_answers([answer(chunk(frame(b"a")))], 0.5, 0.9) == (0.5, 0.9)
