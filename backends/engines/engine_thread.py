"""The thread that an engine belongs to, whatever it does: it is loaded there, takes commands and
tells events, and is closed; and the end of a container that has such a thread.
"""

import asyncio
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import anyio

from backends.contract.catalog import ModelFiles
from backends.contract.errors import (
    CLOSED,
    BackendError,
    GenerationFailed,
    OutOfMemory,
    while_generating,
)
from backends.contract.messages import Broke, Close, Closed, Command, Event
from backends.contract.protocol import Progress, Report, Tokenizing
from backends.engines.engine import Owned
from backends.engines.threads import rested

E = TypeVar("E", bound=Owned)
Ordered = TypeVar("Ordered")
Options = TypeVar("Options")


class EngineThread(ABC, Generic[E, Ordered]):
    """The thread that an engine belongs to: commands to it, events to the event loop it was created
    on. It knows no jobs. A subclass starts it when it is fully constructed.
    """

    def __init__(self, engine: E, name: str) -> None:
        self._engine = engine
        # Gets each event, on the event loop's thread or, `directly`, on this one.
        self.hand_on: Callable[[Event], None] = lambda _: None
        self.directly = False
        self._loop = asyncio.get_running_loop()
        self._commands: queue.SimpleQueue[Ordered | Close] = queue.SimpleQueue()
        self._failures = 0  # failed steps since the last that went well
        self.failure: str | None = None  # why the engine is unusable
        self._open = True
        self._ended = False  # the thread takes no more commands
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    async def close(self) -> None:
        self._commands.put(Close())
        await anyio.to_thread.run_sync(self._thread.join)

    def put(self, command: Ordered) -> None:
        """To be taken between two steps."""
        self._commands.put(command)
        if self._ended:  # checked second: whichever side comes last finds the command
            self._answer_the_rest()

    def tell(self, event: Event) -> None:
        """By any thread: what the gateway is to hear, or to be asked of its store."""
        if self.directly:
            self.hand_on(event)
            return
        try:
            self._loop.call_soon_threadsafe(self.hand_on, event)
        except RuntimeError:  # the loop is closed: there is no reader left
            self._open = False

    def _run(self) -> None:
        """Whatever an engine raises, every job gets its end and the thread goes on."""
        while self._open:
            try:
                self._work()
            except Exception as error:  # noqa: BLE001 - see above
                rested()
                reason = translated(error)
                self._break(reason)  # the engine's state is unknown
                self._give_up(reason)
        if self.failure is not None:
            with suppress(Exception):
                self._engine.recover()  # what it has may be wrong: nothing of it is to be kept
        with suppress(Exception):  # the model is gone, one way or the other
            self._let_go()
            self._engine.close()
        rested()
        self._ended = True
        self._answer_the_rest()

    def _rebuilt(self, error: Exception) -> BackendError:
        """The error for jobs whose step failed. The engine is rebuilt once; a second failure in a
        row is final. Where memory ran out it is sound: the next requests may be smaller.
        """
        rested()
        reason = translated(error)
        self._failures += not isinstance(reason, OutOfMemory)
        if self._failures > 1:
            self._break(reason)
        try:
            self._engine.recover()
        except Exception as hopeless:  # noqa: BLE001 - as in `_run`
            self._break(translated(hopeless))
        return reason

    def _break(self, reason: BackendError) -> None:
        """The engine is unusable from now on."""
        self.failure = str(reason)
        self.tell(Broke(self.failure))

    def _answer_the_rest(self) -> None:
        """No commands are taken any more: answer those that are left."""
        self._give_up(closed())
        with suppress(queue.Empty):
            while True:
                command = self._commands.get_nowait()
                if not isinstance(command, Close):
                    self._refuse(command)

    @abstractmethod
    def _work(self) -> None:
        """Take commands and step the engine until `_open` is false."""

    @abstractmethod
    def _give_up(self, reason: BackendError) -> None:
        """Every job there is has failed."""

    @abstractmethod
    def _refuse(self, command: Ordered) -> None:
        """It will not be carried out: report that."""

    def _let_go(self) -> None:
        """Release what there is besides the engine."""


def closed() -> BackendError:
    """The error for callers after the model is closed."""
    return GenerationFailed(CLOSED)


def translated(error: Exception) -> BackendError:
    """An engine's exception as one of ours."""
    return while_generating(error, "the engine")


async def run_loading(load: Callable[[Callable[[Progress], bool]], E], report: Report) -> E:
    """Run `load(tell)`, which makes an engine, on a thread: it tells its steps, and hears whether
    it is still wanted. When this call is cancelled, it is not.

    Cancellation waits until the thread has ended, and an engine that came all the same is closed,
    so that nothing is left behind. `load` should tell often and raise when it hears False.
    """
    loop, abandoned = asyncio.get_running_loop(), threading.Event()

    def tell(step: Progress) -> bool:
        loop.call_soon_threadsafe(report, step)
        return not abandoned.is_set()

    future = loop.run_in_executor(None, load, tell)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        abandoned.set()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([future])
        if future.exception() is None:
            future.result().close()
        raise


async def run_loading_weights(
    load: Callable[[ModelFiles, Options, Callable[[float], bool]], E],
    files: ModelFiles,
    options: Options,
    report: Report,
) -> E:
    """As `run_loading`: `load` says how much of the files is loaded, from 0 to 1."""

    def work(tell: Callable[[Progress], bool]) -> E:
        size = files.size_bytes
        return load(files, options, lambda done: tell(Progress("weights", int(size * done), size)))

    return await run_loading(work, report)


class ThreadPort(ABC):
    """The engine's end: its thread, and what is asynchronous of it. Create it on the event loop."""

    def __init__(self, engine: Tokenizing, thread: EngineThread[Any, Any]) -> None:
        self._engine = engine
        self._thread = thread
        self._closing: asyncio.Task[None] | None = None
        self.info = engine.info

    def connect(self, receive: Callable[[Event], None], *, directly: bool = False) -> None:
        """See `Port.connect`. `directly`: `receive` is called on the thread where an event comes
        from, the event loop's or the engine's.
        """
        self._thread.hand_on, self._thread.directly = receive, directly

    @abstractmethod
    def send(self, command: Command) -> None:
        """See `Port.send`."""

    def _close(self) -> None:
        self._closing = asyncio.get_running_loop().create_task(self._closed())

    async def _closed(self) -> None:
        try:
            await self._shut()
        finally:
            self._thread.hand_on(Closed())

    async def _shut(self) -> None:
        await self._thread.close()
