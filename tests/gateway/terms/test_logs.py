"""The last lines of the log, kept within bounds, from whatever wrote them; and that nobody waits
for who reads stdout and stderr.
"""

import io
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any, Literal, TextIO

import structlog
from structlog.testing import capture_logs

from config.settings import LogConfig
from gateway.terms.logs import (
    LONGEST,
    MOST_UNWRITTEN,
    LogLines,
    OtherLogs,
    Writer,
    configure_structlog,
)
from tests.hang import HANG


def test_what_is_logged_is_kept_as_text() -> None:
    lines = LogLines()
    lines(None, "info", {"event": "model loaded", "level": "info", "model": "a", "seconds": 1.5})
    lines(None, "exception", {"event": "broke", "exception": "Traceback…"})
    first, second = lines.after(0)
    assert (first.level, first.event, first.fields) == (
        "info",
        "model loaded",
        {"model": "a", "seconds": "1.5"},
    )
    assert (second.level, second.fields) == ("error", {"exception": "Traceback…"})


def test_lines_letters_and_fields_have_bounds() -> None:
    lines = LogLines(most=3, characters=10_000)
    for number in range(5):
        lines.add("info", str(number), {})
    assert [line.event for line in lines.after(0)] == ["2", "3", "4"]
    lines.add("info", "x" * 10**6, {f"field {n}": "y" * 10**6 for n in range(100)})
    (line,) = lines.after(5)
    assert list(line.fields) == ["field 0", "field 1"]
    assert sum(map(len, (line.event, *line.fields, *line.fields.values()))) < 10_000
    lines.add("info", "another", {"field": "y" * 10**6, "other": "y" * 10**6})
    assert [line.event for line in lines.after(0)] == ["another"]  # together they were too many
    lines.add("info", f"begin{'x' * 10**6}end", {})
    (line,) = lines.after(7)
    assert len(line.event) < LONGEST
    assert line.event.startswith("begin")
    assert line.event.endswith("end")


def test_threads_write_without_losing_a_line() -> None:
    lines = LogLines()

    def write() -> None:
        for _ in range(200):
            lines.add("debug", "line", {})

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [line.number for line in lines.after(0)] == list(range(1, 801))


def test_what_libraries_log_is_kept_too() -> None:
    logger = logging.getLogger("some.library")
    logger.addHandler(handler := OtherLogs())
    with capture_logs() as lines:
        logger.warning("%s of %d", "one", 2)
        logger.log(35, "between")
        logger.info("not this")
        logger.error("broken", exc_info=ValueError())
    logger.removeHandler(handler)
    told = [(line["log_level"], line["event"], line["logger"]) for line in lines]
    assert told == [
        ("warning", "one of 2", "some.library"),
        ("warning", "between", "some.library"),
        ("error", "broken", "some.library"),
    ]
    assert lines[2]["exc_info"][0] is ValueError


@contextmanager
def full_pipe() -> Iterator[tuple[int, TextIO]]:
    """Where it is read, and stderr's stand-in."""
    reader, end = os.pipe()
    os.set_blocking(end, False)
    with os.fdopen(end, "w", encoding="utf-8") as stream, os.fdopen(reader, "rb"):
        fill(end)
        os.set_blocking(end, True)
        yield reader, stream


def fill(end: int) -> None:
    while True:
        try:
            os.write(end, b"\0")
        except BlockingIOError:
            return


def read_until(reader: int, ended: Callable[[str], bool]) -> str:
    """What comes, without what had filled the pipe."""
    text = b""
    while not ended(text.decode(errors="replace")):
        text += os.read(reader, 65_536).replace(b"\0", b"")
    return text.decode()


def test_who_prints_waits_for_no_reader_and_what_had_no_room_is_said() -> None:
    lines = [f"line {number} {'x' * 1000}" for number in range(MOST_UNWRITTEN // 500)]

    def tell(left_out: int) -> None:
        sys.stderr.write(f"left out: {left_out}\n")

    with full_pipe() as (reader, stream), redirect_stderr(stream), Writer(tell):
        for line in lines:
            sys.stderr.write(f"{line}\n")
        text = read_until(reader, lambda text: "left out: " in text and text.endswith("\n"))
        sys.stderr.write("and so on\n")
        assert read_until(reader, lambda text: text.endswith("\n")) == "and so on\n"
    *read, said = text.splitlines()
    assert read == lines[: len(read)]
    assert len(read) > len(lines) // 3
    assert said == f"left out: {len(lines) - len(read)}"


def test_nothing_that_nobody_reads_delays_the_end() -> None:
    with full_pipe() as (reader, stream), redirect_stderr(stream):
        with Writer(lambda _lines: None):
            sys.stderr.write("nobody reads this\n")
        sys.stderr.write("x" * 100_000)  # as Python prints a traceback at the very end
        sys.stderr.flush()
        assert read_until(reader, bool) == "nobody reads this\n"


def test_what_was_printed_is_read_when_it_ends_in_the_order_of_threads_and_streams() -> None:
    script = """
import os, sys, threading
from gateway.terms.logs import Writer
with Writer(lambda _lines: None) as writer:
    for number in range(1000):
        print("out", number)
        print("err", number, file=sys.stderr)
    writer.drain()
    if (child := os.fork()) == 0:
        print("child", file=sys.stderr)
        os._exit(0)
    os.waitpid(child, 0)
    print("\\udc80 end")
print("after")
raise SystemExit(threading.active_count() - 1)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=HANG,
        check=False,
    )
    lines = done.stdout.splitlines()
    told = [f"{stream} {number}" for number in range(1000) for stream in ("out", "err")]
    assert lines == [*told, "child", "\\udc80 end", "after"]
    assert done.returncode == 0


def test_a_reader_that_has_left_is_no_trouble() -> None:
    reader, end = os.pipe()
    os.close(reader)
    with os.fdopen(end, "w", encoding="utf-8") as stream, redirect_stderr(stream):
        with Writer(lambda _lines: None) as writer:
            for _ in range(2):
                sys.stderr.write("nobody reads this\n")
                writer.drain()


def test_a_stream_without_a_file_is_left_alone() -> None:
    with redirect_stderr(io.StringIO()) as stream, Writer(lambda _lines: None):
        sys.stderr.write("as ever\n")
        assert stream.getvalue() == "as ever\n"


def test_a_request_is_one_line_at_a_glance_in_a_terminal() -> None:
    fields = {
        "status": 200,
        "method": "POST",
        "route": "/v1/chat/completions",
        "outcome": "ok",
        "model": "smol",
        "prompt_tokens": 32,
        "completion_tokens": 9,
        "ttft": 1.0,
    }

    def written(level: Literal["info", "debug"], **more: Any) -> str:
        with redirect_stderr(io.StringIO()) as stderr:
            configure_structlog(LogConfig(format="human", level=level), LogLines())
            structlog.get_logger().info("request", request="id", **fields | more)
        return stderr.getvalue()

    before = structlog.get_config()  # other loggers keep its very list of processors
    try:
        assert re.fullmatch(
            r"[\d:]+  200  smol  32 \+ 9 tokens  9.0 tokens/s  2.0 s\n",
            written("info", seconds=2.0),
        )
        failed = written("info", seconds=0.1, status=404, outcome="model_not_found", ttft=None)
        assert failed.endswith("  404  smol  32 + 9 tokens  0.1 s  model_not_found\n")
        assert "request" in written("debug", seconds=2.0)
        assert "id" in written("debug", seconds=2.0)
    finally:
        structlog.configure(**before)
