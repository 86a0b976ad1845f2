"""The jobs and slots of a driver: the line for a slot, the handling of each token, and orders to
save and restore a slot's cache. All of it on the engine's thread.

Every engine has slots; one that can also save and restore a slot's cells has a `SlotKeeper`.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Generic, Protocol, TypeVar

import msgspec

from backends.contract.beginnings import Bytes, SavedSlot
from backends.contract.errors import BackendError, while_generating
from backends.contract.messages import (
    Answered,
    EraseSlot,
    Failure,
    ReadSlots,
    RestoreSlot,
    SaveSlot,
    SlotAnswer,
    SlotOrder,
    SlotStates,
    SlotTokens,
)
from backends.contract.protocol import (
    Ended,
    Generation,
    ModelInfo,
    Piece,
    SlotState,
    TokenLogprob,
)
from backends.engines.constraints import Matcher
from backends.engines.engine import (
    Engine,
    PutBack,
    Token,
)
from backends.engines.transcript import BannedStrings, Taken, Transcript, Verdict, Written
from config.values import alike

Job = TypeVar("Job")


class WaitingLine(Generic[Job]):
    """Round robin over owners, and over the requests of each: no job waits behind the hundred
    choices of another request, or the hundred requests of another key.
    """

    def __init__(self) -> None:
        # The jobs of each request of each owner; whose turn is next, first.
        self._owners: dict[str, dict[Hashable, deque[Job]]] = {}

    def __bool__(self) -> bool:
        return bool(self._owners)

    def __contains__(self, job: Job) -> bool:
        requests = (jobs for requests in self._owners.values() for jobs in requests.values())
        return any(job in jobs for jobs in requests)

    def join(self, owner: str, request: Hashable, job: Job) -> None:
        """`job` waits, behind those of its own `request`."""
        self._owners.setdefault(owner, {}).setdefault(request, deque()).append(job)

    def leave(self, owner: str, request: Hashable, job: Job) -> None:
        """`job` waits no more. Raises ValueError or KeyError where it doesn't wait."""
        requests = self._owners[owner]
        requests[request].remove(job)
        if not requests[request]:
            del requests[request]
        if not requests:
            del self._owners[owner]

    def leave_all(self) -> list[Job]:
        """Empty the line; returns the jobs that waited."""
        lines = [jobs for requests in self._owners.values() for jobs in requests.values()]
        self._owners.clear()
        return [job for jobs in lines for job in jobs]

    def next(self, computed: Iterable[str] = ()) -> Job:
        """The job whose turn it is; it leaves. `computed`: the owner of each job that has a slot.
        Whoever has the fewest is next; of equals the turns go round.
        """
        slots = Counter(computed)
        owner = min(self._owners, key=slots.__getitem__)
        requests = self._owners.pop(owner)
        request = next(iter(requests))
        jobs = requests.pop(request)
        job = jobs.popleft()
        if jobs:
            requests[request] = jobs
        if requests:
            self._owners[owner] = requests
        return job


class Turn(msgspec.Struct, Generic[Job], eq=False):
    """The jobs of one kind that wait, and are computed together."""

    kind: Hashable
    line: WaitingLine[Job]
    begun: bool = False


class Turns(Generic[Job]):
    """Jobs of several kinds, of which only those of one kind are computed together.

    Kinds take turns: first come, first served. While another kind waits, a turn that has begun
    takes no newcomers: they wait for the next of their kind, so every turn comes to an end.
    """

    def __init__(self) -> None:
        self._turns: deque[Turn[Job]] = deque()

    def join(self, kind: Hashable, owner: str, request: Hashable, job: Job) -> None:
        """`job` waits."""
        closed = len(self._turns) > 1 and self._turns[0].begun
        open_turns = islice(self._turns, int(closed), None)
        turn = next((turn for turn in open_turns if turn.kind == kind), None)
        if turn is None:
            turn = Turn(kind, WaitingLine())
            self._turns.append(turn)
        turn.line.join(owner, request, job)

    def leave(self, kind: Hashable, owner: str, request: Hashable, job: Job) -> None:
        """`job`, which waits, waits no more."""
        turn = next(turn for turn in self._turns if turn.kind == kind and job in turn.line)
        turn.line.leave(owner, request, job)
        if not turn.begun and not turn.line:
            self._turns.remove(turn)

    def leave_all(self) -> list[Job]:
        """Nobody waits any more; returns the jobs that waited."""
        left = [job for turn in self._turns for job in turn.line.leave_all()]
        self._turns.clear()
        return left

    def next(self, computed: Collection[str] = ()) -> Job | None:
        """The job that may begin now; it leaves. None: there is none. `computed`: see
        `WaitingLine.next`; all of these are of one kind.
        """
        while not computed and self._turns and not self._turns[0].line:
            self._turns.popleft()  # its last job is over
        if not self._turns or not self._turns[0].line:
            return None
        self._turns[0].begun = True
        return self._turns[0].line.next(computed)


class DriverJob:
    """One job on its way through the driver. Only the engine thread changes it."""

    def __init__(
        self, key: int, job: Generation, info: ModelInfo, matcher: Matcher | None = None
    ) -> None:
        self.key = key
        self.matcher = matcher  # of its constraint
        self.request = -key if job.request is None else job.request  # it shares turns in line
        self.adapters = info.adapter_scales(job.adapters)  # the kind of its turns
        self.job = job
        self.prompt_tokens = len(job.prompt)
        self.transcript = Transcript(job, info.context_length - self.prompt_tokens)
        self.begun = False  # its first token has come
        self.put_back: PutBack | None = None
        self.banned: BannedStrings | None = None  # where the engine takes tokens back for us
        self.drafted = self.accepted = 0  # tokens, see `Token`
        self.submitted = time.perf_counter()
        self.admitted = self.first_token = self.last_token = self.submitted

    def ended(self, written: Written, cached_tokens: int) -> Ended:
        assert written.cause is not None
        return alike(Ended, written)(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=cached_tokens,
            kept_tokens=min(self.put_back.tokens, cached_tokens) if self.put_back else 0,
            kept_in=self.put_back.tier if self.put_back else "",
            completion_tokens=self.transcript.completion_tokens,
            drafted_tokens=self.drafted,
            accepted_tokens=self.accepted,
            fault=self.matcher.let_go if self.matcher is not None else "",
            queued=self.admitted - self.submitted,
            prefill=self.first_token - self.admitted,
            decode=self.last_token - self.first_token,
        )


# What a job's next token leads to: its text, or that tokens are taken back, or the end. Between the
# engine's tokens and the transcript stand the strings that the answer may not hold and the grammar
# that it is held to (`constraints.Matcher`). All on the engine's thread.


def write(running: DriverJob, engine: Engine, token: Token, ahead: int) -> Written:
    """`ahead`: how many tokens of the job the engine has handed over behind this one. They are void
    where `Written.void` says so.
    """
    if running.job.max_tokens == 0:  # the prompt is computed, and no more is wanted
        return Written(cause="max_tokens")
    taken = _taken(running, engine, token.id, token.logprob)
    if running.banned is not None:
        return _carried_out(running, engine, running.banned.add(taken), ahead)
    written = running.transcript.add(taken)
    if written.cause is not None or (running.matcher is None and not written.force):
        return written
    return _followed(running, engine, written)


def _taken(
    running: DriverJob, engine: Engine, token: int, logprob: TokenLogprob | None = None
) -> Taken:
    """The grammar takes it, too, unless it ends the answer."""
    ends, matcher = engine.ends(token), running.matcher
    if matcher is not None and not ends:
        matcher.take(token)
    last = matcher is not None and matcher.stopped
    return Taken(token, engine.piece(token), logprob, ends, last)


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
        written = running.transcript.add(_taken(running, engine, token))
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
    back, banned = verdict.back, verdict.banned
    if written.force and (left or back or running.banned.holds):
        # Tokens behind the one after which something is forced are void.
        back, banned = left + back + running.banned.forget(), frozenset()
    if back:
        engine.rewind(running.key, back + ahead, banned)
        if running.matcher is not None:
            running.matcher.rewind(back)
    _force(running, engine, written.force)
    return Written(written.piece, void=True) if back else written


def _written(running: DriverJob, final: Sequence[Taken]) -> tuple[Written, int]:
    """All of `final`, up to the end or to where something is to be forced; how many are left."""
    pieces: list[Piece] = []
    written = Written()
    left = len(final)
    for taken in final:
        left -= 1
        written = running.transcript.add(taken)
        if written.piece is not None:
            pieces.append(written.piece)
        if written.cause is not None or written.force:
            break
    return msgspec.structs.replace(written, piece=_joined(pieces)), left


def _joined(outputs: Sequence[Piece | None]) -> Piece | None:
    pieces = [piece for piece in outputs if piece is not None]
    return Piece.joined(pieces) if pieces else None


def _force(running: DriverJob, engine: Engine, closing: Sequence[int]) -> None:
    """Force the transcript's tokens, and those that the grammar leaves no choice in."""
    forced = closing if running.matcher is None else running.matcher.force(closing)
    if forced:
        engine.force(running.key, forced)
        if running.banned is not None:
            running.banned.forced(len(forced))


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

    def restore(self, slot: int, data: Bytes) -> int:
        """In place of what is there; returns the tokens. Raises InvalidJob for what this model
        can't take.
        """
        ...

    def erase(self, slot: int) -> int:
        """Returns the tokens that are gone."""
        ...


class SlotOrders(msgspec.Struct, eq=False):
    """The orders that wait for their slot to be idle. All of it on the engine's thread."""

    _info: ModelInfo
    _active: Callable[[], Collection[DriverJob]]  # the jobs that the engine has, oldest first
    _keeper: SlotKeeper | None  # None only where `info.keeps_slots` is false: slots are read alone
    _tell: Callable[[Answered], None]
    open: dict[int, SlotOrder] = {}  # by their numbers

    def join(self, order: SlotOrder) -> None:
        """It is carried out when its time has come."""
        self.open[order.number] = order

    def withdraw(self, number: int) -> None:
        """Who gave it has left."""
        self.open.pop(number, None)

    def carry_out_ready(self) -> None:
        """Those whose time has come. Raises nothing."""
        for number, order in tuple(self.open.items()):
            if self._is_ready(order):
                del self.open[number]
                self._tell(Answered(number, self._answer(order)))

    def give_up(self, error: BackendError) -> None:
        """None of them will be carried out."""
        for number in self.open:
            self._tell(Answered(number, Failure.of(error)))
        self.open.clear()

    def _is_ready(self, order: SlotOrder) -> bool:
        if isinstance(order, ReadSlots) or self._keeper is None:
            return True
        return order.slot not in self._keeper.places().values()

    def _answer(self, order: SlotOrder) -> SlotAnswer | Failure:
        try:
            if isinstance(order, ReadSlots):
                return SlotStates(self._states())
            assert self._keeper is not None, "the other end gives no such orders"
            match order:
                case SaveSlot(slot=slot):
                    return self._keeper.save(slot)
                case RestoreSlot(slot=slot, data=data):
                    return SlotTokens(self._keeper.restore(slot, data))
                case EraseSlot(slot=slot):
                    return SlotTokens(self._keeper.erase(slot))
        except Exception as error:  # noqa: BLE001 - raised where the order was given
            return Failure.of(while_generating(error, "the engine"))

    def _states(self) -> tuple[SlotState, ...]:
        active, cells = self._active(), self._keeper.cells() if self._keeper else None
        in_order = {job.key: place for place, job in enumerate(active)}
        places = self._keeper.places() if self._keeper else in_order
        running = {places[job.key]: job for job in active if job.key in places}
        return tuple(
            _state(slot, cells[slot] if cells else None, running.get(slot))
            for slot in range(self._info.max_concurrent)
        )


def _state(slot: int, cells: int | None, running: DriverJob | None) -> SlotState:
    if running is None:
        return SlotState(id=slot, cells=cells)
    return SlotState(
        id=slot,
        cells=cells,
        task=running.key,
        job=msgspec.structs.replace(running.job, images=()),  # nobody looks at them
        prompt=running.prompt_tokens,
        generated=running.transcript.completion_tokens,
    )
