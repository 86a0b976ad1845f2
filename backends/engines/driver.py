"""The engine's end of a container: the thread that steps an engine, and all that is asynchronous.

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
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

import anyio

from backends.contract.beginnings import Beginnings, Keeping
from backends.contract.errors import BackendError, GenerationFailed, PromptTooLong
from backends.contract.messages import (
    Answered,
    Began,
    Begin,
    Close,
    Command,
    Encode,
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
from backends.contract.protocol import Ended, Generation, Output
from backends.engines.constraints import Grammars, MaskThreads, Matcher, unbanned
from backends.engines.engine import Engine, JobFailed, PromptRead, PromptScored, PutBack, Token
from backends.engines.engine_thread import EngineThread, ThreadPort, closed, translated
from backends.engines.jobs import DriverJob, SlotKeeper, SlotOrders, Turns, write
from backends.engines.kept import BeginningsAfar
from backends.engines.transcript import BannedStrings, Transcript, Written
from backends.places.container import PortContainer

# What the engine's thread is told; a job itself joins the line.
JobCommand: TypeAlias = DriverJob | Finish | Leave | SlotOrder | Withdraw


class Driver(EngineThread[Engine, JobCommand]):
    """The thread of an engine that generates."""

    def __init__(self, engine: Engine, keeper: SlotKeeper | None) -> None:
        super().__init__(engine, f"engine-{engine.info.architecture}")
        self._waiting: Turns[DriverJob] = Turns()  # by their adapters
        self._active: dict[int, DriverJob] = {}
        self._jobs: dict[int, DriverJob] = {}  # both
        self._orders = SlotOrders(engine.info, self._active.values, keeper, self.tell)
        self._masks = MaskThreads()
        self._thread.start()

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
        failed = tuple(self._active.values())
        self._active.clear()
        self._fail(failed, reason)

    def _fail(self, jobs: Sequence[DriverJob], error: BackendError) -> None:
        failure = Failure.of(error)
        for running in jobs:
            self._jobs.pop(running.key, None)
        self.tell(Outcomes(tuple((running.key, failure) for running in jobs)))


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
