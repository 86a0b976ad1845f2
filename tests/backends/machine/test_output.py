"""What a process prints, however it is cut and however much it is."""

import pytest
from structlog.testing import capture_logs

from backends.machine.output import LINES_A_SECOND, LINES_AT_ONCE, LONGEST_LINE, Output


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_lines_are_the_same_however_they_arrive(size: int) -> None:
    data = "one\ntwo\r\nthree ✓\n\n\x1b[31mfour\x1b[0m\nfive".encode()
    with capture_logs() as logs:
        output = Output("far")
        for start in range(0, len(data), size):
            output.feed(data[start : start + size])
        output.finish()
    assert [log["line"] for log in logs] == ["one", "two", "three ✓", "[31mfour [0m", "five"]
    assert output.last_words() == "one | two | three ✓ | [31mfour [0m | five"


@pytest.mark.parametrize("size", [100, 100_000])
def test_a_line_without_an_end_is_cut(size: int) -> None:
    with capture_logs() as logs:
        output = Output("far")
        for _ in range(1_000_000 // size):
            output.feed(b"a" * size)
        output.feed(b"\nnext\n")
    assert [len(log["line"]) for log in logs] == [LONGEST_LINE, 4]


def test_more_lines_than_a_log_takes_are_counted() -> None:
    clock = Time()
    with capture_logs() as logs:
        output = Output("far", clock=clock)
        output.feed(b"line\n" * 1000)
        clock.now = 1.0
        output.feed(b"later\n")
    lines = [log["line"] for log in logs if log["event"] == "output"]
    assert lines == ["line"] * LINES_AT_ONCE + ["later"]
    [dropped] = (log for log in logs if log["event"] == "output lines dropped")
    assert dropped["lines"] == 1000 - LINES_AT_ONCE
    assert LINES_A_SECOND >= 1


def test_secrets_are_not_repeated() -> None:
    with capture_logs() as logs:
        output = Output("far", hidden=("s3cret", ""))
        output.feed(b"listens with s3cret\n")
    assert [log["line"] for log in logs] == ["listens with …"]
    assert "s3cret" not in output.last_words()


def test_the_last_words_are_short() -> None:
    output = Output("far", logged=False)
    output.feed(b"".join(b"%d %s\n" % (k, b"w" * 500) for k in range(100)))
    assert len(output.last_words()) < 1000
    assert output.last_words().endswith("w")
