"""A job in the driver: the line for a slot, the handling of each token, and the queue of outputs to
the reader.

An engine's slots: the state of each, and its cache saved to a file and restored.

`Slots` is the gateway's interface to them. Every engine has slots; an engine that can also save and
restore a slot's cells has a `SlotKeeper`.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import msgspec

from backends.constraints import Matcher
from backends.engine import Engine, JobFailed, PromptRead, PromptScored, StepResult, Token
from backends.errors import BackendError, InvalidJob, NotAble
from backends.protocol import (
    Ended,
    Generation,
    ModelInfo,
    Output,
    Piece,
    PromptProgress,
    Scored,
)
from backends.transcript import BannedStrings, Taken, Transcript, Verdict, Written


class Mailbox:
    """One job's outputs on the event loop's side. Pieces that were not fetched yet are joined into
    one; while nothing waits here and the reader does, `take` may have a piece first, and `flush` is
    called at the step's end (see `protocol.Outputs.offer`).

    The loop is asyncio's own (the server runs on it) and this is the hottest await there is, so it
    waits on a bare future: an anyio.Event costs several times as much.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._before: deque[Scored | PromptProgress] = deque()  # all of it comes before the pieces
        self._pieces: list[Piece] = []
        self._last: Ended | Exception | None = None
        self._closed = False
        self._reader: asyncio.Future[None] | None = None
        self.take: Callable[[Piece], bool] | None = None
        self.flush: Callable[[], None] | None = None

    def put(self, output: Output | BackendError) -> None:
        """Called on the event loop's thread, by the driver's one call per step."""
        if self._last is not None:  # the reader is about to get an exception of its own
            return
        reader = self._reader
        awaited = reader is not None and not reader.done()
        if isinstance(output, Piece):
            if not awaited or self.take is None:
                self._pieces.append(output)
            elif self._taken(self.take, output):
                return
        elif isinstance(output, Scored | PromptProgress):
            self._before.append(output)
        else:
            self._last = output
        if awaited:
            reader.set_result(None)  # type: ignore[union-attr]

    def _taken(self, take: Callable[[Piece], bool], piece: Piece) -> bool:
        """Whether the piece has gone. An exception is raised in the reader, not in the other jobs
        of this step.
        """
        try:
            if take(piece):
                return True
            self._pieces.append(piece)
        except Exception as error:  # noqa: BLE001 - see above
            self._last = error
        return False

    def send(self) -> None:
        """The step's outputs are all in their mailboxes: what was taken of these goes on. Where it
        doesn't the answer has a hole: what came behind that is worth nothing, its end neither.
        """
        if self.flush is None:
            return
        try:
            self.flush()
        except Exception as error:  # noqa: BLE001 - as in `_taken`
            self._pieces.clear()
            if not isinstance(self._last, Exception):  # which came first, and may be why
                self._last = error
            if self._reader is not None and not self._reader.done():
                self._reader.set_result(None)

    def __aiter__(self) -> AsyncIterator[Output]:
        return self

    async def __anext__(self) -> Output:
        if self._closed:
            raise StopAsyncIteration
        while not self._pieces and self._last is None and not self._before:
            self._reader = self._loop.create_future()
            await self._reader
        if self._before:
            return self._before.popleft()
        if self._pieces:
            return self._take_pieces()
        self._closed = True
        if isinstance(self._last, Exception):
            raise self._last
        assert self._last is not None
        return self._last

    def _take_pieces(self) -> Piece:
        pieces, self._pieces = self._pieces, []
        if len(pieces) == 1:
            return pieces[0]
        return Piece(
            "".join(piece.text for piece in pieces),
            tuple(token for piece in pieces for token in piece.tokens),
            tuple(logprob for piece in pieces for logprob in piece.logprobs),
            tuple(pieces),
        )


def deliver(outputs: Sequence[tuple[Mailbox, Output | BackendError]]) -> None:
    """Put each into its mailbox, on the event loop's thread. What goes straight to connections is
    sent when all are there: Python and the kernel in turns would take each other's place in the
    caches at every token (benchmarks/results/diary.md).
    """
    for mailbox, output in outputs:
        mailbox.put(output)
    for mailbox, _ in outputs:
        mailbox.send()


class JobOutputs:
    """See `protocol.Outputs`. Iteration is over the mailbox itself, for it is the hot path."""

    def __init__(self, mailbox: Mailbox, stop: Callable[[], None]) -> None:
        self._mailbox = mailbox
        self.stop = stop

    def __aiter__(self) -> AsyncIterator[Output]:
        return self._mailbox

    def __anext__(self) -> Awaitable[Output]:
        return self._mailbox.__anext__()

    def offer(self, take: Callable[[Piece], bool], flush: Callable[[], None]) -> None:
        """See `protocol.Outputs.offer`."""
        self._mailbox.take = take
        self._mailbox.flush = flush


Job = TypeVar("Job")


class WaitingLine(Generic[Job]):
    """Round robin over requests: no job waits behind the hundred choices of another request."""

    def __init__(self) -> None:
        self._jobs: dict[Hashable, deque[Job]] = {}  # of each request; whose turn is next, first

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def join(self, request: Hashable, job: Job) -> None:
        """`job` waits, behind those of its own `request`."""
        self._jobs.setdefault(request, deque()).append(job)

    def leave(self, request: Hashable, job: Job) -> None:
        """`job` waits no more. Raises ValueError or KeyError where it doesn't wait."""
        jobs = self._jobs[request]
        jobs.remove(job)
        if not jobs:
            del self._jobs[request]

    def leave_all(self) -> list[Job]:
        """Empty the line; returns the jobs that waited."""
        left = [job for jobs in self._jobs.values() for job in jobs]
        self._jobs.clear()
        return left

    def next(self) -> Job:
        """The job whose turn it is; it leaves. The next turn is another request's."""
        request = next(iter(self._jobs))
        jobs = self._jobs.pop(request)
        job = jobs.popleft()
        if jobs:
            self._jobs[request] = jobs
        return job


class DriverJob:
    """One job on its way through the driver. Only the engine thread changes it."""

    def __init__(
        self,
        key: int,
        job: Generation,
        mailbox: Mailbox,
        info: ModelInfo,
        matcher: Matcher | None = None,
    ) -> None:
        self.key = key
        self.matcher = matcher  # of its constraint
        self.request = -key if job.request is None else job.request  # it shares turns in line
        self.job = job
        self.mailbox = mailbox
        self.over = False
        self.prompt_tokens = len(job.prompt)
        self.transcript = Transcript(job, info.context_length - self.prompt_tokens)
        self.begun = False  # its first token has come
        self.banned: BannedStrings | None = None  # where the engine takes tokens back for us
        self.submitted = time.perf_counter()
        self.admitted = self.first_token = self.last_token = self.submitted

    @property
    def completion_tokens(self) -> int:
        return self.transcript.completion_tokens

    def ended(self, written: Written, cached_tokens: int) -> Ended:
        assert written.cause is not None
        return Ended(
            cause=written.cause,
            stop_string=written.stop_string,
            token=written.token,
            logprob=written.logprob,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=cached_tokens,
            completion_tokens=self.completion_tokens,
            queued=self.admitted - self.submitted,
            prefill=self.first_token - self.admitted,
            decode=self.last_token - self.first_token,
        )


class Finish(msgspec.Struct, frozen=True):
    """A job is to end; its `Ended` comes when it is released."""

    running: DriverJob


# ----------------------------------------------------------------------------------------- tokens
# What a job's next token leads to: its text, or that tokens are taken back, or the end. Between the
# engine's tokens and the transcript stand the strings that the answer may not hold
# (`banned_strings`) and the grammar that it is held to (`constraints.matcher`). All on the engine's
# thread.


def tokens_left(results: Sequence[StepResult]) -> Counter[int] | None:
    """How many tokens each job has in `results`; None where none has more than one, as in nearly
    every step.
    """
    if len({result.key for result in results}) == len(results):
        return None
    return Counter(result.key for result in results if isinstance(result, Token))


def output_of(result: PromptScored | PromptRead | JobFailed) -> Output | BackendError:
    """The output that the job's reader gets."""
    match result:
        case PromptScored(scored=scored):
            return scored
        case PromptRead(progress=progress):
            return progress
        case JobFailed(error=error):
            return error


def write(running: DriverJob, engine: Engine, token: Token, ahead: int) -> Written:
    """`ahead`: how many tokens of the job the engine has handed over behind this one. They are void
    where `Written.void` says so.
    """
    ends, matcher = engine.ends(token.id), running.matcher
    if matcher is not None and not ends:
        matcher.take(token.id)
    last = matcher is not None and matcher.stopped
    text = engine.piece(token.id)
    if running.banned is None:
        written = running.transcript.add(token.id, text, token.logprob, ends=ends, last=last)
        return written if written.cause is not None else _followed(running, engine, written)
    verdict = running.banned.add(Taken(token.id, text, token.logprob, ends, last))
    return _carried_out(running, engine, verdict, ahead)


def _followed(running: DriverJob, engine: Engine, written: Written) -> Written:
    """With what must come next. Where nothing can follow that, with all of it and the end: there is
    nothing to compute.
    """
    matcher = running.matcher
    forced = written.force if matcher is None else matcher.force(written.force)
    if not forced:
        return written
    if matcher is None or not matcher.complete:
        engine.force(running.key, forced)
        return written
    pieces = [written.piece]
    for token in forced:
        matcher.take(token)
        text, ends, last = engine.piece(token), engine.ends(token), matcher.stopped
        written = running.transcript.add(token, text, None, ends=ends, last=last)
        pieces.append(written.piece)
        if written.cause is not None:
            break
    return msgspec.structs.replace(written, piece=_joined(pieces), force=())


def _carried_out(running: DriverJob, engine: Engine, verdict: Verdict, ahead: int) -> Written:
    assert running.banned is not None
    written, left = _written(running, verdict.final)
    if written.cause is not None:
        return written
    if verdict.stop is not None:
        return Written(written.piece, "stop_string", verdict.stop)
    if written.force and (left or verdict.back or running.banned.holds):
        # Tokens behind the one after which something is forced are void.
        back = left + verdict.back + running.banned.forget()
        _take_back(running, engine, back, ahead, frozenset())
    elif verdict.back:
        _take_back(running, engine, verdict.back, ahead, verdict.banned)
    else:
        _force(running, engine, written.force)
        return written
    _force(running, engine, written.force)
    return Written(written.piece, void=True)


def _written(running: DriverJob, final: Sequence[Taken]) -> tuple[Written, int]:
    """All of `final`, up to the end or to where something is to be forced; how many are left."""
    pieces: list[Piece] = []
    written = Written()
    left = len(final)
    for taken in final:
        left -= 1
        written = running.transcript.add(
            taken.token, taken.text, taken.logprob, ends=taken.ends, last=taken.last
        )
        if written.piece is not None:
            pieces.append(written.piece)
        if written.cause is not None or written.force:
            break
    return msgspec.structs.replace(written, piece=_joined(pieces)), left


def _joined(outputs: Sequence[Piece | None]) -> Piece | None:
    pieces = [piece for piece in outputs if piece is not None]
    if not pieces:
        return None
    return Piece(
        "".join(piece.text for piece in pieces),
        tuple(token for piece in pieces for token in piece.tokens),
        tuple(logprob for piece in pieces for logprob in piece.logprobs),
    )


def _take_back(
    running: DriverJob, engine: Engine, count: int, ahead: int, banned: frozenset[int]
) -> None:
    engine.rewind(running.key, count + ahead, banned)
    if running.matcher is not None:
        running.matcher.rewind(count)


def _force(running: DriverJob, engine: Engine, closing: Sequence[int]) -> None:
    """Force the transcript's tokens, and those that the grammar leaves no choice in."""
    forced = closing if running.matcher is None else running.matcher.force(closing)
    if forced:
        engine.force(running.key, forced)
        if running.banned is not None:
            running.banned.forced(len(forced))


T = TypeVar("T")


class SlotState(msgspec.Struct, frozen=True, kw_only=True):
    """A slot at this moment. Counts are tokens."""

    id: int
    cells: int | None = None  # whose cells it holds; None: its engine doesn't report it
    task: int | None = None  # the job that is computed in it; None: it is idle
    job: Generation | None = None
    prompt: int = 0
    generated: int = 0


class SavedSlot(msgspec.Struct, frozen=True):
    """The cells of a slot: of how many tokens, and as bytes that the same model takes back."""

    tokens: int
    data: bytes | bytearray


class SlotKeeper(Protocol):
    """What an engine with a cache by slots can do with them. Called by its own thread alone, and
    never for a slot that is busy, except `cells` and `places`.
    """

    def cells(self) -> Sequence[int]:
        """How many tokens' cells each slot holds."""
        ...

    def places(self) -> Mapping[int, int]:
        """Where each job that has begun is computed: its key, and its slot."""
        ...

    def save(self, slot: int) -> SavedSlot:
        """Raises InvalidJob."""
        ...

    def restore(self, slot: int, data: bytes) -> int:
        """In place of what is there; returns the tokens. Raises InvalidJob for what this model
        can't take.
        """
        ...

    def erase(self, slot: int) -> int:
        """Returns the tokens that are gone."""
        ...


class ActiveJob(Protocol):
    """A job that an engine has, as its driver keeps it. Counts are tokens."""

    @property
    def key(self) -> int: ...

    @property
    def job(self) -> Generation: ...

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def completion_tokens(self) -> int: ...


Work: TypeAlias = Callable[[], T]
Ready: TypeAlias = Callable[[], bool]
Active: TypeAlias = Callable[[], Sequence[ActiveJob]]


class Ask(Protocol):
    """Runs `work` on the engine's thread once `ready` says so; raises what it raises."""

    def __call__(self, work: Work[Any], ready: Ready) -> Awaitable[Any]: ...


class Slots:
    """The slots of one container."""

    def __init__(
        self, info: ModelInfo, ask: Ask, active: Active, keeper: SlotKeeper | None
    ) -> None:
        """`active`: the jobs that the engine has, oldest first; for its thread."""
        self._info = info
        self._ask = ask
        self._active = active
        self._keeper = keeper

    async def states(self) -> Sequence[SlotState]:
        """All of them, in order. Raises BackendError."""
        found: Sequence[SlotState] = await self._ask(self._states, _always)
        return found

    async def save(self, slot: int) -> SavedSlot:
        """The cells of a slot, once it is idle. Raises BackendError."""
        keeper = self._kept(slot)
        saved: SavedSlot = await self._ask(lambda: keeper.save(slot), self._idle(keeper, slot))
        return saved

    async def restore(self, slot: int, data: bytes) -> int:
        """Put back what `save` gave, once the slot is idle; its tokens. Raises BackendError."""
        keeper = self._kept(slot)
        idle = self._idle(keeper, slot)
        restored: int = await self._ask(lambda: keeper.restore(slot, data), idle)
        return restored

    async def erase(self, slot: int) -> int:
        """Forget a slot's cells, once it is idle; the tokens they held. Raises BackendError."""
        keeper = self._kept(slot)
        erased: int = await self._ask(lambda: keeper.erase(slot), self._idle(keeper, slot))
        return erased

    def _kept(self, slot: int) -> SlotKeeper:
        if self._keeper is None:
            raise NotAble(f"{self._info.backend} can't save, restore or erase its slots.")
        if not 0 <= slot < self._info.max_concurrent:
            last = self._info.max_concurrent - 1
            raise InvalidJob(f"The model has the slots 0 to {last}, not {slot}.", "id_slot")
        return self._keeper

    def _idle(self, keeper: SlotKeeper, slot: int) -> Ready:
        return lambda: slot not in keeper.places().values()

    def _states(self) -> Sequence[SlotState]:
        places = self._keeper.places() if self._keeper else _in_order(self._active())
        cells = self._keeper.cells() if self._keeper else None
        running = {places[job.key]: job for job in self._active() if job.key in places}
        return tuple(
            _state(slot, cells[slot] if cells else None, running.get(slot))
            for slot in range(self._info.max_concurrent)
        )


def _in_order(active: Sequence[ActiveJob]) -> Mapping[int, int]:
    return {job.key: place for place, job in enumerate(active)}


def _state(slot: int, cells: int | None, running: ActiveJob | None) -> SlotState:
    if running is None:
        return SlotState(id=slot, cells=cells)
    return SlotState(
        id=slot,
        cells=cells,
        task=running.key,
        job=running.job,
        prompt=running.prompt_tokens,
        generated=running.completion_tokens,
    )


def _always() -> bool:
    return True
