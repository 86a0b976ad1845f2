"""The gateway's end of a container that generates: it sends messages to a `Port`, and hands what
comes back to whoever waits for it. Knows no engine.

Nobody asks the other end and waits in between but for a job's leaving, a grammar and a slot: texts
become tokens here, and why the model broke has been reported.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TypeVar

import anyio
import numpy as np

from backends.contract.beginnings import Beginnings, SavedSlot
from backends.contract.bounds import GENERATION, bounded, check_choice, check_tokens
from backends.contract.errors import CLOSED, GenerationFailed, InvalidJob, NotAble
from backends.contract.messages import (
    Answered,
    Began,
    Begin,
    Broke,
    Close,
    Closed,
    EraseSlot,
    Event,
    Failure,
    Finish,
    Keep,
    KeptAnswered,
    KeptAsked,
    Leave,
    Left,
    Lost,
    Outcomes,
    Port,
    ReadSlots,
    RestoreSlot,
    SaveSlot,
    SlotAnswer,
    SlotOrder,
    SlotStates,
    SlotTokens,
    Withdraw,
)
from backends.contract.protocol import (
    Ended,
    Generation,
    LoadedModel,
    ModelInfo,
    Output,
    Piece,
    PromptProgress,
    Scored,
    SlotState,
    Tokenizer,
    Tokenizing,
)
from backends.machine.futures import settle
from backends.places.kept.desk import BeginningsDesk

Answer = TypeVar("Answer", bound=SlotAnswer)


ENOUGH_STEPS = 16  # of an answer, to tell how fast its model is


class Mailbox:
    """One job's outputs on the event loop's side, see `protocol.Outputs`. Pieces that were not
    fetched yet are joined into one. `over`: nothing more comes of the job.

    The loop is asyncio's own (the server runs on it) and this is the hottest await there is, so it
    waits on a bare future: an anyio.Event costs several times as much.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, finish: Callable[[], None]) -> None:
        """`finish` asks the other end to drop the job."""
        self._loop = loop
        self._finish = finish
        self._before: deque[Scored | PromptProgress] = deque()  # all of it comes before the pieces
        self._pieces: list[Piece] = []
        self._last: Ended | Exception | None = None
        self.alone = True  # no other job was there meanwhile
        self._closed = False
        self._begun = False
        self.over = False
        self._reader: asyncio.Future[None] | None = None

    def put(self, output: Output | Failure) -> None:
        """On the event loop's thread."""
        if isinstance(output, Piece):  # nearly every output
            self._pieces.append(output)
        elif isinstance(output, Scored | PromptProgress):
            self._before.append(output)
        else:
            self.over = True
            self._last = output.error() if isinstance(output, Failure) else output
        if self._reader is not None:
            self._wake()

    def stop(self) -> None:
        """See `protocol.Outputs.stop`."""
        if not self.over:
            self._finish()

    @property
    def pace(self) -> float | None:
        """Steps a second; None where others were computed beside it, or they were too few."""
        ended = self._last
        if not self.alone or not isinstance(ended, Ended):
            return None
        steps = ended.completion_tokens - ended.accepted_tokens - 1
        return steps / ended.decode if steps >= ENOUGH_STEPS and ended.decode > 0 else None

    def note(self, event: Began | Left) -> None:
        """The job is in line, or the device no longer works for it."""
        self._begun = True
        self.over = self.over or isinstance(event, Left)
        self._wake()

    def let_go(self) -> None:
        """Nobody reads any more. Whoever did has this mailbox, and an exception has the frames that
        it was raised in: all of the answer would stay until a full collection of garbage.
        """
        if isinstance(self._last, Exception):
            self._last = None

    async def begun(self) -> None:
        """Waits until the job is in line. Raises what it failed with."""
        while not (self._begun or self.over):
            await self._news()
        if isinstance(self._last, Exception):
            raise self._last

    async def left(self) -> None:
        """Waits until the job is over."""
        while not self.over:
            await self._news()

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and not reader.done():
            reader.set_result(None)

    async def _news(self) -> None:
        self._reader = self._loop.create_future()
        await self._reader

    def __aiter__(self) -> AsyncIterator[Output]:
        return self

    async def __anext__(self) -> Output:
        if self._closed:
            raise StopAsyncIteration
        while not self._pieces and self._last is None and not self._before:
            await self._news()
        if self._before:
            return self._before.popleft()
        if self._pieces:
            pieces, self._pieces = self._pieces, []
            return pieces[0] if len(pieces) == 1 else Piece.joined(pieces, parts=pieces)
        self._closed = True
        if isinstance(self._last, Exception):
            raise self._last
        assert self._last is not None
        return self._last


class Mailboxes(dict[int, Mailbox]):
    """Those of all jobs, by their keys; none of a job whose reader is gone."""

    pace: float | None = None  # steps a second of the last job that was alone

    @contextmanager
    def opened(self, key: int, finish: Callable[[], None]) -> Iterator[Mailbox]:
        """The mailbox of a job, for as long as the job is known here."""
        mailbox = Mailbox(asyncio.get_running_loop(), finish)
        mailbox.alone = not self
        for other in self.values():
            other.alone = False
        self[key] = mailbox
        try:
            yield mailbox
        finally:
            del self[key]
            self.pace = mailbox.pace or self.pace
            mailbox.let_go()

    def lose(self, failure: Failure) -> None:
        """Nothing more comes of any job."""
        self.deliver([(key, failure) for key, mailbox in self.items() if not mailbox.over])

    def deliver(self, outputs: Sequence[tuple[int, Output | Failure]]) -> None:
        """Put each into its mailbox, on the event loop's thread."""
        for key, output in outputs:
            if (mailbox := self.get(key)) is not None:
                mailbox.put(output)


class PortSlots:
    """See `protocol.Slots`: orders to the other end, of which each is answered by its number."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Future[SlotAnswer]] = {}
        self._lost: Failure | None = None

    async def states(self) -> Sequence[SlotState]:
        """See `protocol.Slots.states`."""
        return (await self._give(ReadSlots, SlotStates)).states

    async def save(self, slot: int) -> SavedSlot:
        """See `protocol.Slots.save`."""
        self._check(slot)
        return await self._give(lambda number: SaveSlot(number, slot), SavedSlot)

    async def restore(self, slot: int, data: bytes) -> int:
        """See `protocol.Slots.restore`."""
        self._check(slot)
        cells = np.frombuffer(data, np.uint8)
        order = await self._give(lambda number: RestoreSlot(number, slot, cells), SlotTokens)
        return order.tokens

    async def erase(self, slot: int) -> int:
        """See `protocol.Slots.erase`."""
        self._check(slot)
        return (await self._give(lambda number: EraseSlot(number, slot), SlotTokens)).tokens

    def _check(self, slot: int) -> None:
        info = self._port.info
        if not info.keeps_slots:
            raise NotAble(f"{info.backend} can't save, restore or erase its slots.")
        if fault := GENERATION["slot"].fault_for(slot, info):
            raise InvalidJob(fault, "id_slot")

    async def _give(self, order: Callable[[int], SlotOrder], kind: type[Answer]) -> Answer:
        """The answer to the order that has the number it gets. Raises BackendError."""
        if self._lost is not None:
            raise self._lost.error()
        number = next(self._numbers)
        answer: asyncio.Future[SlotAnswer] = asyncio.get_running_loop().create_future()
        self._open[number] = answer
        self._port.send(order(number))
        try:
            given = await answer
            if not isinstance(given, kind):
                raise GenerationFailed("the model's process answered what it was not asked")
            return given
        finally:
            del self._open[number]
            if answer.cancelled():
                self._port.send(Withdraw(number))

    def answer(self, answered: Answered) -> None:
        """Hand it to who gave the order, unless it has left."""
        if (future := self._open.get(answered.number)) is not None:
            answer = answered.answer
            settle(future, answer.error() if isinstance(answer, Failure) else answer)

    def lose(self, failure: Failure) -> None:
        """No order will be answered any more."""
        self._lost = failure
        for number in tuple(self._open):
            self.answer(Answered(number, failure))


class PortEnd(LoadedModel):
    """What both kinds of containers whose engine is behind a port have in common: its end, and what
    reads texts. Create it on the event loop.
    """

    failure: str | None = None
    is_unreached = False

    def __init__(self, port: Port, tokenizer: Tokenizing | Tokenizer) -> None:
        """`tokenizer`: the model's, in this process."""
        self.port = port
        self._tokenizer = tokenizer
        self._keys = itertools.count(1)
        self._close_sent = False
        self._closed = anyio.Event()
        self._lost: Failure | None = None
        self._on_failure: Callable[[], None] = lambda: None
        port.connect(self._receive)

    @property
    def info(self) -> ModelInfo:
        return self.port.info

    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
        return self._tokenizer.tokenize(text, special=special)

    def detokenize(self, tokens: Sequence[int]) -> str:
        check_tokens(tokens, self.info, "prompt")
        return self._tokenizer.detokenize(tokens)

    def on_failure(self, tell: Callable[[], None]) -> None:
        """See `Leasable.on_failure`."""
        self._on_failure = tell

    async def aclose(self) -> None:
        """See `Leasable.aclose`."""
        if not self._close_sent:
            self._close_sent = True
            if self._lost is None:
                self.port.send(Close())
            await self._closed.wait()

    def _receive(self, event: Event) -> None:
        match event:
            case Broke(reason):
                self._fail(reason)
            case Lost(reason, unreached):
                self.is_unreached = unreached
                self._fail(reason)
                self._end(reason)
            case Closed():
                self._end(CLOSED)
            case _:
                raise AssertionError(f"{type(event).__name__} of a model of another kind")

    def _fail(self, reason: str) -> None:
        """Reported before the errors of the jobs that it ends."""
        self.failure = reason
        self._on_failure()

    def _end(self, reason: str) -> None:
        """There is nobody at the other end any more, and the device is free."""
        self._lost = Failure("EngineLost", reason)
        self._lose(self._lost)
        self._on_failure = lambda: None  # whoever is told of it has this container
        self._closed.set()

    def _lose(self, failure: Failure) -> None:
        """Nothing more comes to those who wait."""


class PortContainer(PortEnd):
    """A `ModelContainer` whose engine is behind a port."""

    def __init__(self, port: Port, tokenizer: Tokenizer) -> None:
        self._pieces = tokenizer.piece
        self._ends = tokenizer.ends
        self._mailboxes = Mailboxes()
        self.slots = PortSlots(port)
        self._desk: BeginningsDesk | None = None
        super().__init__(port, tokenizer)

    @property
    def pace(self) -> float | None:
        return self._mailboxes.pace

    def pieces(self, tokens: Sequence[int]) -> Sequence[bytes]:
        check_tokens(tokens, self.info, "tokens")
        return [self._pieces(token) for token in tokens]

    @asynccontextmanager
    async def generate(self, job: Generation) -> AsyncIterator[Mailbox]:
        """See `ModelContainer.generate`."""
        job = bounded(job, self.info)
        if job.prompt_logprobs is not None and (job.images or not self.info.scores_prompts):
            backend = self.info.backend
            raise InvalidJob(f"{backend} returns no log probabilities of this prompt", "logprobs")
        check_choice(job, self.info, self._ends)
        if self._lost is not None:
            raise self._lost.error()
        key = next(self._keys)
        with self._mailboxes.opened(key, lambda: self.port.send(Finish(key))) as mailbox:
            self.port.send(Begin(key, job))
            try:
                if job.constraint is not None:
                    await mailbox.begun()
                yield mailbox
            finally:
                if not mailbox.over:
                    self.port.send(Leave(key))
                    with anyio.CancelScope(shield=True):
                        await mailbox.left()

    def keep_in(self, beginnings: Beginnings) -> None:
        """See `Leasable.keep_in`."""
        loop = asyncio.get_running_loop()

        def send(answered: KeptAnswered) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self.port.send, answered)

        self._desk = BeginningsDesk(beginnings, send)
        self.port.send(Keep())

    def _receive(self, event: Event) -> None:
        match event:
            case Outcomes(outputs):
                self._mailboxes.deliver(outputs)
            case Began(key) | Left(key):
                if (mailbox := self._mailboxes.get(key)) is not None:
                    mailbox.note(event)
            case Answered():
                self.slots.answer(event)
            case KeptAsked():
                if self._desk is not None:
                    self._desk.ask(event)
            case _:
                super()._receive(event)

    def _lose(self, failure: Failure) -> None:
        if self._desk is not None:
            self._desk.close()
            self._desk = None  # which has this container, too
        self.slots.lose(failure)
        self._mailboxes.lose(failure)
