"""The driver: one thread per container steps an engine; everything asynchronous is here.

    event loop                                engine thread
    generate(job) ── Submit ──────────────▶   waits in line, then engine.admit
    outputs  ◀── one call per step ────────   engine.step, for all jobs together
    outputs.stop() ── Finish ─────────────▶   engine.release
    outputs  ◀── Ended ────────────────────
    context exits ── Stop ────────────────▶   engine.release
                  ◀── stopped ─────────────

An engine is a small synchronous object (`backends.engine`); `DrivenContainer` makes a
`ModelContainer` of it. The driver knows nothing of models: text, stop strings and limits are
`backends.transcript`'s, what a grammar allows is `backends.constraints`'.

The threads of an engine beside the event loop: the one it is loaded on, and the one it belongs
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
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Generic, Protocol, TypeVar, TypeVarTuple

import anyio
import msgspec

from backends.bounds import bounded, check_choice, check_tokens
from backends.constraints import Grammars, MaskThreads, unbanned
from backends.engine import Engine, JobFailed, Token
from backends.errors import (
    BackendError,
    GenerationFailed,
    InvalidJob,
    OutOfMemory,
    PromptTooLong,
    while_generating,
)
from backends.jobs import (
    DriverJob,
    Finish,
    JobOutputs,
    Mailbox,
    SlotKeeper,
    Slots,
    WaitingLine,
    deliver,
    output_of,
    tokens_left,
    write,
)
from backends.protocol import (
    Ended,
    Generation,
    ModelInfo,
    Output,
)
from backends.transcript import BannedStrings, Transcript, Written


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


class Driver(EngineThread[Engine, DriverJob, Finish | Asked]):
    """The thread of an engine that generates."""

    def __init__(self, engine: Engine, name: str) -> None:
        super().__init__(engine, f"engine-{name}")
        self._waiting: WaitingLine[DriverJob] = WaitingLine()
        self._active: dict[int, DriverJob] = {}
        self._questions = Questions()
        self._masks = MaskThreads()
        self._start()

    def finish(self, running: DriverJob) -> None:
        """The job ends before the next step; this does not wait for it."""
        if not running.over:
            self._put(Finish(running))

    async def ask(self, work: Callable[[], Any], ready: Callable[[], bool]) -> Any:
        """What `work` returns, called between two steps once `ready` says so. Raises what it
        raises, or GenerationFailed when the model is closed before.
        """
        asked, answer = question(self._loop, self._call, work, ready)
        self._put(asked)
        return await answer

    def active(self) -> Sequence[DriverJob]:
        """The jobs that the engine has, oldest first. For its thread."""
        return tuple(self._active.values())

    def _work(self) -> None:
        while self._open:
            self._take_commands()
            self._questions.answer_ready()  # before others take the place they wait for
            self._admit_waiting()
            if self._active:
                self._step()

    def _let_go(self) -> None:
        self._questions.give_up(closed())
        self._masks.close()

    def _give_up(self, reason: BackendError) -> None:
        jobs = [*self._active.values(), *self._waiting.leave_all()]
        self._active.clear()
        self._fail(jobs, reason)

    def _refuse(self, command: Submit[DriverJob] | Finish | Asked) -> None:
        match command:
            case Asked(answer=answer):
                answer(None, closed())
            case Submit(running) | Finish(running) if not running.over:
                self._fail([running], closed())
            case _:
                pass

    def _take_commands(self) -> None:
        idle = not (self._active or self._waiting or self._questions)
        while idle or not self._commands.empty():
            match self._commands.get():
                case Submit(running):
                    self._waiting.join(running.request, running)
                case Finish(running):
                    self._finish(running)
                case Stop(running, stopped):
                    try:
                        self._drop(running)
                    finally:
                        stopped()
                case Asked() as asked:
                    self._questions.join(asked)
                case Close():
                    self._open = False
            idle = False

    def _drop(self, running: DriverJob) -> None:
        if running.over:
            return
        running.over = True
        if self._active.pop(running.key, None):
            self._release(running)
        else:
            self._waiting.leave(running.request, running)

    def _finish(self, running: DriverJob) -> None:
        if running.over:
            return
        running.over = True
        cached = 0
        if self._active.pop(running.key, None):
            cached = self._release(running) or 0
        else:
            self._waiting.leave(running.request, running)
        outputs = [(running.mailbox, running.ended(Written(cause="stopped"), cached))]
        self._call(deliver, outputs)

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
        while self._waiting and len(self._active) < self._engine.info.max_concurrent:
            running = self._waiting.next()
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
        self._masks.begin(running.matcher for running in self._active.values() if running.matcher)
        try:
            results = self._engine.step()
        except Exception as error:  # noqa: BLE001 - whatever the engine throws must not end its thread
            self._step_failed(error)
            return
        outputs: list[tuple[Mailbox, Output | BackendError]] = []
        now = time.perf_counter()
        left = tokens_left(results)
        for result in results:
            running = self._active.get(result.key)
            if running is None:  # it ended within this very step
                continue
            if not isinstance(result, Token):
                if isinstance(result, JobFailed):
                    self._drop(running)
                outputs.append((running.mailbox, output_of(result)))
            elif left is None:
                self._take(running, result, now, outputs, 0)
            elif left[result.key]:  # else it was taken back within this very step
                left[result.key] -= 1
                if self._take(running, result, now, outputs, left[result.key]).void:
                    left[result.key] = 0
        if outputs:
            self._call(deliver, outputs)

    def _take(
        self,
        running: DriverJob,
        token: Token,
        now: float,
        outputs: list[tuple[Mailbox, Output | BackendError]],
        ahead: int,
    ) -> Written:
        """What goes wrong with one job's token is that job's alone."""
        try:
            written = self._write(running, token, now, ahead)
        except Exception as error:  # noqa: BLE001 - as in `_run`
            self._drop(running)
            outputs.append((running.mailbox, translated(error)))
            return Written()
        if written.piece is not None:
            outputs.append((running.mailbox, written.piece))
        if written.cause is not None:
            outputs.append((running.mailbox, self._end(running, written)))
        return written

    def _write(self, running: DriverJob, token: Token, now: float, ahead: int) -> Written:
        if not running.begun:
            running.begun, running.first_token = True, now
        running.last_token = now
        if running.job.max_tokens == 0:  # the prompt is computed, and no more is wanted
            return Written(cause="max_tokens")
        return write(running, self._engine, token, ahead)

    def _end(self, running: DriverJob, written: Written) -> Ended:
        running.over = True
        del self._active[running.key]
        cached = self._release(running)
        if cached is not None:
            self._failures = 0
        return running.ended(written, cached or 0)

    def _step_failed(self, error: Exception) -> None:
        """Only the requests of this step fail; see `_rebuilt`."""
        reason = self._rebuilt(error)
        failed, self._active = list(self._active.values()), {}
        self._fail(failed, reason)  # last: readers then check `failure`

    def _fail(self, jobs: Sequence[DriverJob], error: BackendError) -> None:
        for running in jobs:
            running.over = True
        outputs = [(running.mailbox, error) for running in jobs]
        self._call(deliver, outputs)


class DrivenContainer:
    """A `ModelContainer` made of an engine. Create it on the event loop."""

    def __init__(self, engine: Engine, keeper: SlotKeeper | None = None) -> None:
        """`keeper`: of the engine's slots, where it can save and restore them."""
        self._engine = engine
        self._driver = Driver(engine, engine.info.architecture)
        self._slots = Slots(engine.info, self._driver.ask, self._driver.active, keeper)
        self._grammars = Grammars(engine)
        self._keys = 0
        self._closed = False

    @property
    def info(self) -> ModelInfo:
        return self._engine.info

    @property
    def failure(self) -> str | None:
        return self._driver.failure

    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
        return self._engine.tokenize(text, special=special)

    def detokenize(self, tokens: Sequence[int]) -> str:
        check_tokens(tokens, self.info, "prompt")
        return self._engine.detokenize(tokens)

    def pieces(self, tokens: Sequence[int]) -> Sequence[bytes]:
        check_tokens(tokens, self.info, "tokens")
        return [self._engine.piece(token) for token in tokens]

    @property
    def slots(self) -> Slots:
        return self._slots

    @asynccontextmanager
    async def generate(self, job: Generation) -> AsyncIterator[JobOutputs]:
        """See `ModelContainer.generate`."""
        job = bounded(job, self.info)
        if job.prompt_logprobs is not None and (job.images or not self.info.scores_prompts):
            backend = self.info.backend
            raise InvalidJob(f"{backend} returns no log probabilities of this prompt", "logprobs")
        check_choice(job, self.info, self._engine.ends)
        matcher = await self._grammars.matcher(job, job.constraint) if job.constraint else None
        self._keys += 1
        mailbox = Mailbox(asyncio.get_running_loop())
        running = DriverJob(self._keys, job, mailbox, self.info, matcher)
        self._driver.submit(running)
        try:
            yield JobOutputs(mailbox, lambda: self._driver.finish(running))
        finally:
            if not running.over:
                with anyio.CancelScope(shield=True):
                    await self._driver.stop(running)

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            await self._grammars.aclose()
            await self._driver.close()
