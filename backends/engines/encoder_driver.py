"""The thread that steps an encoder, and the engine's end of its container:
`backends.engines.driver` for models that read texts and write none.

A pass takes texts of all requests that wait, each in its turn, so that a long list delays no other
request. Texts of one request are encoded the longest first, since what is padded is wasted; its
vectors come in its own order.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeAlias

import msgspec

from backends.contract.encoder import EncoderInput
from backends.contract.errors import BackendError, GenerationFailed
from backends.contract.messages import (
    Broke,
    Close,
    Closed,
    Command,
    Encode,
    Encoded,
    Event,
    Failure,
    Leave,
    Left,
)
from backends.contract.protocol import ModelInfo, Tokenizing
from backends.engines.driver import EngineThread, Submit, closed
from backends.engines.engine import Owned
from backends.places.encoder_container import PortEncoder

# The target time of a pass: new requests wait no longer for it, nor do cancelled ones.
PASS_SECONDS = 0.1
FIRST_GUESS = 2_000.0  # tokens per second, until measured
FEWEST = 256  # tokens of a pass: fewer of them cost more each (measured: twice, at 64)
ALIKE = 0.5  # where shorter texts are padded: of the longest, what one must have to go with it


class Pass(msgspec.Struct, frozen=True):
    """What an engine can take at once. `pads`: a row costs as much as the longest."""

    rows: int
    tokens: int
    pads: bool


class EncoderEngine(Tokenizing, Owned, Protocol):
    """One model on one device. Only one thread calls it, except what reads texts, which any may."""

    @property
    def most(self) -> Pass: ...

    def encode(self, inputs: Sequence[EncoderInput]) -> Sequence[bytes]:
        """One pass over all of them, within `most`; their vectors in their order.

        Raises OutOfMemory or GenerationFailed; then `recover` is called.
        """
        ...


class EncoderJob:
    """One request's inputs on their way. Only the engine's thread changes it. `ended` is called on
    the event loop's.
    """

    def __init__(
        self, inputs: Sequence[EncoderInput], ended: Callable[["EncoderJob"], None]
    ) -> None:
        self.inputs = inputs
        self.ended = ended
        self.error: BackendError | None = None
        self.vectors: list[bytes] = [b""] * len(inputs)
        longest_first = sorted(range(len(inputs)), key=lambda at: -len(inputs[at].tokens))
        self.left = deque(longest_first)  # indices that no pass has taken yet
        self.missing = len(inputs)

    @property
    def next_length(self) -> int:
        return len(self.inputs[self.left[0]].tokens)


Row: TypeAlias = tuple[EncoderJob, int]  # one text of a request, by its index


def compose(jobs: "deque[EncoderJob]", most: Pass, tokens: int) -> list[Row]:
    """Take the rows of the next pass out of `jobs`: about `tokens` tokens, one of each job in turn.
    A job whose turn it was goes to the end; one without rows left stays, for its vectors are to
    come.
    """
    rows: list[Row] = []
    room, longest, passed = min(most.tokens, tokens), 0, 0
    while jobs and passed < len(jobs) and len(rows) < most.rows:
        job = jobs[0]
        jobs.rotate(-1)
        if not job.left or (rows and not _fits(job.next_length, len(rows), longest, room, most)):
            passed += 1
            continue
        longest = max(longest, job.next_length)
        room -= 0 if most.pads else job.next_length
        rows.append((job, job.left.popleft()))
        passed = 0
    return rows


def _fits(length: int, rows: int, longest: int, room: int, most: Pass) -> bool:
    if not most.pads:
        return length <= room
    return ALIKE * longest <= length <= longest and (rows + 1) * longest <= room


class Stop(msgspec.Struct, frozen=True):
    """A request leaves; `stopped` is called when the device doesn't work for it."""

    job: EncoderJob
    stopped: Callable[[], None]


class EncoderDriver(EngineThread[EncoderEngine, EncoderJob, Stop]):
    """The thread of an engine that encodes."""

    def __init__(self, engine: EncoderEngine, name: str) -> None:
        super().__init__(engine, f"encoder-{name}")
        self._jobs: deque[EncoderJob] = deque()
        self._rate = FIRST_GUESS
        self.on_failure: Callable[[], None] = lambda: None
        self._thread.start()

    def stop(self, job: EncoderJob, stopped: Callable[[], None]) -> None:
        """`stopped` is called once the device no longer works for the request."""
        self.put(Stop(job, lambda: self._call(stopped)))

    def _work(self) -> None:
        while self._open:
            self._take_commands()
            if self._jobs:
                self._step()

    def _break(self, reason: BackendError) -> None:
        super()._break(reason)
        self._call(lambda: self.on_failure())  # noqa: PLW0108 - whoever is to be told by then

    def _give_up(self, reason: BackendError) -> None:
        self._fail(tuple(self._jobs), reason)

    def _refuse(self, command: Submit[EncoderJob] | Stop) -> None:
        match command:
            case Submit(job):
                self._fail((job,), closed())
            case Stop(stopped=stopped):
                stopped()

    def _take_commands(self) -> None:
        while self._open and (not self._jobs or not self._commands.empty()):
            match self._commands.get():
                case Submit(job) if self.failure is not None:
                    self._fail((job,), GenerationFailed(self.failure))
                case Submit(job):
                    self._jobs.append(job)
                case Stop(job, stopped):
                    if job in self._jobs:
                        self._jobs.remove(job)
                    stopped()
                case Close():
                    self._open = False

    def _step(self) -> None:
        rows = compose(self._jobs, self._engine.most, max(FEWEST, int(self._rate * PASS_SECONDS)))
        inputs = [job.inputs[at] for job, at in rows]
        began = time.perf_counter()
        try:
            vectors = self._engine.encode(inputs)
        except Exception as error:  # noqa: BLE001 - whatever the engine throws must not end its thread
            self._pass_failed(rows, error)
            return
        self._failures = 0
        self._learn(inputs, time.perf_counter() - began)
        for (job, at), vector in zip(rows, vectors, strict=True):
            job.vectors[at] = vector
            job.missing -= 1
        self._end([job for job in dict.fromkeys(job for job, _ in rows) if not job.missing])

    def _learn(self, inputs: Sequence[EncoderInput], seconds: float) -> None:
        lengths = [len(one.tokens) for one in inputs]
        computed = len(lengths) * max(lengths) if self._engine.most.pads else sum(lengths)
        if computed >= FEWEST:
            self._rate += 0.3 * (computed / max(seconds, 1e-6) - self._rate)

    def _pass_failed(self, rows: Sequence[Row], error: Exception) -> None:
        """Only the requests of this pass fail, unless the failure is final; see `_rebuilt`."""
        reason = self._rebuilt(error)
        failed = tuple(self._jobs) if self.failure else tuple({job for job, _ in rows})
        self._fail(failed, reason)

    def _fail(self, jobs: Sequence[EncoderJob], error: BackendError) -> None:
        for job in jobs:
            job.error = error
        self._end(jobs)

    def _end(self, jobs: Sequence[EncoderJob]) -> None:
        """They are notified together, in one call."""
        for job in jobs:
            if job in self._jobs:
                self._jobs.remove(job)
        if jobs:
            self._call(lambda: _resolve(jobs))


def _resolve(jobs: Sequence[EncoderJob]) -> None:
    for job in jobs:
        job.ended(job)


class EncoderPort:
    """The engine's end; see `backends.places.encoder_container`. Create it on the event loop."""

    def __init__(self, engine: EncoderEngine) -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._driver = EncoderDriver(engine, engine.info.architecture)
        self._driver.on_failure = lambda: self._receive(Broke(self._driver.failure or ""))
        self._jobs: dict[int, EncoderJob] = {}
        self._closing: asyncio.Task[None] | None = None
        self._receive: Callable[[Event], None] = lambda _: None

    @property
    def info(self) -> ModelInfo:
        return self._engine.info

    def connect(self, receive: Callable[[Event], None]) -> None:
        """See `messages.Port.connect`."""
        self._receive = receive

    def send(self, command: Command) -> None:
        """See `messages.Port.send`."""
        match command:
            case Encode(key, inputs):
                job = self._jobs[key] = EncoderJob(inputs, partial(self._ended, key))
                self._driver.submit(job)
            case Leave(key) if (running := self._jobs.pop(key, None)) is not None:
                self._driver.stop(running, lambda: self._receive(Left(key)))
            case Leave(key):
                self._receive(Left(key))
            case Close():
                self._closing = self._loop.create_task(self._close())
            case _:
                raise AssertionError("this model generates nothing")

    def _ended(self, key: int, job: EncoderJob) -> None:
        if self._jobs.pop(key, None) is not None:  # it has not left meanwhile
            failure = None if job.error is None else Failure.of(job.error)
            vectors = () if failure is not None else tuple(job.vectors)
            self._receive(Encoded(key, vectors, failure))

    async def _close(self) -> None:
        try:
            await self._driver.close()
        finally:
            self._receive(Closed())


class DrivenEncoder(PortEncoder):
    """An `EncoderContainer` made of an engine in this process. Create it on the event loop."""

    def __init__(self, engine: EncoderEngine) -> None:
        super().__init__(EncoderPort(engine), engine)
