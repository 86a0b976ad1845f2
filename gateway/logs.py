"""The log: one line per event, coloured in a terminal, JSON elsewhere; the last ones are kept for
the console. Keys and prompts never get here.
"""

import logging
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from time import time
from typing import Any, Literal, TextIO, TypeAlias, cast

import msgspec
import structlog

from config.settings import LogConfig

MOST_LINES = 2000  # kept, and
MOST_LETTERS = 4 << 20  # of all of them together
LONGEST = 2000  # letters of one text in a line
MOST_IN_FIELDS = 6000  # letters of all of a line's fields: readers of the log keep lines too

Level: TypeAlias = Literal["debug", "info", "warning", "error"]
LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error")
_NAMES: Mapping[str, Level] = {
    "debug": "debug",
    "info": "info",
    "warn": "warning",
    "warning": "warning",
}


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the log. `time` is Unix time; all texts are as they came, but for their
    length.
    """

    number: int
    time: float
    level: Level
    event: str
    fields: Mapping[str, str]

    @property
    def letters(self) -> int:
        return len(self.event) + sum(len(name) + len(text) for name, text in self.fields.items())

    def holds(self, text: str) -> bool:
        """Whether `text` stands in it; it is in small letters."""
        texts = (self.event, *self.fields.keys(), *self.fields.values())
        return any(text in one.lower() for one in texts)


class LogLines:
    """The last lines. Written from any thread; as a call it is a processor of structlog's."""

    def __init__(self, most: int = MOST_LINES, letters: int = MOST_LETTERS) -> None:
        self._most = most
        self._most_letters = letters
        self._lines: deque[LogLine] = deque()
        self._letters = 0
        self._last = 0
        self._one_writes = threading.Lock()

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
        shown = dict(_shown(fields))
        with self._one_writes:
            self._last += 1
            line = LogLine(
                number=self._last, time=time(), level=level, event=_cut(event), fields=shown
            )
            self._lines.append(line)
            self._letters += line.letters
            while len(self._lines) > self._most or self._letters > self._most_letters:
                self._letters -= self._lines.popleft().letters

    @property
    def last(self) -> int:
        """The number of the newest line; 0: there was none yet."""
        return self._last

    def after(self, number: int) -> Sequence[LogLine]:
        """Those behind the line of that number, the oldest first."""
        if number >= self._last:
            return ()
        with self._one_writes:
            return tuple(line for line in self._lines if line.number > number)

    def found(self, *, level: Level, text: str, after: int, limit: int) -> Sequence[LogLine]:
        """The last `limit` lines of at least that level that hold `text`, the oldest first."""
        levels, small = LEVELS[LEVELS.index(level) :], text.lower()
        lines = [one for one in self.after(after) if one.level in levels and one.holds(small)]
        return lines[-limit:] if limit else ()


def _shown(fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """As many of them as a line takes."""
    left = MOST_IN_FIELDS
    for name, value in fields.items():
        one = str(name)[:LONGEST], _cut(str(value))
        left -= len(one[0]) + len(one[1])
        if left < 0:
            return
        yield one


def _cut(text: str) -> str:
    """Beginning and end of a long text: a traceback says at its end what happened."""
    half = LONGEST // 2 - 1
    return text if len(text) <= LONGEST else f"{text[:half]}…{text[-half:]}"


class OtherLogs(logging.Handler):
    """Libraries' log records go there, too."""

    def __init__(self, lines: LogLines) -> None:
        super().__init__(logging.WARNING)
        self._lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        level: Level = "error" if record.levelno >= logging.ERROR else "warning"
        self._lines.add(level, record.getMessage(), {"logger": record.name})


class _Stderr:
    """What `sys.stderr` is at the moment: a terminal's progress bars replace it, so that log lines
    are printed above them.
    """

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def configure(config: LogConfig, lines: LogLines) -> None:
    """Set structlog up for the process; uvicorn's own messages below warnings are left out."""
    human = config.format == "human" or (config.format == "auto" and sys.stderr.isatty())
    renderer = structlog.dev.ConsoleRenderer() if human else structlog.processors.JSONRenderer()
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
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger().addHandler(OtherLogs(lines))
