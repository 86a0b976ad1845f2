"""The engine's end of a container: the threads that load and step an engine, and all that is
asynchronous.

    event loop                                engine thread
    EnginePort.send: Begin ───────────────▶   waits in line, then engine.admit
      ◀── Outcomes, one a step ────────────   engine.step, for all jobs together
    Finish ───────────────────────────────▶   engine.release
      ◀── Outcomes, with its Ended ────────
    Leave ────────────────────────────────▶   engine.release
      ◀── Left ────────────────────────────

An engine is a small synchronous object (`backends.engines.engine`); `DrivenContainer` makes a
`ModelContainer` of it. The driver knows nothing of models: text, stop strings and limits are
`backends.engines.transcript`'s, what a grammar allows is `backends.engines.constraints`'. Its
messages are `backends.contract.messages`', and `backends.places.container` is their other end.
"""

import asyncio
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

import anyio

from backends.contract.beginnings import Beginnings, Keeping
from backends.contract.catalog import ModelFiles
from backends.contract.errors import (
    CLOSED,
    BackendError,
    GenerationFailed,
    OutOfMemory,
    PromptTooLong,
    while_generating,
)
from backends.contract.messages import (
    Answered,
    Began,
    Begin,
    Broke,
    Close,
    Closed,
    Command,
    Encode,
    Event,
    Failure,
    Finish,
    Keep,
    KeptAnswered,
    Leave,
    Left,
    Outcomes,
    SlotOrder,
    Withdraw,
)
from backends.contract.protocol import (
    Ended,
    Generation,
    Output,
    Progress,
    Report,
    Tokenizing,
)
from backends.engines.constraints import Grammars, MaskThreads, Matcher, unbanned
from backends.engines.engine import (
    Engine,
    JobFailed,
    Owned,
    PromptRead,
    PromptScored,
    PutBack,
    Token,
)
from backends.engines.jobs import (
    DriverJob,
    SlotKeeper,
    SlotOrders,
    Turns,
    write,
)
from backends.engines.kept import BeginningsAfar
from backends.engines.threads import rested
from backends.engines.transcript import BannedStrings, Transcript, Written
from backends.places.container import PortContainer

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


# What the engine's thread is told; a job itself joins the line.
JobCommand: TypeAlias = DriverJob | Finish | Leave | SlotOrder | Withdraw


class Driver(EngineThread[Engine, JobCommand]):
    """The thread of an engine that generates."""

    def __init__(self, engine: Engine, keeper: SlotKeeper | None) -> None:
        super().__init__(engine, f"engine-{engine.info.architecture}")
        self._waiting: Turns[DriverJob] = Turns()  # by their adapters
        self._active: dict[int, DriverJob] = {}
        self._jobs: dict[int, DriverJob] = {}  # both
        self._orders = SlotOrders(engine.info, self._by_age, keeper, self.tell)
        self._masks = MaskThreads()
        self._thread.start()

    def _by_age(self) -> Sequence[DriverJob]:
        """The jobs that the engine has, oldest first."""
        return tuple(self._active.values())

    def _work(self) -> None:
        while self._open:
            idle = not (self._jobs or self._orders.open)
            if idle or not self._commands.empty():
                self._take_commands(idle=idle)
            if self._orders.open:  # before others take the place they wait for
                self._orders.carry_out_ready()
            if len(self._jobs) > len(self._active):
                self._admit_waiting()
            if self._active:
                self._step()

    def _let_go(self) -> None:
        self._orders.give_up(closed())
        self._masks.close()

    def _give_up(self, reason: BackendError) -> None:
        jobs = tuple(self._jobs.values())
        self._waiting.leave_all()
        self._active.clear()
        self._fail(jobs, reason)

    def _refuse(self, command: JobCommand) -> None:
        match command:
            case DriverJob():
                self._fail((command,), closed())
            case Leave(key):
                self.tell(Left(key))
            case Finish() | Withdraw():
                pass  # the job was given up, or the order
            case order:
                self.tell(Answered(order.number, Failure.of(closed())))

    def _take_commands(self, *, idle: bool) -> None:
        """Those that are there; where it is `idle`, once the first comes."""
        while idle or not self._commands.empty():
            match self._commands.get():
                case DriverJob() as running:
                    self._jobs[running.key] = running
                    self._waiting.join(
                        running.adapters, running.job.owner, running.request, running
                    )
                case Finish(key):
                    self._finish(key)
                case Leave(key):
                    try:
                        self._drop(key)
                    finally:
                        self.tell(Left(key))
                case Withdraw(number):
                    self._orders.withdraw(number)
                case Close():
                    self._open = False
                case order:
                    self._orders.join(order)
            idle = False

    def _drop(self, key: int) -> int:
        """The job is over, if it wasn't. How many tokens of its prompt were found in the cache."""
        running = self._jobs.pop(key, None)
        if running is None:
            return 0
        if self._active.pop(key, None):
            return self._release(running) or 0
        self._waiting.leave(running.adapters, running.job.owner, running.request, running)
        return 0

    def _finish(self, key: int) -> None:
        if (running := self._jobs.get(key)) is not None:
            cached = self._drop(key)
            ended = running.ended(Written(cause="stopped"), cached)
            self.tell(Outcomes(((key, ended),)))

    def _release(self, running: DriverJob) -> int | None:
        """See `Engine.release`. None where that fails: the device may still work for the job, so
        that the engine is rebuilt, as after a failed step.
        """
        try:
            return self._engine.release(running.key)
        except Exception as error:  # noqa: BLE001 - as in `_run`
            self._step_failed(error)
            return None

    def _admit_waiting(self) -> None:
        while len(self._jobs) > len(self._active) < self._engine.info.max_concurrent:
            owners = [active.job.owner for active in self._active.values()]
            running = self._waiting.next(owners)
            if running is None:
                return
            if self.failure is not None:
                self._fail([running], GenerationFailed(self.failure))
                continue
            try:
                self._admit(running)
            except Exception as error:  # noqa: BLE001 - as in a step
                self._fail([running], translated(error))

    def _admit(self, running: DriverJob) -> None:
        length = self._engine.info.context_length
        job = running.job if running.matcher is None else unbanned(running.job)
        count = self._engine.admit(running.key, job, running.matcher)
        if count >= length:
            self._release(running)
            raise PromptTooLong(count, length)
        running.prompt_tokens = count
        running.transcript = Transcript(running.job, length - count)
        strings = running.job.sampling.banned_strings
        if strings and self._engine.info.rewinds:
            running.banned = BannedStrings(strings, running.transcript.limit)
        running.admitted = time.perf_counter()
        self._active[running.key] = running

    def _step(self) -> None:
        matchers = [running.matcher for running in self._active.values() if running.matcher]
        if matchers:
            self._masks.begin(matchers)
        try:
            results = self._engine.step()
        except Exception as error:  # noqa: BLE001 - whatever the engine throws must not end its thread
            self._step_failed(error)
            return
        outputs: list[tuple[int, Output | Failure]] = []
        now = time.perf_counter()
        left = Counter(result.key for result in results if isinstance(result, Token))
        for result in results:
            running = self._active.get(result.key)
            if running is None:  # it ended within this very step
                continue
            if not isinstance(result, Token):
                self._note(running, result, outputs)
            elif left[result.key]:  # else it was taken back within this very step
                left[result.key] -= 1
                if self._take(running, result, now, outputs, left[result.key]).void:
                    left[result.key] = 0
        if outputs:
            self.tell(Outcomes(tuple(outputs)))

    def _note(
        self,
        running: DriverJob,
        result: PromptScored | PromptRead | PutBack | JobFailed,
        outputs: list[tuple[int, Output | Failure]],
    ) -> None:
        match result:
            case PutBack():
                running.put_back = result
            case PromptScored(scored=output) | PromptRead(progress=output):
                outputs.append((result.key, output))
            case JobFailed(key, error):
                self._drop(key)
                outputs.append((key, Failure.of(error)))

    def _take(
        self,
        running: DriverJob,
        token: Token,
        now: float,
        outputs: list[tuple[int, Output | Failure]],
        ahead: int,
    ) -> Written:
        """What goes wrong with one job's token is that job's alone."""
        if not running.begun:
            running.begun, running.first_token = True, now
        running.last_token = now
        running.drafted += token.drafted
        running.accepted += token.accepted
        try:
            written = write(running, self._engine, token, ahead)
        except Exception as error:  # noqa: BLE001 - as in `_run`
            self._drop(running.key)
            outputs.append((running.key, Failure.of(translated(error))))
            return Written()
        if written.piece is not None:
            outputs.append((running.key, written.piece))
        if written.cause is not None:
            outputs.append((running.key, self._end(running, written)))
        return written

    def _end(self, running: DriverJob, written: Written) -> Ended:
        del self._jobs[running.key], self._active[running.key]
        cached = self._release(running)
        if cached is not None:
            self._failures = 0
        return running.ended(written, cached or 0)

    def _step_failed(self, error: Exception) -> None:
        """Only the requests of this step fail; see `_rebuilt`."""
        reason = self._rebuilt(error)
        failed, self._active = list(self._active.values()), {}
        self._fail(failed, reason)

    def _fail(self, jobs: Sequence[DriverJob], error: BackendError) -> None:
        failure = Failure.of(error)
        for running in jobs:
            self._jobs.pop(running.key, None)
        self.tell(Outcomes(tuple((running.key, failure) for running in jobs)))


class ThreadPort(ABC):
    """The engine's end: its thread, and what is asynchronous of it. Create it on the event loop."""

    is_unreached = False

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


class EnginePort(ThreadPort):
    """The end of an engine that generates: the grammars, too, that its jobs are held to."""

    _engine: Engine

    def __init__(self, engine: Engine, keeper: SlotKeeper | None) -> None:
        super().__init__(engine, Driver(engine, keeper))
        self._grammars = Grammars(engine)
        self._compiling: dict[int, asyncio.Task[Matcher]] = {}  # by the job that waits for it
        self._afar: BeginningsAfar | None = None

    def send(self, command: Command) -> None:
        match command:
            case Begin(key, job) if job.constraint is not None:
                compiling = self._grammars.matcher(job, job.constraint)
                self._compiling[key] = task = asyncio.get_running_loop().create_task(compiling)
                task.add_done_callback(partial(self._compiled, key, job))
            case Begin(key, job):
                self._thread.put(DriverJob(key, job, self.info))
            case Leave(key) if key in self._compiling:
                self._compiling.pop(key).cancel()
                asyncio.get_running_loop().call_soon(self._thread.hand_on, Left(key))
            case Close():
                self._close()
            case Encode():
                raise AssertionError("this model generates")
            case Keep():
                self._keep()
            case KeptAnswered():
                if self._afar is not None:
                    self._afar.answered(command)
            case _:
                self._thread.put(command)

    def _keep(self) -> None:
        """The store is in another process: its engine asks through this port."""
        if isinstance(self._engine, Keeping):
            self._afar = BeginningsAfar(self._thread.tell)
            self._engine.kept = self._afar

    def _compiled(self, key: int, job: Generation, task: "asyncio.Task[Matcher]") -> None:
        if self._compiling.pop(key, None) is None:  # it has left
            return
        error = closed() if task.cancelled() else task.exception()
        if error is None:
            self._thread.hand_on(Began(key))
            self._thread.put(DriverJob(key, job, self.info, task.result()))
        else:
            assert isinstance(error, Exception)
            self._thread.hand_on(Outcomes(((key, Failure.of(translated(error))),)))

    async def _shut(self) -> None:
        await self._grammars.aclose()
        if self._afar is not None:
            self._afar.leave()
        await super()._shut()
        if self._afar is not None:
            await anyio.to_thread.run_sync(self._afar.flush)


class DrivenContainer(PortContainer):
    """A `ModelContainer` made of an engine in this process. Create it on the event loop."""

    def __init__(self, engine: Engine, keeper: SlotKeeper | None = None) -> None:
        """`keeper`: of the engine's slots, where it can save and restore them."""
        super().__init__(EnginePort(engine, keeper), engine)
        self.engine = engine

    def keep_in(self, beginnings: Beginnings) -> None:
        """See `Leasable.keep_in`."""
        if isinstance(self.engine, Keeping):
            self.engine.kept = beginnings
