"""The process of a command: started below a guardian, its output logged line by line, or read by
who started it; stopped with all that it started.

It knows nothing of models and servers.
"""

import asyncio
import socket
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import anyio
import msgspec
import structlog

from backends.contract.errors import process_end
from backends.machine import guardian
from backends.machine.output import Output

AT_THE_END = 2.0  # seconds in which what it printed last is still read
BEYOND = 10.0  # seconds that the guardian may take longer than it was told

log = structlog.get_logger(__name__)


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be run, and how. `hidden`: texts that are not to be seen in the log. One that
    `talks` has an input, and an output that is no log: its errors are.
    """

    name: str
    words: Sequence[str]
    environment: Mapping[str, str]
    folder: str | None = None
    stop_timeout: float = 10.0
    logged: bool = True
    hidden: tuple[str, ...] = ()
    talks: bool = False
    longest_line: int = 1 << 16  # bytes, of what it says then


class Process:
    """One that runs, or has ended. `start` makes it."""

    def __init__(
        self,
        command: Command,
        child: asyncio.subprocess.Process,
        control: asyncio.StreamWriter,
        talk: asyncio.StreamWriter | None,
    ) -> None:
        """`control`: to the guardian; `talk`: to the command, if it talks."""
        assert child.stdout is not None
        self.command = command
        self.talk = talk
        self.said = child.stdout
        self.status: int | None = None  # as `Popen.returncode`; None: it runs
        self.refusal = ""  # why it could not be started
        self.ended = asyncio.Event()
        self.guardian = child.pid  # the process below which all of the command's are
        self._child = child
        self._control = control
        self._output = Output(command.name, logged=command.logged, hidden=command.hidden)
        self._tasks: list[asyncio.Task[None]] = []
        self._on_end: Callable[[], None] = lambda: None
        self._stops = False
        self._withheld = False

    @classmethod
    async def start(cls, command: Command) -> Self:
        """Raises OSError where it can't be."""
        # What is half started could not be stopped.
        with anyio.CancelScope(shield=True), ExitStack() as ours, ExitStack() as theirs:
            reader, control, guarded = await _pair(ours, theirs)
            talk, given = None, -1
            if command.talks:
                _, talk, given = await _pair(ours, theirs)
            child = await _guarded(command, guarded, given)
            ours.pop_all()
        self = cls(command, child, control, talk)
        printed = self._output.read(child.stderr or self.said)
        self._tasks += asyncio.create_task(printed), asyncio.create_task(self._follow(reader))
        return self

    def on_end(self, tell: Callable[[], None]) -> None:
        """`tell` is called when it ends by itself; at once where it has."""
        self._on_end = tell
        if self.ended.is_set():
            tell()

    def end(self) -> str:
        """How it ended, with its last words."""
        last = self.last_words()
        lost = "was lost" if self.status is None else process_end(self.status, b"")
        how = f"it can't be started: {self.refusal}" if self.refusal else f"its process {lost}"
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
        """It and all that it started is gone when this returns, if its guardian wasn't killed."""
        self._stops = True
        if self.talk is not None:
            self.talk.close()
            self._tasks.append(asyncio.create_task(_drained(self.said)))
        with suppress(OSError):
            self._control.write_eof()
        try:
            async with asyncio.timeout(self.command.stop_timeout + BEYOND):
                await self._child.wait()
                await asyncio.wait(self._tasks)
        except TimeoutError:  # the guardian was stopped itself, or killed: its pipes have no end
            log.warning("a command could not be stopped", model=self.command.name)
            with suppress(ProcessLookupError):
                self._child.kill()
            await self.ended.wait()
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
        self._control.close()

    async def _follow(self, reader: asyncio.StreamReader) -> None:
        """What the guardian says, to its end."""
        with suppress(OSError):
            async for line in reader:
                word, _, rest = line.decode(errors="replace").strip().partition(" ")
                if word == "refused":
                    self.refusal = rest
                if word == "ended" and rest.removeprefix("-").isdigit():
                    self.status = int(rest)
        with suppress(TimeoutError):
            async with asyncio.timeout(AT_THE_END):
                await asyncio.shield(self._tasks[0])  # its last words
        self.ended.set()
        if not self._stops:
            self._on_end()


async def _pair(
    ours: ExitStack, theirs: ExitStack
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, int]:
    """Our end of a connection, and the descriptor of the other one."""
    here, there = socket.socketpair()
    theirs.enter_context(there)
    reader, writer = await asyncio.open_connection(sock=here)
    ours.callback(writer.close)
    return reader, writer, there.fileno()


async def _guarded(command: Command, control: int, given: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", str(Path(guardian.__file__))),
        *(str(command.stop_timeout), str(given), *command.words),
        stdin=control,
        stdout=PIPE,
        stderr=PIPE if command.talks else STDOUT,
        limit=command.longest_line,
        pass_fds=(given,) if command.talks else (),
        env=command.environment,
        cwd=command.folder,
        start_new_session=True,  # a terminal's Ctrl-C is the server's, which stops it in time
    )


async def _drained(stream: asyncio.StreamReader) -> None:
    """To its end: asyncio waits for the ends of pipes, too."""
    while await stream.read(1 << 16):
        pass
