"""The last lines of the log, kept within bounds, from whatever wrote them."""

import logging
import threading

from gateway.logs import LONGEST, LogLines, OtherLogs


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
    lines = LogLines(most=3, letters=10_000)
    for number in range(5):
        lines.add("info", str(number), {})
    assert [line.event for line in lines.after(0)] == ["2", "3", "4"]
    lines.add("info", "x" * 10**6, {f"field {n}": "y" * 10**6 for n in range(100)})
    (line,) = lines.after(5)
    assert list(line.fields) == ["field 0", "field 1"]
    assert line.letters < 10_000
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
    lines = LogLines()
    logger = logging.getLogger("some.library")
    logger.addHandler(handler := OtherLogs(lines))
    logger.warning("%s of %d", "one", 2)
    logger.info("not this")
    logger.removeHandler(handler)
    (line,) = lines.after(0)
    assert (line.level, line.event, line.fields) == (
        "warning",
        "one of 2",
        {"logger": "some.library"},
    )
