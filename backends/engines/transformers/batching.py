"""Many jobs, one forward pass: continuous batching over a grid of our own.

Why not transformers' `ContinuousBatchingManager`: see `__init__`. Every job is a list of tokens of
which the first `fed` are in its row of the grid. A step feeds each running answer its newest token,
all in one pass; then a piece of a prompt is read (`backends.engines.prefill`), in a second pass. A
job whose last token has been fed gets a new one drawn. So prompt, answer, forced tokens and a
recomputed answer are all one thing.

Busy rows are always the first ones: a job that ends leaves its row to the last busy one, so that a
pass reads a run of neighbours and copies nothing. Idle rows keep their cells for the conversation's
next turn. Where layers keep states, a sequence goes back to a snapshot alone, see
`backends.engines.snapshots`, and a pass has as many tokens of each row.
"""

import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from functools import partial

import msgspec
import torch

from backends.contract.beginnings import AT_EASE, SOON, Coming, Found, Pace
from backends.contract.protocol import Generation, TokenLogprob
from backends.engines.cells import COPIED, FEW, WORTHWHILE, Placement, Slot, Snapshot, place
from backends.engines.constraints import Mask
from backends.engines.engine import JobFailed, StepResult, Token
from backends.engines.sampling.batch import logprobs
from backends.engines.sampling.state import SamplerState, SamplingContext
from backends.engines.sequences import JobSequence, Restoring, Sequences
from backends.engines.snapshots import places
from backends.engines.speculation import NO_DRAFT, Speculation, StepDraft
from backends.engines.threads import StepThreads
from backends.engines.transformers.files import LARGEST_CHUNK, CacheSize
from backends.engines.transformers.forward import Forward
from backends.engines.transformers.grid import Grid, Size, as_bytes, fit, from_bytes
from backends.engines.transformers.memory import while_generating
from backends.engines.transformers.sampler import Sampled, Sampler
from backends.machine.process_settings import trim_heap
from config.engines import SpeculationOptions

# Tokens of a prompt that are computed in one pass in the time of one by itself, see
# `LayerPattern.stepwise`.
STEP_COST = 8
SCORING_BYTES = 32 << 20  # of a pass's logits, where a prompt's log probabilities are wanted


class RowFilling(msgspec.Struct, eq=False):
    """Fills the first `end` cells of a slot's row, `step` at a time. See `sequences.Filling`.
    `cells`: of each layer, in main memory; `states`: those behind the last of them, `snapshots`:
    before.
    """

    grid: Grid
    slot: Slot
    tokens: Sequence[int]
    end: int
    step: int
    cells: Sequence[torch.Tensor]
    states: Sequence[torch.Tensor]
    snapshots: Sequence[Snapshot]

    @property
    def is_over(self) -> bool:
        return len(self.slot.tokens) == self.end

    def put(self) -> bool:
        first = len(self.slot.tokens)
        until = min(self.end, first + self.step)
        self.grid.fill(self.slot.index, self.cells, first, until)
        self.slot.tokens += self.tokens[first:until]
        return True


class BatchRow(JobSequence):
    """One job's sequence. The index of its slot is that of its row."""

    def __init__(self, key: int, job: Generation, context: SamplingContext) -> None:
        super().__init__(key, job, list(job.prompt))
        self.state = SamplerState(job, self.tokens, context)
        # Behind all that was verified, (tokens, vocabulary), while some wait to be drawn from.
        self.logits: torch.Tensor | None = None

    @property
    def row(self) -> int:
        assert self.slot is not None
        return self.slot.index

    def accept(self, token: int) -> None:
        self.state.accepted()


class Batching(Sequences[BatchRow]):
    """The jobs that share passes. Only the engine's thread calls it."""

    def __init__(  # noqa: PLR0913, PLR0917 - each is a part of one engine
        self,
        forward: Forward,
        grid: Grid,
        limit: CacheSize,
        snapshot_bytes: int,
        context: SamplingContext,
        threads: StepThreads,
        speculation: Speculation | None = None,
        pace: Pace = AT_EASE,
    ) -> None:
        """`speculation`: None where nothing is drafted; not where layers keep states."""
        off = Speculation(SpeculationOptions(mode="off"))
        # A slot per row.
        super().__init__([], snapshot_bytes, limit.length, speculation or off, pace)
        self._forward = forward
        self._grid = grid
        self._limit = limit
        self._context = context
        self._threads = threads
        self.drafts = not self._speculation.is_off
        self.takes_snapshots = grid.keeps_states and snapshot_bytes > 0
        self._busy: list[BatchRow] = []  # the first rows, in order
        self.piece = context.vocabulary.piece
        self._sampler = Sampler(context)

    def admit(self, key: int, job: Generation, mask: Mask | None = None) -> int:
        running = self._running[key] = BatchRow(key, job, self._context)
        running.mask = running.state.mask = mask
        self._speculation.admit(key, running.tokens, job.owner, job.drafts)
        return len(job.prompt)

    def rewind(self, key: int, count: int, banned: Collection[int]) -> None:
        running = self._shortened(key, count)
        running.state.rewound(banned)
        self._sampler.clear()  # its batch holds their counts
        # The newest token left is fed again: the logits after it are gone.
        running.fed = min(running.fed, len(running.tokens) - 1)
        if running.slot is not None:
            running.fed = self._cut(running.slot, running.fed)

    def clear(self) -> None:
        """Forget all jobs and all cells."""
        self._forget_jobs()
        self._busy.clear()
        self._slots.clear()
        self._sampler.clear()
        self._grid.clear()

    def step(self) -> list[StepResult]:
        forced, self._forced = self._forced, []
        if waiting := [running for running in self._busy if running.logits is not None]:
            return [*forced, *self._draw_next(waiting)]
        self._coming = False
        self._start_waiting()
        self._grow()
        if waiting := [running for running in self._busy if running.restoring is not None]:
            self._restored(min(waiting, key=lambda running: running.key))
        if self._coming and not self._busy:
            time.sleep(SOON)
        read, self._read = self._read, []
        return [*forced, *read, *self._continue_answers(), *self._read_prompts()]

    def _continue_answers(self) -> list[StepResult]:
        """One token for every job that has all but its newest token in the grid; where all have,
        the logits behind what is drafted for them, too.
        """
        rows = [row for row, one in enumerate(self._busy) if one.left == 1 and not one.scoring]
        if not rows:
            return []
        together = len(rows) == len(self._running)
        drafts = self._drafts() if together else {}
        first, last = rows[0], rows[-1] + 1
        # A job still reading its prompt may sit between: what is written for it is garbage, at a
        # cell that its next chunk overwrites before it is read. Its states are put back.
        span = self._busy[first:last]
        between = set(range(first, last)).difference(rows) if self._grid.keeps_states else ()
        states = {row: [one.clone() for one in self._grid.states(row)] for row in between}
        tokens = [[r.tokens[r.fed], *drafts.get(r.key, NO_DRAFT).tokens] for r in span]
        self._threads.begin(len(tokens) * len(tokens[0]))
        logits = self._forward.each(first, tokens, [running.fed for running in span])
        self._prompts.answered(self._ended())
        if together:
            self._speculation.stepped(self._threads.needed)
        for row, kept in states.items():
            self._grid.put_back(row, kept)
        ready = [self._busy[row] for row in rows]
        for running in ready:
            running.drafted = deque(drafts.get(running.key, NO_DRAFT).tokens)
            running.logits = logits[running.row - first]
            self._fed(running, 1)
        return self._draw_next(ready, drafts)

    def _drafts(self) -> Mapping[int, StepDraft]:
        """What to verify behind the newest tokens of all jobs, by key."""
        if not self.drafts:
            return {}
        cells = min(self._grid.capacity, self._longest)
        return self._speculation.drafts(
            [self._answering(running, cells - len(running.tokens)) for running in self._busy]
        )

    def _draw_next(
        self, waiting: Sequence[BatchRow], drafts: Mapping[int, StepDraft] = {}
    ) -> list[StepResult]:
        """The next tokens, from logits that wait. Where one is what was drafted, the logits behind
        it are those of the token after it.
        """
        rows = [row.logits[-len(row.drafted) - 1] for row in waiting if row.logits is not None]
        results: list[StepResult] = []
        for running, token in zip(waiting, self._draw(waiting, torch.stack(rows)), strict=True):
            if isinstance(token, Token):
                accepted = self._verified(running, token.id)
                drafted = drafts.get(running.key, NO_DRAFT).meant
                results.append(Token(token.key, token.id, token.logprob, drafted, accepted))
            else:
                self._cut_off(running)
                results.append(token)
        return results

    def _advance(self, running: BatchRow) -> None:
        running.drafted.popleft()
        self._fed(running, 1)

    def _cut_off(self, running: BatchRow) -> None:
        running.drafted.clear()
        running.logits = None

    def _read_prompts(self) -> Sequence[StepResult]:
        """A piece of the prompt whose turn it is, together with its neighbours' where they fit."""
        ready = [
            running
            for running in self._busy
            if running.restoring is None and (running.left > 1 or running.scoring)
        ]
        answering = any(one.left == 1 and not one.scoring for one in self._busy)
        if not ready or (answering and not self._prompts.is_due):
            return []
        ready.sort(key=lambda running: running.key)
        oldest = self._prompts.order(ready)[0].row
        if self._busy[oldest].scoring:
            return self._score(oldest, self._busy[oldest])
        width = self._busy[oldest].until
        chunk = self._prompts.piece(LARGEST_CHUNK, LARGEST_CHUNK, answering=answering)
        if not self._forward.stepwise or self._busy[oldest].fed:  # else one pass takes less
            width = self._prompts.piece(width, LARGEST_CHUNK, answering=answering)
        first, last = self._run_around(oldest, width, max(1, chunk // width))
        span = self._busy[first:last]
        counts = [min(running.left, width) for running in span]
        self._threads.begin(width * len(span))
        logits = self._forward.run(
            first,
            [r.tokens[r.fed : r.fed + n] for r, n in zip(span, counts, strict=True)],
            [r.fed for r in span],
        )
        self._prompts.read(width * len(span), self._ended())
        for running, count in zip(span, counts, strict=True):
            self._fed(running, count)
        done = [place for place, running in enumerate(span) if not running.left]
        if done and self._grid.keeps_states:  # a scan's activations leave holes that fit no other's
            trim_heap()
        return self._draw([span[place] for place in done], logits[done]) if done else []

    def _score(self, row: int, running: BatchRow) -> list[StepResult]:
        """The next chunk of one prompt, and how likely each of its tokens was."""
        room = min(LARGEST_CHUNK, max(1, SCORING_BYTES // (4 * self._context.size)))
        count = self._prompts.piece(running.until, room, answering=len(self._busy) > 1)
        chunk = running.tokens[running.fed : running.fed + count]
        first = running.fed
        self._threads.begin(count)
        logits = self._forward.each(row, [chunk], [first])[0]
        self._prompts.read(count, self._ended())
        self._fed(running, count)

        def found(places: range) -> list[TokenLogprob]:
            wanted = [running.job.prompt_logprobs] * len(places)
            rows = logits[places.start - first - 1 :][: len(places)]
            tokens = [running.tokens[place] for place in places]
            return [one for one in logprobs(rows, tokens, wanted, self.piece) if one]

        scored = self._scored(running, count, found)
        return [*scored, *(self._draw([running], logits[-1:]) if not running.left else ())]

    def _run_around(self, oldest: int, width: int, most: int) -> tuple[int, int]:
        """The rows next to `oldest` that read too, `most` in all, as far as `width` cells fit
        behind their end.
        """

        def joins(row: int) -> bool:
            running = self._busy[row]
            if running.restoring is not None:
                return False
            fits = running.fed + width <= self._grid.capacity
            alike = not self._grid.keeps_states or running.until >= width
            if self._forward.stepwise and bool(running.fed) != bool(self._busy[oldest].fed):
                return False
            return running.left > 1 and fits and alike and not running.scoring

        first, last = oldest, oldest + 1
        while last < len(self._busy) and last - first < most and joins(last):
            last += 1
        while first > 0 and last - first < most and joins(first - 1):
            first -= 1
        return first, last

    def _ended(self) -> float:
        """The pass is done; the seconds it took. A card is waited for, else it would be the time
        that it takes to tell it what to do.
        """
        if self._context.device.type == "cuda":
            torch.cuda.synchronize(self._context.device)
        return self._threads.end()

    def _fed(self, running: BatchRow, count: int) -> None:
        if running.feed(count) and self.takes_snapshots:
            assert running.slot is not None
            size, state = self._grid.state_bytes, partial(self._grid.taken, running.row)
            self._snapshots.take(running.slot, running.prompt_tokens, size, state)

    def _draw(self, ready: Sequence[BatchRow], logits: torch.Tensor) -> list[StepResult]:
        drawn = self._sampler.sample([running.state for running in ready], logits)
        return [
            self._accept(running, sampled) for running, sampled in zip(ready, drawn, strict=True)
        ]

    def _accept(self, running: BatchRow, sampled: Sampled | Exception) -> Token | JobFailed:
        if isinstance(sampled, Exception):
            return JobFailed(running.key, while_generating(sampled))
        running.tokens.append(sampled.token)
        running.state.drawn()
        return Token(running.key, sampled.token, sampled.logprob)

    def _start_waiting(self) -> None:
        """Oldest first; a job that finds no room keeps the younger ones from taking it."""
        for running in self._running.values():
            if running.slot is None:
                if not self._room_for(running):
                    break
                self._start(running)

    def _room_for(self, running: BatchRow) -> bool:
        longest = max([len(running.tokens), *(len(other.tokens) for other in self._busy)])
        return self._make_room(len(self._busy) + 1, longest + 1)

    def _start(self, running: BatchRow) -> None:
        """Give the job a row with what is already computed, unless it better waits, see below."""
        if self._grid.keeps_states:
            coming = {other.row for other in self._busy if other.restoring is not None}
            for slot in self._slots:
                slot.cuts_from = len(slot.tokens)
                slot.lacks_states = slot.index in coming
        placement = self._place(running)
        found = self._sought(running, placement, self._busy, marks=self.takes_snapshots)
        if isinstance(found, Coming):
            return
        slot, source = self._slots[placement.slot], self._slots[placement.source]
        if found is not None:
            running.restoring = self._restoring(slot, found, running, placement.parted)
        if running.restoring is not None:
            slot.shorten(0)
            slot.busy, slot.owner, running.slot = True, running.job.cached_for, slot
        else:
            if slot is not source:
                self._grid.copy(source.index, slot.index, placement.keep)
                slot.copy(source)
            self._begin(running, slot, self._cut(slot, placement.keep), placement.parted)
        self._exchange(slot.index, len(self._busy))
        self._busy.append(running)

    def _place(self, running: BatchRow) -> Placement:
        spare = FEW + self._grid.row_bytes // COPIED
        owner = running.job.cached_for
        found = place(running.known, self._slots, compact=False, spare=spare, owner=owner)
        length = len(running.tokens)
        if self._forward.stepwise and (length - found.keep) * STEP_COST > length:
            return Placement(found.slot, found.slot, 0)  # one pass takes less
        return found

    def _places(self, running: BatchRow, marks: Sequence[int]) -> Sequence[int]:
        if not self._forward.stepwise:
            return super()._places(running, marks)
        # What is behind the first of them is computed token by token.
        length = len(running.tokens)
        last = length - 1 - length // STEP_COST
        near = [mark for mark in marks if mark >= last] or [last]
        return places(length, running.fed, near, step=length)

    def _longer(self, running: BatchRow, keep: int) -> Found | Coming | None:
        found = self.kept.longest(running.job.cached_for, running.known, keep)
        length = len(running.tokens)
        if not isinstance(found, Found) or not self._forward.stepwise:
            return found
        if (length - found.start) * STEP_COST > length:
            return None  # one pass takes less
        return found

    def _take_out(self, slot: Slot, keep: int) -> bool:
        cells = len(slot.tokens)
        if cells - keep < WORTHWHILE:
            return True
        size = sum(one.size for one in slot.snapshots) + self._grid.state_bytes
        size += (self._grid.row_bytes - self._grid.state_bytes) * cells // self._grid.capacity
        return self._put_in_store(
            slot,
            lost=cells - keep,
            size=size,
            cuts_from=cells if self._grid.keeps_states else 0,
            whole=partial(self._grid.whole, slot.index, cells),
            part=as_bytes,
        )

    def _restoring(
        self, slot: Slot, found: Found, running: BatchRow, parted: int
    ) -> Restoring | None:
        """Begin to put a beginning back into `slot`. None: it can't be, and nothing was changed."""
        taken, first = found.taken, found.start
        if not self._grid.row_bytes:  # layers learn their shape in their first pass
            self._forward.run(slot.index, [(running.tokens[0],)], [0])
        states = self._grid.states(slot.index)
        snapshots = [
            Snapshot(cells, state, data.nbytes)
            for cells, data in taken.parts
            if cells <= first and (state := from_bytes(data, states))
        ]
        goes_back = self._grid.keeps_states and first < len(taken.tokens)
        if goes_back and (not snapshots or snapshots[-1].cells != first):
            return None
        parts = self._grid.parts(slot.index, taken.whole, len(taken.tokens))
        if parts is None:
            return None
        cells, states = parts[0], snapshots[-1].state if goes_back else parts[1]
        step = max(1, self._pace.piece // max(1, self._grid.cell_bytes))
        filling = RowFilling(self._grid, slot, taken.tokens, first, step, cells, states, snapshots)
        return Restoring(found, filling, parted)

    def _adopt(self, running: BatchRow, slot: Slot) -> int:
        assert running.restoring is not None
        filling = running.restoring.filling
        assert isinstance(filling, RowFilling)
        self._grid.put_back(slot.index, filling.states)
        self._snapshots.adopt(slot, filling.snapshots)
        return len(slot.tokens)

    def _empty(self, slot: Slot) -> None:
        slot.shorten(0)

    def _cut(self, slot: Slot, cells: int) -> int:
        """Leave no more than the first `cells`; returns how many are left."""
        if self._grid.keeps_states and cells < len(slot.tokens):
            snapshot = slot.snapshot(cells)
            cells = snapshot.cells if snapshot else 0
            if snapshot:
                self._grid.put_back(slot.index, snapshot.state)
        slot.shorten(cells)
        return cells

    def _leave(self, running: BatchRow) -> None:
        """The last busy row takes its place."""
        if running.slot is None:
            return
        row, last = running.row, len(self._busy) - 1
        super()._leave(running)
        self._exchange(row, last, drafted=len(self._busy[last].drafted))
        self._busy[row] = self._busy[last]
        self._busy.pop()

    def _exchange(self, one: int, other: int, drafted: int = 0) -> None:
        """`drafted`: how many cells stand behind those that the slot of `other` knows."""
        if one == other:
            return
        slots = self._slots
        self._grid.swap(one, other, max(len(slots[one].tokens), len(slots[other].tokens) + drafted))
        slots[one], slots[other] = slots[other], slots[one]
        slots[one].index, slots[other].index = one, other

    def _grow(self) -> None:
        """Room for every busy row's next token. Where it lacks, the youngest waits and is computed
        again later.
        """
        while self._busy and not self._make_room(
            len(self._busy), max(len(running.tokens) for running in self._busy) + 1
        ):
            youngest = max(self._busy, key=lambda running: running.key)
            self._leave(youngest)
            youngest.fed = 0

    def _make_room(self, rows: int, cells: int) -> bool:
        present = Size(self._grid.rows, self._grid.capacity)
        size = fit(present, rows, min(cells, self._longest), self._limit)
        if size is None:
            return False
        if size is not present:
            for slot in self._slots[size.rows :]:
                self._take_out(slot, 0)
            self._grid.reshape(size.rows, size.capacity)
            del self._slots[size.rows :]
            self._slots += [Slot(row) for row in range(len(self._slots), size.rows)]
            for slot in self._slots:
                self._cut(slot, min(len(slot.tokens), size.capacity))
        return True
