"""What a process prints, line by line. Knows no process."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

import structlog

LONGEST_LINE = 1000  # characters of a line that is logged
READ_AT_ONCE = 1 << 16  # bytes
LINES_AT_ONCE, LINES_A_SECOND = 400, 50  # that are logged; of more it is said how many there were
KEPT = 12  # last lines
LAST_WORDS = 600  # characters of them in an error

log = structlog.get_logger(__name__)


class Output:
    """Lines of our log, and the last of them for errors. However much a process prints, it is read,
    so that the process never waits for us.
    """

    event = "output"  # what a line is called in the log

    def __init__(
        self,
        name: str,
        *,
        longest: int = LONGEST_LINE,
        logged: bool = True,
        hidden: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`name`: of its model, or whatever it serves; `longest`: characters of a line."""
        self.last: deque[str] = deque(maxlen=KEPT)
        self._name = name
        self._longest = longest
        self._logged = logged
        self._hidden = tuple(filter(None, hidden))
        self._clock = clock
        self._line = b""  # that has no end yet
        self._cut = False  # its beginning was taken already
        self._may = float(LINES_AT_ONCE)
        self._since = clock()
        self._left_out = 0

    async def read(self, stream: asyncio.StreamReader) -> None:
        """To its end."""
        while data := await stream.read(READ_AT_ONCE):
            self.feed(data)
        self.finish()

    def feed(self, data: bytes) -> None:
        """Some more of it."""
        # What a progress bar writes over counts as a line, too.
        *whole, rest = (self._line + data.replace(b"\r", b"\n")).split(b"\n")
        for line in whole:
            if not self._cut:
                self._take(line)
            self._cut = False
        if len(rest) > self._longest:
            if not self._cut:
                self._take(rest)
            rest, self._cut = b"", True
        self._line = b"" if self._cut else rest

    def finish(self) -> None:
        """There is no more."""
        if self._line and not self._cut:
            self._take(self._line)
        self._line = b""
        self._tell_left_out()

    def last_words(self) -> str:
        """The last lines as one, the end of it where it is long."""
        text = " | ".join(self.last)
        return text if len(text) <= LAST_WORDS else f"…{text[-LAST_WORDS:]}"

    def _take(self, line: bytes) -> None:
        if not (text := self._readable(line)):
            return
        self.last.append(text)
        if not self._logged:
            return
        now = self._clock()
        self._may = min(LINES_AT_ONCE, self._may + (now - self._since) * LINES_A_SECOND)
        self._since = now
        if self._may < 1:
            self._left_out += 1
            return
        self._may -= 1
        self._tell_left_out()
        log.info(self.event, model=self._name, line=text)

    def _tell_left_out(self) -> None:
        if self._left_out:
            log.warning("output lines dropped", model=self._name, lines=self._left_out)
            self._left_out = 0

    def _readable(self, line: bytes) -> str:
        """Printable letters alone: it may write codes of terminals."""
        text = line[: self._longest].decode(errors="replace").rstrip()
        text = "".join(letter if letter.isprintable() else " " for letter in text).strip()
        for secret in self._hidden:
            text = text.replace(secret, "…")
        return text
