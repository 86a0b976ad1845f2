"""The process that an engine runs in, away from the gateway's: a worker, and the launcher that
forks it.

    gateway ──start──▶ launcher: imports the engine's library, and waits
            ──launch─▶ launcher ──fork──▶ worker: loads one model, serves its messages, ends

A worker is forked and not started anew because importing an engine takes as long as most loads:
0.3 s for llama.cpp, several seconds for torch. A fork takes over memory but no threads, and no
device that was opened, so a launcher opens none and makes none: it imports, and no more. Where an
import does either (`is_forkable`), the launcher begins again without it and each worker imports for
itself.

A worker ends when its socket does, whatever else it is doing, and with its launcher, which ends
with the gateway (prctl(2), PR_SET_PDEATHSIG): nothing is left of a gateway that was killed. The
signals that a terminal or a service manager sends to all processes are the gateway's to follow.
"""

import asyncio
import gc
import os
import select
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import structlog

from backends.contract.catalog import CPU, Backend
from backends.contract.errors import BackendError, BackendMissing
from backends.contract.framing import (
    REPORT,
    RUNS,
    Fit,
    Frames,
    Loaded,
    Loading,
    LoadModel,
    Ping,
    Pong,
    Received,
    Recognise,
    Refused,
    Shelf,
    WorkerCommand,
    WorkerEvent,
)
from backends.contract.messages import Closed, Event, Failure, Port
from backends.contract.protocol import Progress
from backends.engines.driver import DrivenContainer
from backends.engines.encoder_driver import DrivenEncoder
from backends.engines.engine_thread import ThreadPort
from backends.engines.tokenizing import EVERY_BYTE, try_vocabulary
from backends.machine.devices import memory
from backends.machine.process_settings import prepare_process
from backends.machine.processes import end_with, proportional

log = structlog.get_logger(__name__)

CHUNK = 256 * 1024  # bytes that are read at once
PATIENCE = 60.0  # seconds in which the gateway reads on, or is gone
LEFT_TO_THE_GATEWAY = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Worker:
    """One engine behind one connection."""

    def __init__(self, connection: socket.socket, backend: Backend, gateway: int) -> None:
        """`gateway`: its process, or the listener's."""
        self._connection = connection
        self._backend = backend
        self._shelf = Shelf(shared=True)
        self._frames = Frames(WorkerCommand, lambda: self.send(Received()), peer=gateway)
        self._sending = threading.Lock()
        self._port: Port | None = None
        self._load: asyncio.Task[None] | None = None
        self._ended: asyncio.Future[None]

    async def run(self) -> None:
        """Until the model is closed. Where the connection ends first the process does, too."""
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        self._connection.settimeout(0)
        loop.add_reader(self._connection, self._read)
        await self._ended

    def send(self, event: WorkerEvent) -> None:
        """On any thread, at once: the engine's needn't wake the event loop for each step.

        Waits while the gateway doesn't read.
        """
        with self._sending:
            left = memoryview(self._shelf.frame(event))
            while left:
                try:
                    left = left[self._connection.send(left) :]
                except BlockingIOError:
                    if not select.select((), (self._connection,), (), PATIENCE)[1]:
                        end("the gateway doesn't read")
                except OSError:
                    end("the gateway is gone")

    def _read(self) -> None:
        try:
            data = self._connection.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            end("the gateway is gone")
        for command in self._frames.feed(data):
            self._obey(command)

    def _obey(self, command: WorkerCommand) -> None:
        match command:
            case Ping():
                self.send(Pong())
            case Received():
                self._shelf.received()
            case Recognise() | Fit():
                end("it was asked what a listener is asked")
            case LoadModel():
                assert self._load is None, "a worker loads one model"
                self._load = asyncio.get_running_loop().create_task(self._bring(command))
            case _:
                assert self._port is not None, "the model is there before it is used"
                self._port.send(command)

    async def _bring(self, command: LoadModel) -> None:
        try:
            container = await self._loaded(command)
        except BackendError as error:
            self.send(Refused(Failure.of(error)))
            return
        except Exception as error:
            log.exception("load failed unexpectedly", model=command.files.path.name)
            self.send(Refused(Failure("LoadFailed", f"{type(error).__name__}: {error}")))
            return
        port = container.port
        assert isinstance(port, ThreadPort), "an engine's"
        port.connect(self._tell, directly=True)
        self._port = port
        self.send(Loaded(msgspec.structs.replace(container.info, held=held())))

    async def _loaded(self, command: LoadModel) -> DrivenContainer | DrivenEncoder:
        options = msgspec.msgpack.decode(command.options, type=self._backend.options)
        try:
            module = await asyncio.to_thread(lambda: self._backend.container)
        except ImportError as error:
            text = f"{self._backend.name} can't be used here: {error}"
            raise BackendMissing(text) from error
        if command.files.task != "generate":
            encoder = await module.load_encoder(command.files, options, self._report)
            assert isinstance(encoder, DrivenEncoder), "an engine's, with two ends"
            await asyncio.to_thread(encoder.tokenize, EVERY_BYTE, special=True)
            return encoder
        container = await module.load(command.files, options, self._report)
        assert isinstance(container, DrivenContainer), "an engine's, with two ends"
        # The gateway's process will read the same vocabulary. What native code makes of a broken
        # one shows here, where it may die.
        await asyncio.to_thread(try_vocabulary, container)
        return container

    def _report(self, progress: Progress) -> None:
        self.send(Loading(progress))

    def _tell(self, event: Event) -> None:
        self.send(event)
        if isinstance(event, Closed):
            self._ended.set_result(None)


def held() -> dict[str, int]:
    """Bytes that this process has, per device: its own part of main memory (what it shares with
    its launcher counts by halves), and what a card's driver reports of it.
    """
    cards = {name: card.own for name, card in memory().items() if card.own is not None}
    size = proportional("self")
    return cards if size is None else {CPU: size, **cards}


def end(why: str) -> None:
    """At once: there is nobody to tell, and an engine in the middle of a step can't be waited
    for.
    """
    with suppress(OSError):  # whose load was cancelled before it began has nobody who reads it
        print(f"worker: {why}", file=sys.stderr, flush=True)  # noqa: T201 - all that reads it is a log
    os._exit(0)


def serve(connection: socket.socket, backend: Backend, gateway: int) -> None:
    """Be a worker of that process, to its end."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )
    asyncio.run(Worker(connection, backend, gateway).run())


DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri")


def is_forkable() -> bool:
    """Whether this process may be forked: it has one thread, and no device is open."""
    process = Path("/proc/self")
    if not process.exists():  # not Linux
        return threading.active_count() == 1
    if len([*(process / "task").iterdir()]) > 1:
        return False
    for file in (process / "fd").iterdir():
        with suppress(OSError):  # that of the listing itself
            if str(file.readlink()).startswith(DEVICES):
                return False
    return True


class Launcher:
    """Forks workers, and reports how they end."""

    def __init__(self, control: socket.socket, backend: Backend, gateway: int) -> None:
        self._control = control
        self._backend = backend
        self._gateway = gateway
        self._pid = os.getpid()

    def run(self) -> None:
        """Until the gateway closes `control`. Returns in each worker, when that has ended."""
        wake, woken = os.pipe()
        os.set_blocking(woken, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        while True:
            ready, _, _ = select.select([self._control.fileno(), wake], [], [])
            if wake in ready:
                os.read(wake, 512)
                self._bury()
            if self._control.fileno() in ready:
                files = self._received()
                if (pid := os.fork()) == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    os.close(wake)
                    os.close(woken)
                    self._work(*files)
                self._report(pid)
                for file in files:
                    os.close(file)

    def _received(self) -> tuple[int, int]:
        """The worker's connection and its stderr."""
        try:
            data, files, _, _ = socket.recv_fds(self._control, 1, 2)
        except ConnectionResetError:  # closed with a report unread
            os._exit(0)
        if not data:
            os._exit(0)
        connection, errors = files
        return connection, errors

    def _report(self, pid: int, status: int = RUNS) -> None:
        try:
            self._control.sendall(REPORT.pack(pid, status))
        except OSError:
            os._exit(0)

    def _bury(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._report(ended[0], os.waitstatus_to_exitcode(ended[1]))

    def _work(self, connection: int, errors: int) -> None:
        """In the child: never returns."""
        status = 1
        try:
            end_with(self._pid)
            self._control.close()
            os.dup2(errors, 1)
            os.dup2(errors, 2)
            os.close(errors)
            gc.unfreeze()
            serve(socket.socket(fileno=connection), self._backend, self._gateway)
            status = 0
        except BaseException:  # noqa: BLE001 - its end is reported, whatever it was
            traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stderr.flush()
            os._exit(status)


def main(arguments: list[str]) -> None:
    """Of a launcher: the file number of its control socket, the gateway's pid, the backend's name,
    package and options, and "bare" where workers import the engine themselves.
    """
    control, parent, name, package, module, options, *bare = arguments
    end_with(int(parent))
    for kind in LEFT_TO_THE_GATEWAY:
        signal.signal(kind, signal.SIG_IGN)
    prepare_process(os.environ)
    found: Any = getattr(import_module(module), options)
    backend = Backend(name, found, package)
    if not bare:
        with suppress(Exception):  # where that fails, the load says why
            backend.container.preload()
        if not is_forkable():
            assert __spec__ is not None
            command = (sys.executable, "-m", __spec__.name, *arguments, "bare")
            os.execv(sys.executable, command)  # noqa: S606 - this program
    gc.collect()
    gc.freeze()  # or the first collection would copy what processes share
    Launcher(socket.socket(fileno=int(control)), backend, int(parent)).run()


if __name__ == "__main__":
    main(sys.argv[1:])
