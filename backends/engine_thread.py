"""The threads of an engine beside the event loop: the one it is loaded on, and the one it belongs
to from then on. Commands to that one, notifications to the loop, and the handling of either's end.
It knows no jobs.

    event loop                                engine thread
    _put(command) ─────────────────────────▶  _work: takes it, steps the engine, takes the next
              ◀── _call(function) ──────────
    close() ── Close ──────────────────────▶  _work returns, the engine is closed
"""

import asyncio
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar, TypeVarTuple

import anyio
import msgspec

from backends.errors import BackendError, GenerationFailed, OutOfMemory, while_generating


class Owned(Protocol):
    """What the thread itself does with its engine."""

    def recover(self) -> None:
        """After a failed step: start anew."""
        ...

    def close(self) -> None:
        """Free the device."""
        ...


E = TypeVar("E", bound=Owned)
Job = TypeVar("Job")
Command = TypeVar("Command")
Loaded = TypeVar("Loaded")
Arguments = TypeVarTuple("Arguments")


class Submit(msgspec.Struct, Generic[Job], frozen=True):
    """A job joins the line."""

    running: Job


class Stop(msgspec.Struct, Generic[Job], frozen=True):
    """A job leaves; `stopped` is called when the device doesn't work for it."""

    running: Job
    stopped: Callable[[], None]


class Close(msgspec.Struct, frozen=True):
    """The thread ends after this."""


class EngineThread(ABC, Generic[E, Job, Command]):
    """Created on the event loop it reports to; the engine belongs to the thread from then on.
    A subclass calls `_start` when it is fully constructed.
    """

    def __init__(self, engine: E, name: str) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._commands: queue.SimpleQueue[Submit[Job] | Stop[Job] | Command | Close] = (
            queue.SimpleQueue()
        )
        self._failures = 0  # failed steps since the last that went well
        self.failure: str | None = None  # why the engine is unusable
        self._open = True
        self._ended = False  # the thread takes no more commands
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def submit(self, running: Job) -> None:
        self._put(Submit(running))

    async def stop(self, running: Job) -> None:
        """When this returns, the device no longer works for the job."""
        stopped = anyio.Event()
        self._put(Stop(running, lambda: self._call(stopped.set)))
        await stopped.wait()

    async def close(self) -> None:
        self._commands.put(Close())
        await anyio.to_thread.run_sync(self._thread.join)

    # -- for subclasses ------------------------------------------------------------------

    def _start(self) -> None:
        self._thread.start()

    def _put(self, command: Submit[Job] | Stop[Job] | Command) -> None:
        self._commands.put(command)
        if self._ended:  # checked second: whichever side comes last finds the command
            self._answer_the_rest()

    def _call(self, function: Callable[[*Arguments], object], *args: *Arguments) -> None:
        """On the event loop's thread."""
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the loop is closed: there is no reader left
            self._open = False

    # -- on the engine's thread ------------------------------------------------------------------

    def _run(self) -> None:
        """Whatever an engine raises, every job gets its end and the thread goes on."""
        while self._open:
            try:
                self._work()
            except Exception as error:  # noqa: BLE001 - see above
                reason = translated(error)
                self.failure = str(reason)  # the engine's state is unknown
                self._give_up(reason)
        with suppress(Exception):  # the model is gone, one way or the other
            self._let_go()
            self._engine.close()
        self._ended = True
        self._answer_the_rest()

    def _rebuilt(self, error: Exception) -> BackendError:
        """The error for jobs whose step failed. The engine is rebuilt once; a second failure in a
        row is final. Where memory ran out it is sound: the next requests may be smaller.
        """
        reason = translated(error)
        self._failures += not isinstance(reason, OutOfMemory)
        if self._failures > 1:
            self.failure = str(reason)
        try:
            self._engine.recover()
        except Exception as hopeless:  # noqa: BLE001 - as in `_run`
            self.failure = str(translated(hopeless))
        return reason

    def _answer_the_rest(self) -> None:
        """No commands are taken any more: answer those that are left."""
        self._give_up(closed())
        with suppress(queue.Empty):
            while True:
                command = self._commands.get_nowait()
                if isinstance(command, Stop):
                    command.stopped()
                elif not isinstance(command, Close):
                    self._refuse(command)

    @abstractmethod
    def _work(self) -> None:
        """Take commands and step the engine until `_open` is false."""

    @abstractmethod
    def _give_up(self, reason: BackendError) -> None:
        """Every job there is has failed."""

    @abstractmethod
    def _refuse(self, command: Submit[Job] | Command) -> None:
        """It will not be carried out: report that."""

    def _let_go(self) -> None:
        """Release what there is besides the engine."""


class Asked(msgspec.Struct, frozen=True):
    """`work` is to be done once `ready`, if it is still `wanted`; then `answer` gets what it
    returned or raised.
    """

    work: Callable[[], object]
    ready: Callable[[], bool]
    wanted: Callable[[], bool]
    answer: Callable[[object, BaseException | None], None]

    def carry_out(self) -> None:
        """Now. Raises nothing."""
        try:
            done = self.work()
        except Exception as error:  # noqa: BLE001 - raised in the caller
            self.answer(None, error)
        else:
            self.answer(done, None)


class Questions:
    """Those that wait for their time, on the engine's thread."""

    def __init__(self) -> None:
        self._open: list[Asked] = []

    def __bool__(self) -> bool:
        return bool(self._open)

    def join(self, asked: Asked) -> None:
        self._open.append(asked)

    def answer_ready(self) -> None:
        """Carry out those whose time has come."""
        waiting, self._open = self._open, []
        for asked in waiting:
            if not asked.wanted():  # the caller has left
                continue
            if asked.ready():
                asked.carry_out()
            else:
                self._open.append(asked)

    def give_up(self, error: BackendError) -> None:
        """None of them will be carried out."""
        left, self._open = self._open, []
        for asked in left:
            asked.answer(None, error)


def question(
    loop: asyncio.AbstractEventLoop,
    call: Callable[[Callable[[], None]], None],
    work: Callable[[], object],
    ready: Callable[[], bool],
) -> tuple[Asked, asyncio.Future[Any]]:
    """What to put to the engine's thread, and the answer as the loop's side awaits it. `call`
    calls a function on the loop's thread.
    """
    future: asyncio.Future[Any] = loop.create_future()

    def resolve(done: object, error: BaseException | None) -> None:
        if future.done():  # the caller has left
            return
        if error is None:
            future.set_result(done)
        else:
            future.set_exception(error)

    def wanted() -> bool:
        return not future.done()

    return Asked(work, ready, wanted, lambda *said: call(lambda: resolve(*said))), future


def closed() -> BackendError:
    """The error for callers after the model is closed."""
    return GenerationFailed("the model has been closed")


def translated(error: Exception) -> BackendError:
    """An engine's exception as one of ours."""
    return while_generating(error, "the engine")


async def run_abandonable(
    work: Callable[[Callable[[], bool]], Loaded], discard: Callable[[Loaded], None]
) -> Loaded:
    """Run `work(wanted)` on a thread. When this call is cancelled, `wanted()` becomes False.

    Cancellation waits until the thread has ended, and a result that came all the same goes to
    `discard`, so that nothing is left behind. `work` should check `wanted` often and raise when it
    is False.
    """
    abandoned = threading.Event()
    future = asyncio.get_running_loop().run_in_executor(None, work, lambda: not abandoned.is_set())
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        abandoned.set()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([future])
        if future.exception() is None:
            discard(future.result())
        raise
