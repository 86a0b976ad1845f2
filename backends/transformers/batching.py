"""Many jobs, one forward pass: continuous batching over a grid of our own.

Why not transformers' `ContinuousBatchingManager`: see `__init__`. Every job is a list of tokens of
which the first `fed` are in its row of the grid. A step feeds each running answer its newest token,
all in one pass, then spends what is left of its time on the oldest unfinished prompts, in a second
pass. A job whose last token has been fed gets a new one drawn. So prompt, answer, forced tokens and
a recomputed answer are all one thing.

Busy rows are always the first ones: a job that ends leaves its row to the last busy one, so that a
pass reads a run of neighbours and copies nothing. Idle rows keep their cells for the conversation's
next turn.
"""

from collections.abc import Collection, Sequence
from typing import TypeAlias

import torch

from backends.cells import WORTHWHILE, Slot, common, place
from backends.constraints import Mask
from backends.engine import JobFailed, PromptScored, Token
from backends.huggingface.vocabulary import HfVocabulary
from backends.protocol import Candidate, Generation, Scored, TokenLogprob
from backends.sampling.batch import logprobs
from backends.sampling.state import SamplerState, SamplingContext
from backends.threads import StepThreads
from backends.transformers.files import LARGEST_CHUNK, SMALLEST_CHUNK, STEP_SECONDS
from backends.transformers.forward import Forward
from backends.transformers.grid import Grid, GridLimit, Size, fit
from backends.transformers.memory import while_generating
from backends.transformers.sampler import Sampled, Sampler

FIRST_GUESS = 2_000.0  # prompt tokens per second, until measured
SCORING_BYTES = 32 << 20  # of a pass's logits, where a prompt's log probabilities are wanted
Result: TypeAlias = Token | PromptScored | JobFailed


class BatchRow:
    """One job's sequence. `row` is None until it starts, or after its cells were taken away."""

    def __init__(self, key: int, job: Generation, context: SamplingContext) -> None:
        self.key = key
        self.job = job
        self.tokens = list(job.prompt)
        self.state = SamplerState(job, self.tokens, context)
        self.fed = 0
        self.cached = 0
        # Tokens of the prompt whose log probabilities are reported, or not requested.
        self.scored = len(job.prompt) if job.prompt_logprobs is None else 0
        self.row: int | None = None

    @property
    def left(self) -> int:
        return len(self.tokens) - self.fed

    @property
    def scoring(self) -> bool:
        return self.scored < len(self.job.prompt)

    @property
    def known(self) -> list[int]:
        """The tokens whose cells may be taken over. Cells have no log probabilities: where those
        are requested the prompt is computed again from the first token that has none yet.
        """
        return self.tokens[: max(1, self.scored)] if self.scoring else self.tokens


class Batching:
    """The jobs that share passes. Only the engine's thread calls it."""

    def __init__(
        self,
        forward: Forward,
        grid: Grid,
        limit: GridLimit,
        vocabulary: HfVocabulary,
        context: SamplingContext,
        threads: StepThreads,
    ) -> None:
        self._forward = forward
        self._grid = grid
        self._limit = limit
        self._context = context
        self._threads = threads
        self._slots: list[Slot] = []  # one per row
        self._busy: list[BatchRow] = []  # the first rows, in order
        self._jobs: dict[int, BatchRow] = {}
        self._forced: list[Token] = []
        self._piece = vocabulary.piece
        self._sampler = Sampler(context, vocabulary.piece)
        self._prompt_rate = FIRST_GUESS
        self._releases = 0

    # -- jobs ------------------------------------------------------------------------------------

    def admit(self, key: int, job: Generation, mask: Mask | None = None) -> int:
        self._jobs[key] = BatchRow(key, job, self._context)
        self._jobs[key].state.mask = mask
        self._threads.pause()
        return len(job.prompt)

    def force(self, key: int, tokens: Sequence[int]) -> None:
        running = self._jobs[key]
        room = self._limit.length - len(running.tokens)
        for token in tokens[:room]:
            running.tokens.append(token)
            running.state.accepted()
            self._forced.append(Token(key, token))

    def rewind(self, key: int, count: int, banned: Collection[int]) -> None:
        running = self._jobs[key]
        kept = [token for token in self._forced if token.key != key]
        count += len(self._forced) - len(kept)
        self._forced = kept
        del running.tokens[len(running.tokens) - count :]
        running.state.rewound(banned)
        self._sampler.clear()  # its batch holds their counts
        # The newest token left is fed again: the logits after it are gone.
        running.fed = min(running.fed, len(running.tokens) - 1)
        if running.row is not None:
            del self._slots[running.row].tokens[running.fed :]

    def release(self, key: int) -> int:
        running = self._jobs.pop(key)
        self._leave(running)
        self._forced = [token for token in self._forced if token.key != key]
        return running.cached

    def clear(self) -> None:
        """Forget all jobs and all cells."""
        self._jobs.clear()
        self._busy.clear()
        self._slots.clear()
        self._forced.clear()
        self._sampler.clear()
        self._grid.clear()

    # -- a step ----------------------------------------------------------------------------------

    def step(self) -> list[Result]:
        forced, self._forced = self._forced, []
        self._start_waiting()
        self._grow()
        return [*forced, *self._continue_answers(), *self._read_prompts()]

    def _continue_answers(self) -> list[Result]:
        """One token for every job that has all but its newest token in the grid."""
        rows = [row for row, one in enumerate(self._busy) if one.left == 1 and not one.scoring]
        if not rows:
            return []
        first, last = rows[0], rows[-1] + 1
        # A job still reading its prompt may sit between: what is written for it is garbage, at a
        # cell that its next chunk overwrites before it is read.
        span = self._busy[first:last]
        self._threads.begin("decode", len(span))
        logits = self._forward.run(first, [(r.tokens[r.fed],) for r in span], [r.fed for r in span])
        self._threads.end()
        if len(rows) < len(span):
            logits = logits[[row - first for row in rows]]
        ready = [self._busy[row] for row in rows]
        for running in ready:
            self._fed(running, 1)
        return self._draw(ready, logits)

    def _read_prompts(self) -> Sequence[Result]:
        """The next chunk of the oldest prompt, together with its neighbours' where they fit."""
        reading = [row for row, one in enumerate(self._busy) if one.left > 1 or one.scoring]
        if not reading:
            return []
        oldest = min(reading, key=lambda row: self._busy[row].key)
        if self._busy[oldest].scoring:
            return self._score(oldest, self._busy[oldest])
        chunk = self._chunk()
        width = min(self._busy[oldest].left, chunk)
        first, last = self._run_around(oldest, width, max(1, chunk // width))
        span = self._busy[first:last]
        counts = [min(running.left, width) for running in span]
        self._threads.begin("prefill", width * len(span))
        logits = self._forward.run(
            first,
            [r.tokens[r.fed : r.fed + n] for r, n in zip(span, counts, strict=True)],
            [r.fed for r in span],
        )
        if self._context.device.type == "cuda":
            torch.cuda.synchronize(self._context.device)
        self._measure(width * len(span), self._threads.end())
        for running, count in zip(span, counts, strict=True):
            self._fed(running, count)
        done = [place for place, running in enumerate(span) if not running.left]
        return self._draw([span[place] for place in done], logits[done]) if done else []

    def _score(self, row: int, running: BatchRow) -> list[Result]:
        """The next chunk of one prompt, and how likely each of its tokens was."""
        count = min(running.left, self._chunk(), max(1, SCORING_BYTES // (4 * self._context.size)))
        chunk = running.tokens[running.fed : running.fed + count]
        first = running.fed
        self._threads.begin("prefill", count)
        logits = self._forward.score(row, chunk, first)
        if self._context.device.type == "cuda":
            torch.cuda.synchronize(self._context.device)
        self._measure(count, self._threads.end())
        self._fed(running, count)
        results: list[Result] = []
        if found := self._prompt_logprobs(running, logits, first):
            results.append(PromptScored(running.key, Scored(tuple(found))))
            running.scored += len(found)
        return results + (self._draw([running], logits[-1:]) if not running.left else [])

    def _prompt_logprobs(
        self, running: BatchRow, logits: torch.Tensor, first: int
    ) -> list[TokenLogprob]:
        """Log probabilities of the prompt's tokens that have none yet, as far as `logits` (tokens,
        vocabulary), those after token `first` and later ones, have those of the next.
        """
        prompt, found = running.job.prompt, []
        if not running.scored:
            start = Candidate(prompt[0], self._piece(prompt[0]), 0.0)
            found.append(TokenLogprob(start))
        begin = max(running.scored, first + 1, 1)
        tokens = prompt[begin : first + 1 + len(logits)]
        wanted = [running.job.prompt_logprobs] * len(tokens)
        rows = logits[begin - first - 1 :][: len(tokens)]
        return [*found, *(one for one in logprobs(rows, tokens, wanted, self._piece) if one)]

    def _run_around(self, oldest: int, width: int, most: int) -> tuple[int, int]:
        """The rows next to `oldest` that read too, `most` in all, as far as `width` cells fit
        behind their end.
        """

        def joins(row: int) -> bool:
            running = self._busy[row]
            fits = running.fed + width <= self._grid.capacity
            return running.left > 1 and fits and not running.scoring

        first, last = oldest, oldest + 1
        while last < len(self._busy) and last - first < most and joins(last):
            last += 1
        while first > 0 and last - first < most and joins(first - 1):
            first -= 1
        return first, last

    def _chunk(self) -> int:
        timely = int(self._prompt_rate * STEP_SECONDS)
        return min(LARGEST_CHUNK, max(SMALLEST_CHUNK, timely))

    def _measure(self, tokens: int, seconds: float) -> None:
        if tokens > SMALLEST_CHUNK:
            measured = tokens / max(seconds, 1e-6)
            self._prompt_rate += 0.3 * (measured - self._prompt_rate)

    def _fed(self, running: BatchRow, count: int) -> None:
        assert running.row is not None
        self._slots[running.row].tokens += running.tokens[running.fed : running.fed + count]
        running.fed += count

    def _draw(self, ready: Sequence[BatchRow], logits: torch.Tensor) -> list[Result]:
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

    # -- rows ------------------------------------------------------------------------------------

    def _start_waiting(self) -> None:
        """Oldest first; a job that finds no room keeps the younger ones from taking it."""
        for running in self._jobs.values():
            if running.row is None:
                if not self._room_for(running):
                    break
                self._start(running)

    def _room_for(self, running: BatchRow) -> bool:
        longest = max([len(running.tokens), *(len(other.tokens) for other in self._busy)])
        return self._make_room(len(self._busy) + 1, longest + 1)

    def _start(self, running: BatchRow) -> None:
        """Give the job a row with what is already computed, unless it better waits, see below."""
        placement = place(running.known, self._slots, compact=False)
        keep = placement.keep
        if not running.scoring and self._worth_waiting(running, keep):
            return
        slot, source = self._slots[placement.slot], self._slots[placement.source]
        if slot is not source:
            self._grid.copy(source.index, slot.index, keep)
        slot.tokens = source.tokens[:keep]
        slot.busy = True
        self._exchange(slot.index, len(self._busy))
        running.row, running.fed = len(self._busy), keep
        running.cached = max(running.cached, min(keep, len(running.job.prompt)))
        self._busy.append(running)

    def _worth_waiting(self, running: BatchRow, keep: int) -> bool:
        """Another job is computing more of the same beginning right now (n > 1, or many alike at
        once).
        """
        most = len(running.tokens) - 1
        return any(
            other.left > 1
            and min(common(other.tokens, running.tokens), most) >= max(keep, other.fed) + WORTHWHILE
            for other in self._busy
        )

    def _leave(self, running: BatchRow) -> None:
        """The row is idle again; its cells stay until room is needed. The last busy row takes its
        place.
        """
        if running.row is None:
            return
        self._releases += 1
        slot = self._slots[running.row]
        slot.busy, slot.used = False, self._releases
        last = len(self._busy) - 1
        self._exchange(running.row, last)
        self._busy[running.row] = self._busy[last]
        self._busy[running.row].row = running.row
        self._busy.pop()
        running.row = None

    def _exchange(self, one: int, other: int) -> None:
        if one == other:
            return
        slots = self._slots
        self._grid.swap(one, other, max(len(slots[one].tokens), len(slots[other].tokens)))
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
        size = fit(present, rows, min(cells, self._limit.length), self._limit)
        if size is None:
            return False
        if size is not present:
            self._grid.reshape(size.rows, size.capacity)
            self._slots = self._slots[: size.rows]
            self._slots += [Slot(row) for row in range(len(self._slots), size.rows)]
            for slot in self._slots:
                del slot.tokens[size.capacity :]
        return True
