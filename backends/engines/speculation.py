"""Several tokens a step: what a job is likely to say next is drafted, and its engine verifies the
draft in one pass.

A pass over the weights costs nearly as much for one token as for a few, where it waits for memory.
So an engine feeds a job's newest token and those that are drafted behind it, and samples after each
of them as it would have done one by one: as long as the sampler draws what was drafted, the logits
behind it are those of the next token. A draft changes no text; it changes what a step costs.

A text is drafted from its own repetitions (`Repetitions`): an edit, code, JSON that is given back.
`Speculation` decides how much of it is worth a step. It measures what steps of so many tokens cost
(`StepCosts`) and how many of the drafted tokens are drawn (`Acceptance`), drafts what makes most
tokens a second, and nothing where that is nothing. What it may lose meanwhile is bounded
(`Allowance`).

All of it is pure: it knows no engine, no clock and no tensors. Times are seconds.
"""

from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from typing import Protocol

import msgspec

from backends.engines.repetitions import ENOUGH, FROM, PRIORS, Draft, RecentAnswers, Repetitions
from config.engines import SpeculationOptions

MOST = 31  # tokens drafted for a job at a time: a pass of 32
TOGETHER = 32  # for all jobs of a step
STREAMS = 8  # jobs; a step of more has enough to do

# Why nothing is drafted for a model.
IS_OFF = "speculation is off for this model"
STAYS = "the states of its recurrent layers can't be taken back"

TRUSTED = 6.0  # tokens as which a prior counts
OF_A_JOB = 3.0  # of what is known of other texts: one is soon seen to be unlike them
REMEMBERED = 128.0  # tokens; older ones count half


class Acceptance:
    """How many of the drafted tokens are drawn, by what is known of them."""

    def __init__(self, priors: Sequence[float], trusted: float = TRUSTED) -> None:
        """`trusted`: tokens as which a prior counts."""
        self._priors, self._trusted = priors, trusted
        self._counts = [[0.0, 0.0] for _ in priors]  # drawn, and verified

    def of(self, sureness: int) -> float:
        """How likely the next token of such a draft is drawn, where those before it were."""
        drawn, verified = self._counts[sureness]
        return (drawn + self._trusted * self._priors[sureness]) / (verified + self._trusted)

    def count(self, sureness: int, drafted: int, drawn: int) -> None:
        """The first that isn't drawn is verified, too; those behind it aren't."""
        counts = self._counts[sureness]
        counts[0] += drawn
        counts[1] += drawn + (drawn < drafted)
        if counts[1] > REMEMBERED:
            counts[:] = [count / 2 for count in counts]

    def fade(self) -> None:
        """Half of what is known counts no more."""
        self._counts = [[count / 2 for count in counts] for counts in self._counts]


GUESS = 0.1  # of a step of one token: what each further one costs, until it is measured
HOPE = 0.25  # of what further ones cost so far: what those beyond all that is known may cost
REACH = 4  # times the largest step that is known: the largest one to be tried
FASTER, SLOWER = 0.4, 0.08  # weights of a step that took less than is known, and more
DOUBT, LEAST_DOUBTED = 0.8, 0.5  # of what wasn't measured lately: so much is believed


class KnownCost(msgspec.Struct):
    """Of steps of one size. `belief`: the part of `seconds` that is expected; below 1 where it was
    measured long ago, so that it is tried again.
    """

    seconds: float
    belief: float = 1.0
    lately: bool = True

    def measured(self, seconds: float) -> None:
        """Another such step took `seconds`."""
        if self.belief < 1.0:
            self.seconds = min(seconds, 2 * self.seconds)
        else:
            weight = FASTER if seconds < self.seconds else SLOWER
            self.seconds += weight * (min(seconds, 4 * self.seconds) - self.seconds)
        self.belief, self.lately = 1.0, True

    def fade(self) -> None:
        if not self.lately:
            self.belief = max(LEAST_DOUBTED, DOUBT * self.belief)
        self.lately = False


class StepCosts:
    """What steps take, by the tokens in them.

    A pass of two tokens may take as long as one of eight: what multiplies matrices is another
    program there, which computes them together in tiles. So what is larger than all that was
    measured is hoped to cost little, and is measured where that would pay.

    What took less counts more: of a machine that others use too, the time that a step takes is one
    that it took when it was let.
    """

    def __init__(self) -> None:
        self._known: dict[int, KnownCost] = {}
        self._rows: list[int] = []  # ascending

    def measured(self, rows: int, seconds: float) -> None:
        """A step of `rows` tokens took `seconds`."""
        known = self._known.get(rows)
        if known is None:
            self._known[rows] = KnownCost(seconds)
            self._rows = sorted(self._known)
        else:
            known.measured(seconds)

    def fade(self) -> None:
        """Now and then: what isn't measured any more is believed less."""
        for known in self._known.values():
            known.fade()

    @property
    def known(self) -> bool:
        """Whether any step was measured."""
        return bool(self._rows)

    @property
    def reach(self) -> int:
        """The tokens of the largest step that may be tried."""
        return REACH * self._rows[-1]

    def of(self, rows: int) -> float:
        """Seconds; between what is known, along straight lines. At least one size must be known."""
        known = self._known.get(rows)
        if known is not None:
            return known.seconds * known.belief
        at = bisect(self._rows, rows)
        if at == 0:
            return self.of(self._rows[0])
        low = self._rows[at - 1]
        if at == len(self._rows):
            return self.of(low) + (rows - low) * self._hoped()
        high = self._rows[at]
        part = (rows - low) / (high - low)
        return self.of(low) + part * (self.of(high) - self.of(low))

    def _hoped(self) -> float:
        """What each token more is hoped to cost, of those beyond all that is known."""
        first, last = self._rows[0], self._rows[-1]
        if first == last:
            return GUESS * self.of(first)
        return HOPE * max(0.0, (self.of(last) - self.of(first)) / (last - first))


EARNED = 0.0015  # of the time of steps: what drafts of one kind may lose
AT_FIRST = 2.0  # plain steps that may be lost before anything was earned
SAVED = 12.0  # plain steps that may be saved up, of what drafts have won, too
OWED = 4.0  # plain steps that must be earned again at most: a long draft that failed isn't the last


class Allowance:
    """What drafts of one kind may lose: a part of all time, and some of what they have won."""

    def __init__(self) -> None:
        self._left: float | None = None  # seconds

    def earned(self, plain: float, steps: int) -> None:
        """Steps were done, of which each would have taken so long without drafts."""
        left = AT_FIRST * plain if self._left is None else self._left
        left = max(left, -OWED * plain)
        self._left = min(left + EARNED * plain * steps, SAVED * plain)

    def spent(self, seconds: float) -> None:
        """A step took so much more for its drafts."""
        if self._left is not None:
            self._left -= seconds

    def won(self, seconds: float) -> None:
        """A drafted token was drawn, which would have taken so long."""
        if self._left is not None:
            self._left += seconds

    def covers(self, risk: float) -> bool:
        """Whether so much may be lost: what a draft costs, by how likely it comes to nothing."""
        return self._left is not None and self._left >= risk


PAYS = 1.03  # so many times the tokens a second make drafts worth their trouble
SUREST = 0.98  # of a token's chance
PLAIN_EVERY = 96  # steps with drafts, after which one without shows what it costs now
PLAIN_FIRST = 3  # steps without drafts, of each number of jobs, before the first with some
# Steps for which it stays so how long a repetition must be to be worth a step: most texts repeat a
# few tokens all the time, and to look at each costs more than it brings.
DECIDE_EVERY = 64
# Steps after which a text is looked at, by the tokens that must be repeated (`FROM`), and where
# nothing pays. Long repetitions are found soon enough when they are some tokens longer, and to look
# costs what a small model's step is a hundredth of. Powers of two, so that in the steps between
# nothing is done for any job: see `Speculation.rests`.
EVERY: Mapping[int | None, int] = dict(zip((*FROM, None), (1, 1, 4, 8, 8, 32), strict=True))
SELDOM = max(EVERY.values())
# What is looked at to decide what pays: chances of each token, and lengths of drafts.
CHANCES = [chance / 50 for chance in range(1, 50)]
LENGTHS = (1, 2, 3, 5, 7, 11, 15, 23, 31)
FADE_EVERY = 256  # steps, after which costs that weren't measured meanwhile are believed less
LASTING = 4  # times as long lasts what is known of texts


class Mask(Protocol):
    """See `constraints.Mask`."""

    def fitting(self, tokens: Sequence[int]) -> int: ...


# Kinds of drafts, each with an allowance of its own.
UNSURE, SURE, MODEL = range(3)


def _pays(chance: float, prices: Iterable[tuple[int, float]]) -> bool:
    """Whether the tokens that drafts of any length bring are worth its price. Each token is drawn
    with that chance, where those before it were; a step without drafts has one token, and costs 1.
    """
    return any((1 - chance ** (count + 1)) / (1 - chance) > price for count, price in prices)


def _kind(sureness: int) -> int:
    return SURE if sureness >= ENOUGH else UNSURE


class StepTerms(msgspec.Struct, frozen=True):
    """What a step of so many `jobs` costs and may lose. `rate`: tokens a second that it is expected
    to make in any case; `even`: each pass has as many tokens of each job.
    """

    jobs: int
    costs: StepCosts
    allowance: Allowance
    rate: float
    even: bool

    @property
    def plain(self) -> float:
        """Seconds of a step without drafts."""
        return self.costs.of(self.jobs)

    def each(self, drafted: int) -> int:
        """The rows by which it grows where the drafts of so many jobs are one token longer."""
        return self.jobs if self.even else drafted


class Drafter(Protocol):
    """What drafts besides a text's own repetitions: see `backends.engines.draft_model`."""

    seconds: float  # that its drafts of the coming step took
    most: int  # tokens that it drafts for a job at a time

    def admit(self, key: int, tokens: Sequence[int], owner: str) -> None: ...

    def release(self, key: int, said: int) -> None: ...

    def clear(self) -> None: ...

    def drafts(
        self, rooms: Mapping[int, int], left: Mapping[int, int], terms: StepTerms
    ) -> Mapping[int, Draft]: ...

    def judge(self, draft: Draft, drawn: int) -> None: ...


class StepDraft(msgspec.Struct, frozen=True):
    """The tokens to be fed behind a job's newest one. `meant`: how many of them, the first ones,
    are drafted; those behind only make it as long as the others.
    """

    tokens: Sequence[int]
    meant: int


NO_DRAFT = StepDraft((), 0)


class Answering(msgspec.Struct, frozen=True):
    """A job whose next token is to be computed. `most`: how many may be drafted behind it; `room`:
    how many tokens may be fed behind it, whatever becomes of them; `mask`: what they may be.
    """

    key: int
    most: int
    room: int
    mask: Mask | None = None


class DraftingJob:
    """What is known of a job. `tokens`: its prompt and answer, as its engine extends them."""

    def __init__(self, tokens: MutableSequence[int], owner: str, most: int) -> None:
        self.tokens = tokens
        self.owner = owner
        self.most = most
        self.prompt = len(tokens)
        self.text = Repetitions(tokens)
        self.acceptance = Acceptance(PRIORS, OF_A_JOB)
        self.under_way: Draft | None = None  # its newest draft, and how much of it was drawn
        self.drawn = 0
        self.least: int | None = 1  # tokens that must be repeated; None: nothing pays
        self.decide_at = 0  # the step in which that is decided anew
        self.goes_on = False  # all of what was drafted for the step before was drawn

    @property
    def every(self) -> int:
        """Steps after which its text is looked at."""
        return 1 if self.goes_on or self.text.is_copying else EVERY[self.least]


class Speculation:
    """The drafts of one engine's jobs. `even`: a pass takes as many tokens of each job, so that all
    drafts are of one length.

        if not speculation.rests(jobs):
            drafts = speculation.drafts(answering)  # what to feed besides the newest tokens
        ...the pass...
        speculation.stepped(seconds)
        speculation.drew(key)                       # for each drafted token that is drawn
    """

    def __init__(
        self,
        options: SpeculationOptions,
        *,
        even: bool = False,
        drafter: Drafter | None = None,
        most: int = MOST,
    ) -> None:
        """`drafter`: drafts where a text's repetitions promise less; `most`: tokens of a draft that
        the engine can take back.
        """
        self._mode = options.mode
        self._drafter = drafter if options.mode in {"auto", "model"} else None
        self._most = min(most, MOST if options.tokens == "auto" else min(options.tokens, TOGETHER))
        self._even = even
        self._jobs: dict[int, DraftingJob] = {}
        self._recent = RecentAnswers()
        self._acceptance = Acceptance(PRIORS)
        self._costs = StepCosts()
        # Of drafts that nothing speaks for, of sure ones, and of a model's: what one has spent
        # another may not need.
        self._allowances = [Allowance(), Allowance(), Allowance()]
        self._kind = UNSURE  # of the drafts of the step under way
        self._worths: dict[int, tuple[float, int]] = {}  # by jobs; until which step it stays so
        self._plain: dict[int, int] = {}  # steps without drafts yet, by the number of jobs
        self._since_plain = 0
        self._steps = 0
        self._look_at = 0  # the next step in which any text is looked at
        self._rested = 0  # steps without a look since the last
        self._streams = 0  # jobs of the step under way
        self._rows = 0  # tokens of it; none where it isn't measured
        self._drafting = 0.0  # seconds that its drafts took

    @property
    def is_off(self) -> bool:
        return self._mode == "off"

    def admit(self, key: int, tokens: MutableSequence[int], owner: str, most: int | None) -> None:
        """A job begins, whose draft may have `most` tokens; None: as many as the model's."""
        most = self._most if most is None else min(most, self._most)
        self._look_at = 0
        if most and not self.is_off:
            self._jobs[key] = DraftingJob(tokens, owner, most)
            if self._drafter is not None:
                self._drafter.admit(key, tokens, owner)

    def release(self, key: int) -> None:
        """A job is over. Its answer may be repeated by its owner's next ones."""
        self._look_at = 0
        job = self._jobs.pop(key, None)
        if job is not None:
            self._judge(job)
            if self._drafter is not None:
                self._drafter.release(key, len(job.tokens) - job.prompt)
            if job.owner:
                self._recent.keep(job.owner, job.tokens[job.prompt :])

    def clear(self) -> None:
        """Forget all jobs, whose answers came to nothing."""
        self._jobs.clear()
        if self._drafter is not None:
            self._drafter.clear()

    def rests(self, jobs: int) -> bool:
        """Whether the coming step, of so many, is one between two looks: it has no drafts."""
        if jobs != self._streams or self._steps + 1 >= self._look_at:
            return False
        self._steps += 1
        self._rested += 1
        return True

    def drafts(self, answering: Sequence[Answering]) -> Mapping[int, StepDraft]:
        """What to verify in the coming step, by key; nothing in most steps of most texts."""
        self._steps += 1
        self._streams = self._rows = jobs = len(answering)
        self._drafting = 0.0
        if not self._jobs or jobs > STREAMS:
            self._look_at = self._steps + SELDOM
            return {}
        if not self._steps % FADE_EVERY:
            self._fade()
        found = self._found(answering)  # in any case: texts are read as they grow
        counts = self._counts(jobs, found) if found and self._measured_enough(jobs) else {}
        if self._drafter is not None and self._measured_enough(jobs):
            rate = self._rate(jobs, found, counts)
            if by_model := self._by_model(self._drafter, answering, rate):
                found, self._kind = by_model, MODEL
                counts = {key: len(draft.tokens) for key, draft in found.items()}
        for key, count in counts.items():
            self._jobs[key].under_way, self._jobs[key].drawn = found[key].first(count), 0
        drafts = self._filled(answering, counts) if self._even else self._plainly(counts)
        self._rows += sum(len(draft.tokens) for draft in drafts.values())
        if drafts or self._drafter is not None:
            self._look_at = 0
        return drafts

    def undone(self) -> None:
        """The step had no room for its drafts."""
        self._rows = self._streams
        for job in self._jobs.values():
            job.under_way = None

    def _fade(self) -> None:
        """What is known gets old: what didn't pay is tried again now and then."""
        self._costs.fade()
        if not self._steps % (FADE_EVERY * LASTING):
            self._acceptance.fade()

    def _measured_enough(self, jobs: int) -> bool:
        """Whether it is known what steps without drafts take, and was looked at lately."""
        if self._mode != "auto":
            return True
        return self._plain.get(jobs, 0) >= PLAIN_FIRST and self._since_plain < PLAIN_EVERY

    def _rate(self, jobs: int, found: Mapping[int, Draft], counts: Mapping[int, int]) -> float:
        """Tokens a second that these drafts promise; nothing where there are none."""
        if not counts or self._mode != "auto":
            return 0.0
        tokens = float(jobs)
        for key, count in counts.items():
            chance = self._chance(self._jobs[key], found[key].sureness)
            tokens += sum(chance ** (place + 1) for place in range(count))
        rows = jobs * max(counts.values()) if self._even else sum(counts.values())
        return tokens / self._costs.of(jobs + rows)

    def _by_model(
        self, drafter: Drafter, answering: Sequence[Answering], rate: float
    ) -> Mapping[int, Draft]:
        """What the drafter promises more of than `rate`, as far as it is allowed."""
        if self._mode == "model":
            self._costs.measured(len(answering), 1.0)  # which nothing is decided by
        rooms, left, masks = {}, {}, {}
        for one in answering:
            if (job := self._jobs.get(one.key)) is not None:
                rooms[one.key] = max(0, min(one.most, one.room, job.most, drafter.most))
                left[one.key], masks[one.key] = one.most, one.mask
        allowance = self._allowances[MODEL]
        terms = StepTerms(len(answering), self._costs, allowance, rate, self._even)
        drafts = drafter.drafts(rooms, left, terms)
        self._drafting = drafter.seconds
        fitting = {
            key: draft if (mask := masks[key]) is None else draft.first(mask.fitting(draft.tokens))
            for key, draft in drafts.items()
        }
        return {key: draft for key, draft in fitting.items() if draft.tokens}

    def _found(self, answering: Sequence[Answering]) -> Mapping[int, Draft]:
        """What is repeated by the texts that are looked at in this step."""
        found: dict[int, Draft] = {}
        every = SELDOM
        for one in answering:
            job = self._jobs.get(one.key)
            if job is None:
                continue
            self._judge(job)
            most = min(one.most, one.room, job.most)
            if self._mode == "model" or most <= 0:
                continue
            self._decide(job, len(answering))
            every = min(every, job.every)
            if self._steps % job.every:
                continue
            if not job.text.read():
                every = 1
            elif (draft := self._draft(job, most, one.mask)) is not None:
                found[one.key] = draft
        self._look_at = (self._steps // every + 1) * every
        return found

    def _draft(self, job: DraftingJob, most: int, mask: Mask | None) -> Draft | None:
        """At least one token."""
        if job.least is None:
            return None
        draft = job.text.find(job.tokens, most, job.least)
        if draft is None and job.owner:
            draft = self._recent.find(job.owner, job.tokens, most, job.least)
        if draft is not None and mask is not None:
            draft = draft.first(mask.fitting(draft.tokens))
        return draft if draft is not None and draft.tokens else None

    def _decide(self, job: DraftingJob, jobs: int) -> None:
        """Now and then: how many tokens must be repeated for a draft of `job` to be worth a step,
        if all others had as good ones.
        """
        if self._mode == "ngram" or self._plain.get(jobs, 0) < PLAIN_FIRST:
            job.least = 1
        elif self._steps >= job.decide_at:
            job.decide_at = self._steps + DECIDE_EVERY
            worth = self._worth(jobs)
            paying = (
                length
                for sureness, length in enumerate(FROM)
                if self._chance(job, sureness) >= worth
                and self._allowances[_kind(sureness)].covers(0.0)
            )
            job.least = next(paying, None)

    def _worth(self, jobs: int) -> float:
        """How likely each token of a draft must be drawn for it to be worth a step, if all jobs had
        such drafts; above 1 where none is. Stays so for some steps.
        """
        found, until = self._worths.get(jobs, (1.0, 0))
        if self._steps >= until:
            longest = min(self._most, TOGETHER // jobs, self._costs.reach // jobs - 1)
            plain = self._costs.of(jobs) / PAYS
            prices = [
                (count, self._costs.of(jobs + count * jobs) / plain)
                for count in LENGTHS
                if count <= longest
            ]
            found = next((chance for chance in CHANCES if _pays(chance, prices)), 2.0)
            self._worths[jobs] = found, self._steps + DECIDE_EVERY
        return found

    def _judge(self, job: DraftingJob) -> None:
        """Its last draft was verified."""
        draft, job.under_way = job.under_way, None
        job.goes_on = draft is not None and job.drawn == len(draft.tokens)
        if draft is None:
            return
        if draft.classes:
            assert self._drafter is not None
            self._drafter.judge(draft, job.drawn)
            return
        if not job.goes_on:
            job.decide_at = 0
        for acceptance in (job.acceptance, self._acceptance):
            acceptance.count(draft.sureness, len(draft.tokens), job.drawn)

    def _counts(self, jobs: int, found: Mapping[int, Draft]) -> Mapping[int, int]:
        """How many tokens of each draft make most tokens a second; only those with some."""
        if self._mode == "ngram":
            room = TOGETHER // (jobs if self._even else len(found))
            return {key: min(len(draft.tokens), room) for key, draft in found.items()}
        chances = {
            key: self._chance(self._jobs[key], draft.sureness) for key, draft in found.items()
        }
        self._kind = max(_kind(draft.sureness) for draft in found.values())
        choose = self._even_counts if self._even else self._own_counts
        return {key: count for key, count in choose(jobs, found, chances).items() if count}

    def _chance(self, job: DraftingJob, sureness: int) -> float:
        """That the next token of such a draft is drawn: as this job's were, and all jobs'."""
        own = job.acceptance.of(sureness)
        return min(SUREST, own * self._acceptance.of(sureness) / PRIORS[sureness])

    def _own_counts(
        self, jobs: int, found: Mapping[int, Draft], chances: Mapping[int, float]
    ) -> Mapping[int, int]:
        """The likeliest tokens first."""
        likeliest = sorted(
            (
                (chances[key] ** (place + 1), key)
                for key, draft in found.items()
                for place in range(len(draft.tokens))
            ),
            key=lambda token: -token[0],
        )[:TOGETHER]
        best = self._best(jobs, [chance for chance, _ in likeliest], each=1, kind=self._kind)
        return Counter(key for _, key in likeliest[:best])

    def _even_counts(
        self, jobs: int, found: Mapping[int, Draft], chances: Mapping[int, float]
    ) -> Mapping[int, int]:
        """One length for all, as far as their drafts go."""
        longest = max(len(draft.tokens) for draft in found.values())
        gains = [
            sum(chances[key] ** count for key, draft in found.items() if len(draft.tokens) >= count)
            for count in range(1, min(longest, TOGETHER // jobs) + 1)
        ]
        best = self._best(jobs, gains, each=jobs, kind=self._kind)
        return {key: min(best, len(draft.tokens)) for key, draft in found.items()}

    def _best(self, jobs: int, gains: Sequence[float], *, each: int, kind: int) -> int:
        """How many of `gains`, the tokens that `each` so many more rows are expected to bring,
        make most tokens a second. More may do so where fewer don't: see `StepCosts`.
        """
        plain, allowance = self._costs.of(jobs), self._allowances[kind]
        wrong = max(0.0, 1 - gains[0] / each) if gains else 1.0  # how likely none is drawn
        tokens, best, rate = float(jobs), 0, PAYS * jobs / plain
        for count, gain in enumerate(gains[: (self._costs.reach - jobs) // each], 1):
            tokens += gain
            cost = self._costs.of(jobs + count * each)
            if tokens > rate * cost and allowance.covers((cost - plain) * wrong):
                best, rate = count, tokens / cost
        return best

    def _plainly(self, counts: Mapping[int, int]) -> Mapping[int, StepDraft]:
        return {key: self._step_draft(key, count) for key, count in counts.items()}

    def _step_draft(self, key: int, length: int) -> StepDraft:
        """Its draft, filled up or cut to so many tokens."""
        job = self._jobs.get(key)
        draft = job.under_way if job is not None else None
        tokens = list(draft.tokens[:length]) if draft is not None else []
        if draft is not None and job is not None and len(tokens) < len(draft.tokens):
            job.under_way = draft.first(length)
        filler = tokens[-1] if tokens else 0
        return StepDraft([*tokens, *[filler] * (length - len(tokens))], len(tokens))

    def _filled(
        self, answering: Sequence[Answering], counts: Mapping[int, int]
    ) -> Mapping[int, StepDraft]:
        """All of one length. Where a job has no room for it, the others are cut."""
        length = min(max(counts.values(), default=0), *(one.room for one in answering))
        if length <= 0:
            return {}
        return {one.key: self._step_draft(one.key, length) for one in answering}

    def stepped(self, seconds: float) -> None:
        """The pass took `seconds`, of this engine's own (`StepThreads.needed`). What one took
        between two looks isn't needed.
        """
        jobs, rows = self._streams, self._rows
        self._rows = 0
        if not self._jobs or self._mode != "auto" or not rows or jobs > STREAMS:
            return
        self._costs.measured(rows, seconds)
        if rows == jobs:
            self._plain[jobs] = self._plain.get(jobs, 0) + 1
            self._since_plain = 0
        else:
            self._since_plain += 1
        plain = self._costs.of(jobs)
        for allowance in self._allowances:
            allowance.earned(plain, 1 + self._rested)
        self._rested = 0
        self._allowances[self._kind].spent(max(0.0, self._costs.of(rows) - plain))
        self._allowances[MODEL].spent(self._drafting)

    def drew(self, key: int) -> bool:
        """The next token of what was fed behind the job's newest was drawn. Whether it was meant to
        be.
        """
        if self._mode == "auto":
            self._allowances[self._kind].won(self._costs.of(self._streams) / self._streams)
        job = self._jobs.get(key)
        if job is None or job.under_way is None or job.drawn == len(job.under_way.tokens):
            return False
        job.drawn += 1
        return True
