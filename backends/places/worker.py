"""The gateway's end of a worker: starts it, speaks to it, sees its end, makes a container of it.

All of it runs on the event loop: what comes from a worker is decoded and handed on where it is
read, without a task or a thread between the socket and whoever awaits a token.

How a worker's end is seen: its socket closes with the process, and the launcher reports how it
ended. A process that stands still closes nothing, so each has a heartbeat; it is killed where it
answers none for three seconds and does nothing meanwhile either.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeAlias, TypeVar, cast

import anyio
import msgspec
import structlog

from backends.contract.catalog import Backend, ModelFiles
from backends.contract.errors import LoadFailed, OutOfMemory, process_end
from backends.contract.framing import (
    REPORT,
    RUNS,
    Fit,
    Fitted,
    Frames,
    Loaded,
    Loading,
    LoadModel,
    Ping,
    Pong,
    Received,
    Recognise,
    Recognised,
    Refused,
    Shelf,
    WorkerCommand,
    WorkerEvent,
)
from backends.contract.messages import Close, Closed, Command, Event, KeptAsked, Lost
from backends.contract.protocol import ModelInfo, Report
from backends.machine.futures import settle
from backends.machine.output import Output
from backends.places.container import PortContainer
from backends.places.encoder_container import PortEncoder, over
from config.engines import EngineOptions

log = structlog.get_logger(__name__)

Answer = TypeVar("Answer", Loaded, Recognised, Fitted)

BEAT = 0.9  # seconds between heartbeats
BEATS = 3  # that stay unanswered; with the time before the first, less than four seconds
LONGEST_BUSY = 60.0  # seconds for one that answers no heartbeat, but computes or reads
GOODBYE = 10.0  # seconds from `Close`, or what came last to be kept, to the end of the process
DYING = 1.0  # seconds from the end of its socket to its own
# numpy's library of matrices begins a thread for each core when it is imported, so that the process
# could not be forked; no engine computes with it.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
LONGEST_LINE = 2_000  # characters of one that it prints
LEVELS = ("debug", "info", "warning", "error", "critical")  # of a log's line


class LastWords(Output, asyncio.Protocol):
    """What a worker prints: records of its log are records of ours, all else are lines."""

    event = "printed by a worker"

    def __init__(self, model: str) -> None:
        super().__init__(model, longest=LONGEST_LINE)
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.finish()
        settle(self.closed, None)

    def _take(self, line: bytes) -> None:
        try:
            record = msgspec.json.decode(line, type=dict[str, object])
        except (msgspec.DecodeError, UnicodeDecodeError):
            record = {}
        if "event" not in record or record.get("level") not in LEVELS:
            super()._take(line)
            return
        tell = getattr(log, str(record.pop("level")))
        tell(str(record.pop("event")), **{"model": self._name, **record})


Begun: TypeAlias = "tuple[int, asyncio.Future[int | None]]"  # a process, and its status: `ended`


class Child(msgspec.Struct, frozen=True):
    """A worker that has begun. `ended`: its status, as `subprocess` counts; None: not known."""

    pid: int
    connection: socket.socket
    errors: int  # the reading end of its stderr
    ended: "asyncio.Future[int | None]"

    def kill(self) -> None:
        """Nothing where it has ended."""
        if not self.ended.done():
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class LauncherProcess:
    """One engine's launcher (`backends.engines.worker`). Create it on the event loop, on whose
    thread it depends: the kernel ends it with that.
    """

    def __init__(self, backend: Backend) -> None:
        self._name = backend.name
        self._loop = asyncio.get_running_loop()
        self._control, theirs = socket.socketpair()
        kind = backend.options
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - this program
                (
                    *(sys.executable, "-m", "backends.engines.worker", str(theirs.fileno())),
                    *(str(os.getpid()), backend.name, backend.folder),
                    *(kind.__module__, kind.__qualname__),
                ),
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,  # a terminal's Ctrl-C is not for it
                env={**ONE_THREAD, **os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
        self._control.settimeout(0)
        self._rest = b""
        self._begun: deque[asyncio.Future[Begun]] = deque()  # in the order they were asked for
        self._ended: dict[int, asyncio.Future[int | None]] = {}
        self.open = True
        self._loop.add_reader(self._control, self._read)

    async def launch(self) -> Child:
        """A worker that waits for its first command. Raises LoadFailed."""
        ours, theirs = socket.socketpair()
        errors, written = os.pipe()
        begun: asyncio.Future[Begun] = self._loop.create_future()
        try:
            with theirs:
                self._ask(theirs.fileno(), written)
            self._begun.append(begun)  # only what was asked for is answered
            pid, ended = await begun
        except BaseException:  # a worker without a connection ends
            ours.close()
            os.close(errors)
            raise
        finally:
            os.close(written)
        return Child(pid, ours, errors, ended)

    def _ask(self, connection: int, errors: int) -> None:
        """For a worker with these. Raises LoadFailed where the launcher has ended meanwhile."""
        try:
            socket.send_fds(self._control, [b"L"], [connection, errors])
        except OSError as error:
            raise LoadFailed(f"the launcher of {self._name} can't be asked: {error}") from error

    def close(self) -> None:
        """End it, and with it the workers that are left."""
        if not self.open:
            return
        self.open = False
        self._loop.remove_reader(self._control)
        self._control.close()
        self._process.kill()
        self._process.wait()
        gone = LoadFailed(f"the launcher of {self._name} ended")
        for begun in self._begun:
            settle(begun, gone)
        for ended in self._ended.values():
            settle(ended, None)

    def _read(self) -> None:
        try:
            data = self._control.recv(65_536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            log.warning("the launcher of workers ended", engine=self._name)
            self.close()
            return
        self._rest += data
        whole = len(self._rest) // REPORT.size * REPORT.size
        reports, self._rest = self._rest[:whole], self._rest[whole:]
        for pid, status in REPORT.iter_unpack(reports):
            self._note(pid, status)

    def _note(self, pid: int, status: int) -> None:
        if status == RUNS:
            ended = self._ended[pid] = self._loop.create_future()
            settle(self._begun.popleft(), (pid, ended))
        else:
            self._ended.pop(pid).set_result(status)


class FramedPort(asyncio.Protocol, ABC):
    """A `Port` whose other end is a process that reads and writes frames. What that process is, and
    how its end is seen, a subclass knows.
    """

    def __init__(self, model: str, report: Report, *, peer: int | None = None) -> None:
        """`peer`: the other end, a process of this machine; None: it is on another one."""
        self._model = model
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._is_far = peer is None
        self._shelf = Shelf(shared=not self._is_far)
        self._frames = Frames(WorkerEvent, lambda: self._write(Received()), peer=peer)
        self._receive: Callable[[Event], None] | None = None
        self._early: list[Event] = []  # that came before anyone was there to receive them
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Loaded | Recognised | Fitted] = self._loop.create_future()
        self._closing = False
        self._goodbye: asyncio.TimerHandle | None = None
        self._unanswered = 0  # heartbeats
        self._progress: object = None  # what the other end had done at the last of these
        self._paused = False
        self._why: str | None = None  # it was ended from here
        self._timer: asyncio.TimerHandle | None = None
        self.buried = anyio.Event()  # the other end is gone, and that is told

    @abstractmethod
    async def end(self) -> None:
        """Have the other end ended. When this returns its memory is free, as far as is known."""

    @abstractmethod
    def _abort(self) -> None:
        """End the other end at once, or the connection to it."""

    @abstractmethod
    def _progress_there(self) -> object:
        """What differs while the other end does something; None where it isn't known."""

    @abstractmethod
    async def _loss(self) -> LoadFailed | None:
        """Why the other end was lost, once it is gone; None where that is known already."""

    @property
    def info(self) -> ModelInfo:
        loaded = self._answer.result()
        assert isinstance(loaded, Loaded), "a model was asked for"
        return loaded.info

    def connect(self, receive: Callable[[Event], None]) -> None:
        """See `Port.connect`."""
        self._receive = receive
        early, self._early = self._early, []
        for event in early:
            receive(event)

    def send(self, command: Command) -> None:
        """See `Port.send`."""
        if isinstance(command, Close):
            self._closing = True
            self._part()
        self._write(command)

    def _part(self) -> None:
        """The other end is to close; its conversations may take a while to come."""
        if self._goodbye is not None:
            self._goodbye.cancel()
        if self._transport is None:  # it is gone already
            return
        self._goodbye = self._loop.call_later(GOODBYE, self._kill, "did not close")

    async def load(self, files: ModelFiles, options: EngineOptions) -> Loaded:
        """Have the other end load a model. Raises LoadFailed, OutOfMemory."""
        there = msgspec.structs.replace(options, host="worker")
        encoded = msgspec.Raw(msgspec.msgpack.encode(there))
        return await self.ask(LoadModel(files, encoded), Loaded)

    async def ask(self, command: LoadModel | Recognise | Fit, kind: type[Answer]) -> Answer:
        """The one thing that a connection is for. Raises LoadFailed, OutOfMemory."""
        self._write(command)
        answer = await asyncio.shield(self._answer)
        if not isinstance(answer, kind):
            raise LoadFailed("the other end answered what it was not asked")
        return answer

    def pause(self) -> None:
        """Nothing that comes can be handed on: leave it where it is."""
        if self._transport is not None and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._paused:
            self._paused, self._unanswered = False, 0
            if self._transport is not None:
                self._transport.resume_reading()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's is one, and doesn't say so
        self._transport = cast(asyncio.Transport, transport)
        self._beat()

    def data_received(self, data: bytes) -> None:
        self._unanswered = 0
        try:
            for event in self._frames.feed(data):
                self._hand_on(event)
        except Exception as error:  # noqa: BLE001 - whatever it sent, no other end is hurt by it
            self._kill(f"sent what can't be read ({error})")

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._timer, self._goodbye):  # either would keep all of the model until then
            if timer is not None:
                timer.cancel()
        self._transport = None
        self._shelf.clear()
        self._burial = self._loop.create_task(self._bury())

    def _kill(self, why: str) -> None:
        """End the other end, if it has not ended for another reason."""
        self._why = self._why or why
        self._abort()

    async def _bury(self) -> None:
        """The connection ended: tell that once the other end is gone."""
        loss = await self._loss()
        if self._closing:
            self._tell(Closed())
        elif loss is not None:
            settle(self._answer, loss)
            self._tell(Lost(str(loss), self._is_far))
        # The container and its tokenizer, which have this port and are had by it, would stay until
        # a full collection of garbage, which is rare.
        self._receive = None
        self._frames.close()
        self.buried.set()

    def _write(self, command: WorkerCommand) -> None:
        if self._transport is not None:  # else its end is about to be told
            self._transport.write(self._shelf.frame(command))

    def _tell(self, event: Event) -> None:
        if self._receive is None:
            self._early.append(event)
        else:
            self._receive(event)

    def _hand_on(self, event: WorkerEvent) -> None:
        match event:
            case Pong() | Closed():
                pass  # the end is told when the other end is gone, and its memory free
            case Received():
                self._shelf.received()
            case Loading(progress):
                self._report(progress)
            case Loaded() | Recognised() | Fitted():
                settle(self._answer, event)
            case Refused(failure):
                settle(self._answer, failure.error())
            case _:
                if self._goodbye is not None and isinstance(event, KeptAsked):
                    self._part()
                self._tell(event)

    def _beat(self) -> None:
        """One heartbeat. Counted and not timed, so that a gateway that stood still itself kills
        nothing.
        """
        self._timer = self._loop.call_later(BEAT, self._beat)
        if self._paused:  # its answers are not read
            return
        self._unanswered += 1
        before, self._progress = self._progress, self._progress_there()
        still = self._progress is None or self._progress == before
        if self._unanswered > BEATS and (still or self._unanswered > LONGEST_BUSY / BEAT):
            self._timer.cancel()
            self._kill(f"did not answer for {(self._unanswered - 1) * BEAT:.0f} s and was ended")
            return
        self._write(Ping())


@asynccontextmanager
async def ended_unless_whole(port: FramedPort) -> AsyncIterator[None]:
    """Where the context fails or is cancelled, nothing is left of the other end."""
    try:
        yield
    except BaseException:
        with anyio.CancelScope(shield=True):
            await port.end()
        raise


class WorkerPort(FramedPort):
    """A `Port` whose other end is a worker's `EnginePort`."""

    def __init__(self, child: Child, words: LastWords, model: str, report: Report) -> None:
        super().__init__(model, report, peer=child.pid)
        self.pid = child.pid
        self._child = child
        self._words = words
        self._connected = False
        child.ended.add_done_callback(lambda _: self._hang_up())

    async def end(self) -> None:
        """Kill it. When this returns its memory is free."""
        self._closing = True
        self._child.kill()
        if self._connected:
            await self.buried.wait()
        else:
            self._child.connection.close()
            await asyncio.shield(self._child.ended)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connected = True
        super().connection_made(transport)

    def _abort(self) -> None:
        self._child.kill()

    def _progress_there(self) -> object:
        return progress_of(self._child.pid)

    def _hang_up(self) -> None:
        """The process is gone; a child of its own may hold its socket open."""
        if self._transport is not None:
            self._transport.abort()

    async def _loss(self) -> LoadFailed:
        status = await self._status()
        with suppress(TimeoutError):
            async with asyncio.timeout(DYING):
                await asyncio.shield(self._words.closed)
        killed = self._why is None and status == -signal.SIGKILL
        kind = OutOfMemory if killed else LoadFailed
        return kind(f"the worker of {self._model} {self._end(status)}")

    async def _status(self) -> int | None:
        try:
            async with asyncio.timeout(DYING):
                return await asyncio.shield(self._child.ended)
        except TimeoutError:
            self._kill("closed its connection and went on")
            return await asyncio.shield(self._child.ended)

    def _end(self, status: int | None) -> str:
        if self._why is not None:
            return self._why
        if status is None:
            return "ended with its launcher"
        if status == -signal.SIGKILL:
            return f"{process_end(status, b'')}, as the system does where memory runs out"
        return process_end(status, "\n".join(self._words.last).encode())


def progress_of(pid: int) -> object:
    """What differs while a process computes or reads; None where it is stopped, or isn't known."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # gone, or not Linux
        return None
    state, major_faults, user, system = fields[0], fields[9], fields[11], fields[12]
    if state in "Tt":
        return None
    return object() if state == "D" else (major_faults, user, system)  # D: it waits for a disk


class Workers:
    """All workers of one gateway, and their launchers: one for each engine, from its first load
    on.
    """

    def __init__(self) -> None:
        self._launchers: dict[str, LauncherProcess] = {}

    async def load(
        self, backend: Backend, files: ModelFiles, options: EngineOptions, report: Report
    ) -> PortContainer | PortEncoder:
        """The model, loaded in a worker of its own. Raises LoadFailed; leaves nothing behind then,
        or when it is cancelled.
        """
        port = await self.start(backend, files, options, report)
        async with ended_unless_whole(port):
            made = await asyncio.to_thread(lambda: backend.container.tokenizer(port.info))
        return over(port, made)

    async def start(
        self, backend: Backend, files: ModelFiles, options: EngineOptions, report: Report
    ) -> WorkerPort:
        """As `load`: what there is without a tokenizer in this process."""
        child = await self._launcher(backend).launch()
        model, loop = files.path.name, asyncio.get_running_loop()
        words = LastWords(model)
        port = WorkerPort(child, words, model, report)
        pipe = os.fdopen(child.errors, "rb", buffering=0)
        async with ended_unless_whole(port):
            await loop.connect_read_pipe(lambda: words, pipe)
            with anyio.CancelScope(shield=True):  # uvloop tells no end of one cancelled halfway
                await loop.create_unix_connection(lambda: port, sock=child.connection)
            await port.load(files, options)
        return port

    def close(self) -> None:
        """End all of them."""
        for launcher in self._launchers.values():
            launcher.close()
        self._launchers.clear()

    def _launcher(self, backend: Backend) -> LauncherProcess:
        launcher = self._launchers.get(backend.name)
        if launcher is None or not launcher.open:
            launcher = self._launchers[backend.name] = LauncherProcess(backend)
        return launcher
