"""The process of a command: started below a guardian, its output logged line by line, stopped with
all that it started.

It knows nothing of models and servers.
"""

import asyncio
import signal
import socket
import sys
import time
from asyncio.subprocess import PIPE, STDOUT
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec
import structlog

from backends.contract.errors import LoadFailed
from backends.machine import guardian

LONGEST_LINE = 1000  # characters of a line that is logged
READ_AT_ONCE = 1 << 16  # bytes
LINES_AT_ONCE, LINES_A_SECOND = 400, 50  # that are logged; of more it is said how many there were
KEPT = 12  # last lines
LAST_WORDS = 600  # characters of them in an error
AT_THE_END = 2.0  # seconds in which what it printed last is still read
BEYOND = 10.0  # seconds that the guardian may take longer than it was told

log = structlog.get_logger(__name__)


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be run, and how. `hidden`: texts that are not to be seen in the log."""

    name: str
    words: Sequence[str]
    environment: Mapping[str, str]
    folder: str | None = None
    stop_timeout: float = 10.0
    logged: bool = True
    hidden: tuple[str, ...] = ()


class Process:
    """One that runs, or has ended. `start` makes it."""

    def __init__(
        self, command: Command, child: asyncio.subprocess.Process, control: asyncio.StreamWriter
    ) -> None:
        """`control`: to the guardian."""
        self.command = command
        self._writer = control
        self.status: int | None = None  # as `Popen.returncode`; None: it runs
        self.ended = asyncio.Event()
        self._child = child
        self._output = Output(command.name, logged=command.logged, hidden=command.hidden)
        self._tasks: list[asyncio.Task[None]] = []
        self._on_end: Callable[[], None] = lambda: None
        self._stops = False
        self._withheld = False

    @classmethod
    async def start(cls, command: Command) -> Self:
        """Raises LoadFailed where it can't be."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                child = await _guarded(command, theirs)
        except BaseException:
            ours.close()
            raise
        reader, writer = await asyncio.open_connection(sock=ours)
        self = cls(command, child, writer)
        assert child.stdout is not None
        self._tasks.append(asyncio.create_task(self._output.read(child.stdout)))
        self._tasks.append(asyncio.create_task(self._follow(reader)))
        return self

    @property
    def guardian(self) -> int:
        """The process below which all of the command's are."""
        return self._child.pid

    def on_end(self, tell: Callable[[], None]) -> None:
        """`tell` is called when it ends by itself; at once where it has."""
        self._on_end = tell
        if self.ended.is_set():
            tell()

    def end(self) -> str:
        """How it ended, with its last words."""
        last = self.last_words()
        how = self._output.refusal or _ending(self.status)
        return f"{how}: {last}" if last else how

    def last_words(self) -> str:
        """What it printed last, in one line; "" where that was nothing, or is withheld."""
        return "" if self._withheld else self._output.last_words()

    def serves(self) -> None:
        """It works for clients from now on: where its output isn't logged, because it repeats what
        they sent, errors don't repeat it either.
        """
        self._withheld = not self.command.logged

    async def stop(self) -> None:
        """It and all that it started is gone when this returns."""
        self._stops = True
        with suppress(OSError):
            self._writer.write_eof()
        try:
            async with asyncio.timeout(self.command.stop_timeout + BEYOND):
                await self._child.wait()
        except TimeoutError:  # the guardian was stopped itself
            log.warning("a command could not be stopped", model=self.command.name)
            with suppress(ProcessLookupError):
                self._child.kill()
            await self._child.wait()
        await asyncio.wait(self._tasks)
        self._writer.close()

    async def _follow(self, reader: asyncio.StreamReader) -> None:
        """What the guardian says, to its end."""
        with suppress(OSError):
            async for line in reader:
                word, _, rest = line.decode(errors="replace").strip().partition(" ")
                if word == "refused":
                    self._output.refusal = f"it can't be started: {rest}"
                if word == "ended" and rest.removeprefix("-").isdigit():
                    self.status = int(rest)
        with suppress(TimeoutError):
            async with asyncio.timeout(AT_THE_END):
                await asyncio.shield(self._tasks[0])  # its last words
        self.ended.set()
        if not self._stops:
            self._on_end()


async def _guarded(command: Command, control: socket.socket) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", str(Path(guardian.__file__))),
            *(str(command.stop_timeout), "-1", *command.words),
            stdin=control.fileno(),
            stdout=PIPE,
            stderr=STDOUT,
            env=command.environment,
            cwd=command.folder,
            start_new_session=True,  # a terminal's Ctrl-C is the server's, which stops it in time
        )
    except OSError as error:
        where = f" in {command.folder}" if command.folder else ""
        raise LoadFailed(f"its command can't be started{where}: {error.strerror}") from error


def _ending(status: int | None) -> str:
    if status is None:
        return "its process was lost"
    if status >= 0:
        return f"its process exited with status {status}"
    try:
        return f"its process was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"its process was ended by signal {-status}"


class Output:
    """What a command prints: lines of our log, and the last of them for errors. However much it is,
    it is read, so that the command never waits for us.
    """

    def __init__(
        self,
        name: str,
        *,
        logged: bool = True,
        hidden: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.refusal = ""  # why it could not be started
        self._name = name
        self._logged = logged
        self._hidden = tuple(filter(None, hidden))
        self._clock = clock
        self._kept: deque[str] = deque(maxlen=KEPT)
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
        if len(rest) > LONGEST_LINE:
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
        text = " | ".join(self._kept)
        return text if len(text) <= LAST_WORDS else f"…{text[-LAST_WORDS:]}"

    def _take(self, line: bytes) -> None:
        if not (text := self._readable(line)):
            return
        self._kept.append(text)
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
        log.info("output", model=self._name, line=text)

    def _tell_left_out(self) -> None:
        if self._left_out:
            log.warning("output lines dropped", model=self._name, lines=self._left_out)
            self._left_out = 0

    def _readable(self, line: bytes) -> str:
        """Printable letters alone: a command may write codes of terminals."""
        text = line[:LONGEST_LINE].decode(errors="replace").rstrip()
        text = "".join(letter if letter.isprintable() else " " for letter in text).strip()
        for secret in self._hidden:
            text = text.replace(secret, "…")
        return text
