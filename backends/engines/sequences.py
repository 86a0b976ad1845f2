"""What engines with a KV cache of their own do alike: one job's sequence, and the policy of what it
waits for, what is forced into it, and what is kept of it. It knows no library.
"""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from backends.contract.beginnings import (
    Beginnings,
    Coming,
    Found,
    NothingKept,
    Pace,
    Taken,
    common_length,
)
from backends.contract.protocol import Candidate, Generation, Scored, TokenLogprob
from backends.engines.cells import WORTHWHILE, Placement, Slot
from backends.engines.constraints import Mask
from backends.engines.engine import PromptRead, PromptScored, PutBack, Token
from backends.engines.prefill import Prefill
from backends.engines.snapshots import SnapshotBudget, SnapshotMarks, places
from backends.engines.speculation import Answering, Speculation


class Filling(Protocol):
    """A slot that is being filled with what was taken out once."""

    @property
    def is_over(self) -> bool:
        """All of it is there."""
        ...

    def put(self) -> bool:
        """The next piece. False: there is no room for it now, or it can't be."""
        ...


class Restoring(msgspec.Struct):
    """A beginning that is being put back for a job. `seconds`: that it has taken so far."""

    found: Found
    filling: Filling
    parted: int  # see `Placement`
    seconds: float = 0.0


class JobSequence(ABC):
    """`tokens` has one number for each cell of the KV cache; `fed` of them are in it."""

    def __init__(self, key: int, job: Generation, tokens: list[int]) -> None:
        self.key = key
        self.job = job
        self.tokens = tokens
        self.prompt_tokens = len(tokens)
        self.fed = 0
        self.cached = 0
        # Tokens of the prompt whose log probabilities are reported, or not requested.
        self.scored = self.prompt_tokens if job.prompt_logprobs is None else 0
        # Of what was drafted, the tokens whose cells stand behind the fed ones.
        self.drafted: deque[int] = deque()
        self.marks = SnapshotMarks(len(tokens), taken_back=bool(job.sampling.banned_strings))
        self.mask: Mask | None = None  # which tokens may be drawn; None: all
        self.slot: Slot | None = None  # None: not started, or its cells were taken away
        self.restoring: Restoring | None = None  # what is being put back into its slot

    @abstractmethod
    def accept(self, token: int) -> None:
        """The sampler counts `token`, which it didn't draw."""

    @property
    def left(self) -> int:
        return len(self.tokens) - self.fed

    @property
    def scoring(self) -> bool:
        return self.scored < self.prompt_tokens

    @property
    def known(self) -> list[int]:
        """The tokens whose cells may be taken over. Cells have no log probabilities: where those
        are requested the prompt is computed again from the first token that has none yet.
        """
        return self.tokens[: max(1, self.scored)] if self.scoring else self.tokens

    @property
    def until(self) -> int:
        """How many of the cells that are left may be computed together."""
        return self.marks.room(self.fed, self.left)

    @property
    def useful(self) -> int:
        """How many tokens may be drafted behind its newest one: what is drawn last needs none."""
        if self.job.max_tokens is None:
            return len(self.tokens)
        return self.job.max_tokens - (len(self.tokens) - self.prompt_tokens) - 1

    def start(self, slot: Slot, keep: int) -> None:
        """In `slot`, where the first `keep` cells are computed already."""
        slot.busy = True
        self.slot, self.fed = slot, keep
        self.cached = max(self.cached, min(keep, self.prompt_tokens))

    def feed(self, count: int) -> bool:
        """The next `count` cells are computed. Whether a snapshot is to be taken behind them."""
        assert self.slot is not None
        self.slot.tokens += self.tokens[self.fed : self.fed + count]
        self.fed += count
        return self.marks.reached(self.fed)

    def drafts(self, token: int) -> bool:
        """Whether `token` is what was drafted to come next."""
        return bool(self.drafted) and self.drafted[0] == token

    def whole(self, cells: int) -> int:
        """As many of the first `cells` cells as can be told apart."""
        return cells

    def known_marks(self) -> Iterable[int]:
        """The job's marks as cells."""
        return self.job.marks

    def mark(self, places: Iterable[int]) -> None:
        """Snapshots are to be taken there, too."""
        self.marks.add(map(self.whole, places), self.fed)


S = TypeVar("S", bound=JobSequence)


class Sequences(ABC, Generic[S]):
    """The sequences of all jobs, and the slots that hold their cells."""

    takes_snapshots: bool
    piece: Callable[[int], bytes]

    def __init__(
        self,
        slots: list[Slot],
        snapshot_bytes: int,
        longest: int,
        speculation: Speculation,
        pace: Pace,
    ) -> None:
        """`longest`: tokens of one sequence."""
        self._slots = slots
        self._snapshots = SnapshotBudget(slots, snapshot_bytes)
        self._pace = pace
        # To be reported at the end of the step.
        self._read: list[PromptRead | PutBack] = []
        self._longest = longest
        self._speculation = speculation
        self._running: dict[int, S] = {}
        self._forced: list[Token] = []
        self._prompts = Prefill()
        self._releases = 0
        self.kept: Beginnings = NothingKept()
        self._coming = False  # a job waits for what the store reads

    @abstractmethod
    def _advance(self, running: S) -> None:
        """Its next token has its cells already, for it was drafted."""

    @abstractmethod
    def _cut_off(self, running: S) -> None:
        """Nothing of what was drafted and isn't fed is left, and no token is to be drawn."""

    @abstractmethod
    def _empty(self, slot: Slot) -> None:
        """Nothing is left of what it holds."""

    @abstractmethod
    def _adopt(self, running: S, slot: Slot) -> int:
        """All that is `restoring` is in its slot; how many cells of it can really be kept."""

    @abstractmethod
    def _longer(self, running: S, keep: int) -> Found | Coming | None:
        """A beginning in the store of which more can be kept than the `keep` cells of the slots."""

    @abstractmethod
    def _take_out(self, slot: Slot, keep: int) -> bool:
        """Its cells are about to be overwritten but for the first `keep`: into the store with them,
        if they are worth it. Whether they are kept there, or elsewhere.
        """

    def force(self, key: int, tokens: Sequence[int]) -> None:
        """See `Engine.force`."""
        running = self._running[key]
        room = self._longest - len(running.tokens)
        for token in tokens[:room]:
            running.tokens.append(token)
            running.accept(token)
            self._forced.append(Token(key, token))
        while running.left and running.drafts(running.tokens[running.fed]):
            self._advance(running)
        if running.left:
            self._cut_off(running)

    def release(self, key: int) -> int:
        """See `Engine.release`."""
        running = self._running.pop(key)
        self._cut_off(running)
        self._speculation.release(key)
        self._leave(running)
        self._drop_forced(key)
        return running.cached

    def _leave(self, running: S) -> None:
        """Its slot is idle again; the cells stay until room is needed."""
        if (slot := running.slot) is None:
            return
        if running.restoring is not None:  # half of it is there
            running.restoring = None
            self._empty(slot)
        self._releases += 1
        slot.busy, slot.used = False, self._releases
        running.slot = None

    def _forget_jobs(self) -> None:
        self._running.clear()
        self._speculation.clear()
        self._forced.clear()

    def _verified(self, running: S, token: int) -> bool:
        """Whether it was drafted; if not, nothing behind it is of use."""
        if not running.drafts(token):
            self._cut_off(running)
            return False
        self._advance(running)
        return self._speculation.drew(running.key)

    def _shortened(self, key: int, count: int) -> S:
        """A job, less its newest `count` tokens and those that were forced behind them."""
        running = self._running[key]
        self._cut_off(running)
        forced = len(self._forced)
        self._drop_forced(key)
        count += forced - len(self._forced)
        del running.tokens[len(running.tokens) - count :]
        return running

    def _drop_forced(self, key: int) -> None:
        self._forced = [token for token in self._forced if token.key != key]

    def take_all_out(self) -> None:
        """The model goes: into the store with what is worth it."""
        for slot in sorted(self._slots, key=lambda slot: -len(slot.tokens)):
            self._take_out(slot, 0)

    def _sought(
        self, running: S, placement: Placement, started: Iterable[S], *, marks: bool
    ) -> Found | Coming | None:
        """What the store has more of for a job that is about to be placed, into whose slot nothing
        is put before its cells are taken out. Coming: it better waits, see `_worth_waiting`.
        """
        keep = placement.keep
        if not running.scoring and self._worth_waiting(running, keep, started, marks=marks):
            return Coming()
        found = self._longer(running, keep)
        if isinstance(found, Coming):
            self._coming = True
        else:
            own = placement.slot == placement.source
            self._take_out(self._slots[placement.slot], keep if own else 0)
        return found

    def _worth_waiting(self, running: S, keep: int, started: Iterable[S], *, marks: bool) -> bool:
        """Another job is computing more of the same beginning right now (n > 1, or many alike at
        once). `marks`: where the two part it is to take a snapshot, for it can't be cut.
        """
        most, found = len(running.tokens) - 1, False
        for other in started:
            if other.left <= 1 or other.job.cached_for != running.job.cached_for:
                continue
            shared = min(common_length(other.tokens, running.tokens), most)
            if shared >= max(keep, other.fed) + WORTHWHILE:
                found = True
                if marks:
                    other.mark([shared])
        return found

    def _begin(self, running: S, slot: Slot, keep: int, parted: int) -> None:
        """Behind its first `keep` cells, which are there."""
        slot.owner, slot.conversation = running.job.cached_for, running.job.conversation
        running.start(slot, keep)
        if self.takes_snapshots:
            running.mark(self._places(running, (*running.known_marks(), parted)))

    def _places(self, running: S, marks: Sequence[int]) -> Sequence[int]:
        """Behind how many of its tokens snapshots are taken."""
        return places(len(running.tokens), running.fed, marks)

    def _restored(self, running: S) -> bool:
        """Put back some of what comes from the store, no more than others can wait for. Whether it
        is there, or can't be: the rest is computed.
        """
        restoring, slot = running.restoring, running.slot
        assert restoring is not None
        assert slot is not None
        began, there = time.perf_counter(), True
        while there and not restoring.filling.is_over:
            there = restoring.filling.put() or self._yields(slot)
            if time.perf_counter() - began >= self._pace.seconds:
                break
        running.fed, over = len(slot.tokens), restoring.filling.is_over
        keep = self._adopt(running, slot) if there and over else 0
        restoring.seconds += time.perf_counter() - began
        if there and not over:
            return False
        running.restoring = None
        if keep:
            self.kept.put_back(restoring.found, keep, restoring.seconds)
            self._read.append(PutBack(running.key, keep, restoring.found.tier))
        else:
            self._empty(slot)
        self._begin(running, slot, keep, restoring.parted)
        return True

    def _yields(self, slot: Slot) -> bool:
        """Another one makes room for what is being put back into `slot`."""
        return False

    def _answering(self, running: S, room: int) -> Answering:
        """So many tokens may be fed behind its newest one."""
        return Answering(running.key, min(running.useful, room), room, running.mask)

    def _scored(
        self, running: S, count: int, logprobs: Callable[[range], Sequence[TokenLogprob]]
    ) -> list[PromptScored]:
        """Log probabilities of the prompt's tokens that have none yet, as far as the logits behind
        its newest `count` cells go; `logprobs` gives those of the tokens at these places.
        """
        prompt, found = running.job.prompt, list[TokenLogprob]()
        if not running.scored:
            found.append(TokenLogprob(Candidate(prompt[0], self.piece(prompt[0]), 0.0)))
        first = max(running.scored, running.fed - count + 1, 1)
        found += logprobs(range(first, min(running.fed + 1, len(prompt))))
        running.scored += len(found)
        return [PromptScored(running.key, Scored(tuple(found)))] if found else []

    def _put_in_store(
        self,
        slot: Slot,
        *,
        lost: int,
        size: int,
        cuts_from: int,
        whole: Callable[[], npt.NDArray[np.uint8]],
        part: Callable[[Any], npt.NDArray[np.uint8]],
    ) -> bool:
        """Have the store keep a slot of which `lost` cells are about to be overwritten, if it wants
        the `size` bytes. `whole` takes the cells out, `part` the state of a snapshot. Whether it
        has them.
        """
        rate = self._prompts.rate
        if slot.owner is None or not self.kept.wants(slot.owner, slot.tokens, size, lost / rate):
            return False
        began = time.perf_counter()
        cells = whole()
        if not len(cells):
            return False
        taken = Taken(
            owner=slot.owner,
            tokens=tuple(slot.tokens),
            cuts_from=cuts_from,
            buffers=(cells, *(part(one.state) for one in slot.snapshots)),
            places=tuple(one.cells for one in slot.snapshots),
            conversation=slot.conversation,
            seconds=len(slot.tokens) / rate,
        )
        self.kept.keep(taken, time.perf_counter() - began)
        return True
