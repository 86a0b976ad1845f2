"""The log: one line per event, coloured in a terminal, JSON elsewhere; the last ones are kept for
the console. Keys and prompts never get here. Nothing waits for who reads stdout and stderr.
"""

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from io import RawIOBase
from time import sleep, strftime, time
from typing import Any, Literal, Self, TextIO, TypeAlias, cast

import msgspec
import structlog
from structlog.typing import Processor

from config.settings import LogConfig

MOST_LINES = 2000  # kept, and
MOST_CHARACTERS = 4 << 20  # of all of them together
LONGEST = 2000  # characters of one text in a line
MOST_IN_FIELDS = 6000  # characters of all of a line's fields: readers of the log keep lines too
MOST_UNWRITTEN = 1 << 20  # characters that wait for the readers of stdout and stderr
REST = 0.02  # seconds until a file that takes nothing is tried again
AT_THE_END = 1.0  # seconds in which what waits may still be read

Level: TypeAlias = Literal["debug", "info", "warning", "error"]
LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error")
_NAMES: Mapping[str, Level] = {
    "debug": "debug",
    "info": "info",
    "warn": "warning",
    "warning": "warning",
}


log = structlog.get_logger()


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One log event. `time` is Unix time. Texts are unchanged, except that long ones are cut."""

    number: int
    time: float
    level: Level
    event: str
    fields: Mapping[str, str]

    def holds(self, text: str) -> bool:
        """Whether `text` stands in it; it is in lower case."""
        texts = (self.event, *self.fields.keys(), *self.fields.values())
        return any(text in one.lower() for one in texts)


class LogLines:
    """The last lines. Written from any thread; as a call it is a processor of structlog's."""

    def __init__(self, most: int = MOST_LINES, characters: int = MOST_CHARACTERS) -> None:
        self._most = most
        self._most_characters = characters
        self._lines: deque[tuple[LogLine, int]] = deque()  # each with how many characters it has
        self._characters = 0
        self.last = 0  # the number of the newest line; 0: there was none yet
        self._one_writes = threading.RLock()  # garbage that is collected meanwhile may log

    def __call__(
        self, _logger: Any, method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        fields = {
            name: value
            for name, value in event.items()
            if name not in ("event", "level", "timestamp")
        }
        self.add(_NAMES.get(method, "error"), str(event.get("event", "")), fields)
        return event

    def add(self, level: Level, event: str, fields: Mapping[str, Any]) -> None:
        """One more; the oldest go where there are too many."""
        event = _cut(event)
        shown, characters = _shown(fields)
        characters += len(event)
        with self._one_writes:
            self.last += 1
            line = LogLine(number=self.last, time=time(), level=level, event=event, fields=shown)
            self._lines.append((line, characters))
            self._characters += characters
            while len(self._lines) > self._most or self._characters > self._most_characters:
                self._characters -= self._lines.popleft()[1]

    def after(self, number: int) -> Sequence[LogLine]:
        """Those behind the line of that number, the oldest first."""
        if number >= self.last:
            return ()
        with self._one_writes:
            return tuple(line for line, _ in self._lines if line.number > number)

    def found(self, *, level: Level, text: str, after: int, limit: int) -> Sequence[LogLine]:
        """The last `limit` lines of at least that level that hold `text`, the oldest first."""
        levels, small = LEVELS[LEVELS.index(level) :], text.lower()
        lines = [one for one in self.after(after) if one.level in levels and one.holds(small)]
        return lines[-limit:] if limit else ()


def _shown(fields: Mapping[str, Any]) -> tuple[Mapping[str, str], int]:
    """As many of them as a line takes, and how many characters these have."""
    shown: dict[str, str] = {}
    characters = 0
    for name, value in fields.items():
        title, text = str(name)[:LONGEST], _cut(str(value))
        characters += len(title) + len(text)
        if characters > MOST_IN_FIELDS:
            return shown, characters - len(title) - len(text)
        shown[title] = text
    return shown, characters


def _cut(text: str) -> str:
    """Beginning and end of a long text: a traceback says at its end what happened."""
    half = LONGEST // 2 - 1
    return text if len(text) <= LONGEST else f"{text[:half]}…{text[-half:]}"


class OtherLogs(logging.Handler):
    """Libraries' log records are lines of ours."""

    def emit(self, record: logging.LogRecord) -> None:
        more = {"exc_info": record.exc_info} if record.exc_info else {}
        try:
            log.log(_level(record.levelno), record.getMessage(), logger=record.name, **more)
        except Exception:  # noqa: BLE001 - a record that can't be written must not break a library
            self.handleError(record)


def _level(number: int) -> int:
    """The next lower one of ours: libraries have levels of their own."""
    known = (logging.ERROR, logging.WARNING, logging.INFO)
    return next((level for level in known if number >= level), logging.DEBUG)


class _Stderr:
    """What `sys.stderr` is at the moment: a terminal's progress bars replace it, so that log lines
    are printed above them.
    """

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


class Printed:
    """Stands for stdout or stderr; what is printed goes to the writer."""

    def __init__(
        self, stream: TextIO, raw: RawIOBase, put: Callable[["Printed", str], None]
    ) -> None:
        """`raw`: the file of `stream`, without Python's buffer: whoever waits for its reader holds
        the buffer's lock, and the process could not end.
        """
        self._stream = stream
        self._raw = raw
        self._put = put

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._put(self, text)
        return len(text)

    def writelines(self, texts: Iterable[str]) -> None:
        self.write("".join(texts))

    def flush(self) -> None:
        """The writer does."""

    def write_out(self, text: str) -> bool:
        """Waits until all of it is taken; False: there is no reader any more."""
        left = text.encode(self._stream.encoding, "backslashreplace")
        try:
            while left:
                taken = self._raw.write(left)
                if taken is None:  # somebody has made the file one that doesn't wait
                    sleep(REST)
                left = left[taken or 0 :]
        except OSError:
            return False
        return True

    def lead_nowhere(self) -> None:
        """What is written from here on, by whatever means, is lost."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._raw.fileno())
        os.close(nowhere)


class Writer:
    """While it is entered, a thread of its own writes what is printed to stdout and stderr, in the
    order of printing. A terminal that is stopped (Ctrl-S) and a full pipe that nobody reads would
    otherwise hold up whoever prints, the event loop and the engines among them.

    Lines for which there is no room are left out; `left_out` is called with their number, on that
    thread, once the reader reads on.
    """

    def __init__(self, left_out: Callable[[int], None]) -> None:
        self._left_out = left_out
        # Reentrant: while it is held Python may collect garbage, of which some prints.
        self._changed = threading.Condition(threading.RLock())
        self._texts: deque[tuple[Printed, str]] = deque()
        self._characters = 0  # of these, and of those that are being written
        self._lines_left_out = 0
        self._ending = False
        self._thread = threading.Thread(target=self._write_all, name="writer", daemon=True)
        self._before = sys.stdout, sys.stderr

    def __enter__(self) -> Self:
        self._before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = map(self._instead_of, self._before)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        streams, (sys.stdout, sys.stderr) = (sys.stdout, sys.stderr), self._before
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self._thread.join(AT_THE_END)
        for stream in streams:
            if self._thread.is_alive() and isinstance(stream, Printed):
                stream.lead_nowhere()  # or the process's last words would wait in its stead

    def drain(self) -> None:
        """Wait until all is written, but not long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._characters, AT_THE_END)

    def _instead_of(self, stream: TextIO) -> TextIO:
        """`stream` itself where no file is behind it."""
        buffer = getattr(stream, "buffer", None)
        raw = getattr(buffer, "raw", buffer)
        if not isinstance(raw, RawIOBase):
            return stream
        stream.flush()
        return cast(TextIO, Printed(stream, raw, self._put))

    def _put(self, stream: Printed, text: str) -> None:
        """Have it written. From any thread."""
        if not self._thread.is_alive():  # it has ended, or this is a fork of the process
            stream.write_out(text)
            return
        with self._changed:
            if self._characters + len(text) > MOST_UNWRITTEN:
                self._lines_left_out += text.count("\n")
                return
            self._texts.append((stream, text))
            self._characters += len(text)
            self._changed.notify_all()

    def _write_all(self) -> None:
        while (printed := self._take()) is not None:
            stream, text = printed
            self._written(len(text), tell=stream.write_out(text))

    def _take(self) -> tuple[Printed, str] | None:
        """What is to be written next, as soon as there is something; None: it is the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._texts or self._ending)
            return self._texts.popleft() if self._texts else None

    def _written(self, characters: int, *, tell: bool) -> None:
        """`tell`: somebody has taken them, and may hear what was left out, where there is room."""
        with self._changed:
            self._characters -= characters
            tell = tell and self._characters < MOST_UNWRITTEN // 2
            lines = self._lines_left_out if tell else 0
            self._lines_left_out -= lines
            self._changed.notify_all()
        if lines:
            self._left_out(lines)


def configure(config: LogConfig, lines: LogLines) -> None:
    """Set structlog up for the process, and libraries' records with it: their warnings, and at
    debug what they say of themselves.
    """
    configure_structlog(config, lines)
    level = logging.INFO if config.level == "debug" else logging.WARNING
    logging.basicConfig(level=level, handlers=[OtherLogs()], force=True)
    logging.captureWarnings(capture=True)
    for name in ("httpx", "httpcore"):  # which would say where pictures and models come from
        logging.getLogger(name).setLevel(logging.WARNING)


class _Shortened:
    """For people: a request's line at a glance. What it leaves out is in JSON's, and at debug."""

    def __init__(self, render: Processor, *, whole: bool) -> None:
        self._render = render
        self._whole = whole

    def __call__(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> Any:
        if self._whole or event["event"] != "request":
            return self._render(logger, method, event)
        said, tokens = event.get, event.get("completion_tokens") or 0
        words = [strftime("%X"), str(said("status") or "left")]
        words.append(str(said("model") or f"{said('method')} {said('route')}"))
        if said("prompt_tokens") is not None:
            words.append(f"{said('prompt_tokens')} + {tokens} tokens")
        if said("ttft") is not None and tokens > 1 and event["seconds"] > event["ttft"]:
            words.append(f"{tokens / (event['seconds'] - event['ttft']):.1f} tokens/s")
        words.append(f"{event['seconds']:.1f} s")
        return "  ".join([*words, *([] if said("outcome") == "ok" else [str(said("outcome"))])])


def configure_structlog(config: LogConfig, lines: LogLines) -> None:
    """Our own lines."""
    human = config.format == "human" or (config.format == "auto" and sys.stderr.isatty())
    renderer: Processor = structlog.processors.JSONRenderer()
    if human:
        renderer = _Shortened(structlog.dev.ConsoleRenderer(), whole=config.level == "debug")
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            lines,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[config.level.upper()]
        ),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, _Stderr())),
        cache_logger_on_first_use=True,
    )
