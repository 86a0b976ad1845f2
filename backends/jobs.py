"""A job on its way through the driver: the line it waits in for a slot, what the driver is told
about it, and its outputs on their way to the reader.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from backends.banned_strings import BannedStrings
from backends.constraints.matcher import Matcher
from backends.errors import BackendError
from backends.protocol import (
    Cause,
    Ended,
    Generation,
    ModelInfo,
    Output,
    Piece,
    PromptProgress,
    Scored,
)
from backends.transcript import Transcript


class Mailbox:
    """One job's outputs on the event loop's side. Pieces that nobody fetched yet are joined into
    one; while nothing waits here and the reader does, `take` may have a piece first (see
    `protocol.Outputs.offer`).

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

    def put(self, output: Output | BackendError) -> None:
        """Called on the event loop's thread, by the driver's one call per step."""
        if self._last is not None:  # the reader is going to hear of a mistake of its own
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
        """Whether the piece has gone. What goes wrong is for the reader to hear, not for the other
        jobs of this step.
        """
        try:
            if take(piece):
                return True
            self._pieces.append(piece)
        except Exception as error:  # noqa: BLE001 - see above
            self._last = error
        return False

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
    """Put each into its mailbox, on the event loop's thread."""
    for mailbox, output in outputs:
        mailbox.put(output)


class JobOutputs:
    """See `protocol.Outputs`. Who iterates gets the mailbox itself, for it is the hot path."""

    def __init__(self, mailbox: Mailbox, stop: Callable[[], None]) -> None:
        self._mailbox = mailbox
        self.stop = stop

    def __aiter__(self) -> AsyncIterator[Output]:
        return self._mailbox

    def __anext__(self) -> Awaitable[Output]:
        return self._mailbox.__anext__()

    def offer(self, take: Callable[[Piece], bool]) -> None:
        """See `protocol.Outputs.offer`."""
        self._mailbox.take = take


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
        """Nobody waits any more; who did."""
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
        self.request = -key if job.request is None else job.request  # whose turns in line it takes
        self.job = job
        self.mailbox = mailbox
        self.over = False
        self.prompt_tokens = len(job.prompt)
        self.transcript = Transcript(job, info.context_length - self.prompt_tokens)
        self.begun = False  # its first token has come
        self.banned: BannedStrings | None = None  # where the engine takes tokens back for us
        self.submitted = time.perf_counter()
        self.admitted = self.first_token = self.last_token = self.submitted

    def ended(self, cause: Cause, stop_string: str | None, cached_tokens: int) -> Ended:
        return Ended(
            cause=cause,
            stop_string=stop_string,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=cached_tokens,
            completion_tokens=self.transcript.completion_tokens,
            queued=self.admitted - self.submitted,
            prefill=self.first_token - self.admitted,
            decode=self.last_token - self.first_token,
        )


class Finish(msgspec.Struct, frozen=True):
    """A job has said enough; its `Ended` comes when it is gone."""

    running: DriverJob


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
        except Exception as error:  # noqa: BLE001 - whoever asked is to know
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
            if not asked.wanted():  # whoever asked has left
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

    def tell(done: object, error: BaseException | None) -> None:
        if future.done():  # nobody waits any more
            return
        if error is None:
            future.set_result(done)
        else:
            future.set_exception(error)

    def wanted() -> bool:
        return not future.done()

    return Asked(work, ready, wanted, lambda *said: call(lambda: tell(*said))), future
