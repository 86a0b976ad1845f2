"""The thread that steps an encoder, and the engine's end of its container:
`backends.engines.driver` for models that read texts and write none.

A pass takes texts of all requests that wait, each in its turn, so that a long list delays no other
request. Texts of one request are encoded the longest first, since what is padded is wasted; its
vectors come in its own order.
"""

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol, TypeAlias

import msgspec

from backends.contract.encoder import EncoderInput
from backends.contract.errors import BackendError, GenerationFailed
from backends.contract.messages import Close, Command, Encode, Encoded, Failure, Leave, Left
from backends.contract.protocol import Tokenizing
from backends.engines.engine import Owned
from backends.engines.engine_thread import EngineThread, ThreadPort, closed
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
    """One request's inputs on their way. Only the engine's thread has it."""

    def __init__(self, key: int, inputs: Sequence[EncoderInput]) -> None:
        self.key = key
        self.inputs = inputs
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


class EncoderDriver(EngineThread[EncoderEngine, Encode | Leave]):
    """The thread of an engine that encodes."""

    def __init__(self, engine: EncoderEngine) -> None:
        super().__init__(engine, f"encoder-{engine.info.architecture}")
        self._jobs: deque[EncoderJob] = deque()
        self._rate = FIRST_GUESS
        self._thread.start()

    def _work(self) -> None:
        while self._open:
            self._take_commands()
            if self._jobs:
                self._step()

    def _give_up(self, reason: BackendError) -> None:
        self._fail(tuple(self._jobs), reason)

    def _refuse(self, command: Encode | Leave) -> None:
        match command:
            case Encode(key):
                self.tell(Encoded(key, failure=Failure.of(closed())))
            case Leave(key):
                self.tell(Left(key))

    def _take_commands(self) -> None:
        while self._open and (not self._jobs or not self._commands.empty()):
            match self._commands.get():
                case Encode(key) if self.failure is not None:
                    broken = GenerationFailed(self.failure)
                    self.tell(Encoded(key, failure=Failure.of(broken)))
                case Encode(key, inputs):
                    self._jobs.append(EncoderJob(key, inputs))
                case Leave(key):
                    self._drop([job for job in self._jobs if job.key == key])
                    self.tell(Left(key))
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
        ended = [job for job in dict.fromkeys(job for job, _ in rows) if not job.missing]
        for job in self._drop(ended):
            self.tell(Encoded(job.key, tuple(job.vectors)))

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
        for job in self._drop(jobs):
            self.tell(Encoded(job.key, failure=Failure.of(error)))

    def _drop(self, jobs: Sequence[EncoderJob]) -> Sequence[EncoderJob]:
        """Those that were there: at the end two threads may answer the rest."""
        dropped = []
        for job in jobs:
            with suppress(ValueError):
                self._jobs.remove(job)
                dropped.append(job)
        return dropped


class EncoderPort(ThreadPort):
    """The engine's end; see `backends.places.encoder_container`."""

    def send(self, command: Command) -> None:
        match command:
            case Encode() | Leave():
                self._thread.put(command)
            case Close():
                self._close()
            case _:
                raise AssertionError("this model generates nothing")


class DrivenEncoder(PortEncoder):
    """An `EncoderContainer` made of an engine in this process. Create it on the event loop."""

    def __init__(self, engine: EncoderEngine) -> None:
        super().__init__(EncoderPort(engine, EncoderDriver(engine)), engine)
