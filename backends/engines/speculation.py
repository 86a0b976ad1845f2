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
from collections.abc import Mapping, MutableSequence, Sequence
from typing import Protocol

import msgspec

from backends.engines.constraints import Mask
from backends.engines.repetitions import PRIORS, Draft, RecentAnswers, Repetitions
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


HOPE = 0.15  # of what tokens cost so far: what those beyond all that is known may cost
REACH = 4  # times the largest step that is known: the largest one to be tried
FASTER, SLOWER = 0.4, 0.08  # weights of a step that took less than is known, and more
SURE_OF, FORGOTTEN = 3, 0.25  # steps of a size by which it is known, and is not any more


class KnownCost(msgspec.Struct):
    """Of steps of one size: `seconds` that they take, known from so many `steps`, none counted for
    ever.
    """

    seconds: float
    steps: float = 1.0


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
            return
        weight = FASTER if seconds < known.seconds else SLOWER
        known.seconds += weight * (min(seconds, 4 * known.seconds) - known.seconds)
        known.steps = min(known.steps + 1, 2 * SURE_OF)

    def fade(self) -> None:
        """Now and then: what isn't measured any more is forgotten, and so tried again."""
        for rows in self._rows:
            self._known[rows].steps /= 2
            if self._known[rows].steps < FORGOTTEN:
                del self._known[rows]
        self._rows = sorted(self._known)

    def sure_of(self, rows: int) -> bool:
        """Whether such steps were measured often enough, and lately."""
        known = self._known.get(rows)
        return known is not None and known.steps >= SURE_OF

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
            return known.seconds
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
        last = self._rows[-1]
        return HOPE * self.of(last) / last


EARNED = 0.0015  # of the time of steps: what drafts may lose
SAVED = 12.0  # plain steps that may be saved up, of what drafts have won, too
OWED = 4.0  # plain steps that may be owed: a long draft that failed isn't the last


class Allowance:
    """What drafts may lose: a part of all time, and some of what they have won. The surer a draft
    is, the more may be owed for it: what unsure ones have lost is not in its way.
    """

    def __init__(self) -> None:
        self._left = 0.0  # seconds
        self._owed = 0.0  # at most

    def earned(self, plain: float, steps: int) -> None:
        """Steps were done, of which each would have taken so long without drafts."""
        self._owed = OWED * plain
        self._left = min(max(self._left, -self._owed) + EARNED * plain * steps, SAVED * plain)

    def spent(self, seconds: float) -> None:
        """A step took so much more for its drafts; or less, for a token that was drafted came."""
        self._left -= seconds

    def covers(self, seconds: float, wrong: float) -> bool:
        """Whether a draft may cost so much that is so likely `wrong`."""
        return self._left + self._owed * (1 - wrong) >= seconds * wrong


PAYS = 1.03  # so many times the tokens a second make drafts worth their trouble
SUREST = 0.98  # of a token's chance
# Steps after which a text is looked at again that had nothing worth a step: to look costs what a
# small model's step is a hundredth of. It is doubled each time. A power of two, so that in the
# steps between nothing is done for any job: see `Speculation.rests`.
SELDOM = 8
FADE_EVERY = 256  # steps, after which what wasn't measured meanwhile is believed less


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
        self.every = 1  # steps after which its text is looked at


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
        self._allowance = Allowance()
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
            self._costs.fade()
            self._acceptance.fade()
        found = self._found(answering)  # in any case: texts are read as they grow
        if self._mode == "auto" and not self._costs.sure_of(jobs):
            return {}
        chosen = self._chosen(jobs, found) if found else {}
        if self._drafter is not None:
            chosen = self._by_model(self._drafter, answering, self._rate(jobs, chosen)) or chosen
        drafts = self._fed(answering, chosen) if chosen else {}
        self._rows += sum(len(draft.tokens) for draft in drafts.values())
        self._rest()
        return drafts

    def undone(self) -> None:
        """The step had no room for its drafts."""
        self._rows = self._streams
        for job in self._jobs.values():
            job.under_way = None

    def _rest(self) -> None:
        """Until a text is looked at again: at once where it was drafted."""
        for job in self._jobs.values():
            busy = job.under_way is not None or job.text.is_copying
            job.every = 1 if busy else min(2 * job.every, SELDOM)
        every = min(job.every for job in self._jobs.values()) if self._drafter is None else 1
        self._look_at = (self._steps // every + 1) * every

    def _rate(self, jobs: int, chosen: Mapping[int, Draft]) -> float:
        """Tokens a second that these drafts promise; nothing where there are none."""
        if not chosen or self._mode != "auto":
            return 0.0
        tokens = float(jobs)
        for key, draft in chosen.items():
            chance = self._chance(self._jobs[key], draft.sureness)
            tokens += sum(chance ** (place + 1) for place in range(len(draft.tokens)))
        lengths = [len(draft.tokens) for draft in chosen.values()]
        return tokens / self._costs.of(jobs + (jobs * max(lengths) if self._even else sum(lengths)))

    def _by_model(
        self, drafter: Drafter, answering: Sequence[Answering], rate: float
    ) -> Mapping[int, Draft]:
        """What the drafter promises more of than `rate`, as far as it is allowed."""
        if self._mode == "model":
            self._costs.measured(len(answering), 1.0)  # which nothing is decided by
        jobs = {one.key: one for one in answering if one.key in self._jobs}
        rooms = {
            key: max(0, min(one.most, one.room, self._jobs[key].most, drafter.most))
            for key, one in jobs.items()
        }
        terms = StepTerms(len(answering), self._costs, self._allowance, rate, self._even)
        drafts = drafter.drafts(rooms, {key: one.most for key, one in jobs.items()}, terms)
        self._drafting = drafter.seconds
        fitting = {key: _fitting(draft, jobs[key].mask) for key, draft in drafts.items()}
        return {key: draft for key, draft in fitting.items() if draft.tokens}

    def _found(self, answering: Sequence[Answering]) -> Mapping[int, Draft]:
        """What is repeated by the texts that are looked at in this step."""
        found: dict[int, Draft] = {}
        for one in answering:
            job = self._jobs.get(one.key)
            if job is None:
                continue
            self._judge(job)
            most = min(one.most, one.room, job.most)
            if self._mode == "model" or most <= 0 or self._steps % job.every:
                continue
            if not job.text.read():
                job.every = 1
            elif (draft := self._draft(job, most, one.mask)) is not None:
                found[one.key] = draft
        return found

    def _draft(self, job: DraftingJob, most: int, mask: Mask | None) -> Draft | None:
        """At least one token."""
        draft = job.text.find(job.tokens, most)
        if draft is None and job.owner:
            draft = self._recent.find(job.owner, job.tokens, most)
        draft = _fitting(draft, mask) if draft is not None else None
        return draft if draft is not None and draft.tokens else None

    def _judge(self, job: DraftingJob) -> None:
        """Its last draft was verified."""
        draft, job.under_way = job.under_way, None
        if draft is None:
            return
        if draft.classes:
            assert self._drafter is not None
            self._drafter.judge(draft, job.drawn)
            return
        for acceptance in (job.acceptance, self._acceptance):
            acceptance.count(draft.sureness, len(draft.tokens), job.drawn)

    def _chance(self, job: DraftingJob, sureness: int) -> float:
        """That the next token of such a draft is drawn: as this job's were, and all jobs'."""
        own = job.acceptance.of(sureness)
        return min(SUREST, own * self._acceptance.of(sureness) / PRIORS[sureness])

    def _chosen(self, jobs: int, found: Mapping[int, Draft]) -> Mapping[int, Draft]:
        """As much of each draft as makes most tokens a second; only those with some."""
        if self._mode == "ngram":
            room = TOGETHER // (jobs if self._even else len(found))
            return {key: draft.first(room) for key, draft in found.items()}
        # The likeliest tokens first.
        likeliest = sorted(
            (
                (self._chance(self._jobs[key], draft.sureness) ** (place + 1), key, place)
                for key, draft in found.items()
                for place in range(len(draft.tokens))
            ),
            key=lambda token: -token[0],
        )
        if self._even:  # one length for all, as far as their drafts go
            gains = [0.0] * min(max(len(d.tokens) for d in found.values()), TOGETHER // jobs)
            for chance, _, place in likeliest:
                if place < len(gains):
                    gains[place] += chance
            best = self._best(jobs, gains, each=jobs)
            counts = Counter(dict.fromkeys(found, best))
        else:
            best = self._best(jobs, [chance for chance, *_ in likeliest[:TOGETHER]], each=1)
            counts = Counter(key for _, key, _ in likeliest[:best])
        return {key: draft.first(counts[key]) for key, draft in found.items() if counts[key]}

    def _best(self, jobs: int, gains: Sequence[float], *, each: int) -> int:
        """How many of `gains`, the tokens that `each` so many more rows are expected to bring,
        make most tokens a second. More may do so where fewer don't: see `StepCosts`.
        """
        plain = self._costs.of(jobs)
        wrong = max(0.0, 1 - gains[0] / each) if gains else 1.0  # how likely none is drawn
        tokens, best, rate = float(jobs), 0, PAYS * jobs / plain
        for count, gain in enumerate(gains[: (self._costs.reach - jobs) // each], 1):
            tokens += gain
            cost = self._costs.of(jobs + count * each)
            if tokens > rate * cost and self._allowance.covers(cost - plain, wrong):
                best, rate = count, tokens / cost
        return best

    def _fed(
        self, answering: Sequence[Answering], chosen: Mapping[int, Draft]
    ) -> Mapping[int, StepDraft]:
        """What is fed of the drafts; where they are to be of one length, no more than each job has
        room for, and something behind those that are shorter.
        """
        fed: dict[int, StepDraft] = {}
        length = max(len(draft.tokens) for draft in chosen.values())
        if self._even:
            length = max(0, min(length, *(one.room for one in answering)))
        for one in answering if length else ():
            draft = chosen.get(one.key, NOTHING).first(length)
            filling = length - len(draft.tokens) if self._even else 0
            if draft.tokens:
                self._jobs[one.key].under_way, self._jobs[one.key].drawn = draft, 0
            if draft.tokens or filling:
                filler = draft.tokens[-1] if draft.tokens else 0
                tokens = [*draft.tokens, *[filler] * filling]
                fed[one.key] = StepDraft(tokens, len(draft.tokens))
        return fed

    def stepped(self, seconds: float) -> None:
        """The pass took `seconds`, of this engine's own (`StepThreads.needed`). What one took
        between two looks isn't needed.
        """
        jobs, rows = self._streams, self._rows
        self._rows = 0
        if not self._jobs or self._mode != "auto" or not rows or jobs > STREAMS:
            return
        self._costs.measured(rows, seconds)
        plain = self._costs.of(jobs)
        self._allowance.earned(plain, 1 + self._rested)
        self._rested = 0
        self._allowance.spent(max(0.0, self._costs.of(rows) - plain) + self._drafting)

    def drew(self, key: int) -> bool:
        """The next token of what was fed behind the job's newest was drawn. Whether it was meant to
        be.
        """
        if self._mode == "auto":
            self._allowance.spent(-self._costs.of(self._streams) / self._streams)
        job = self._jobs.get(key)
        if job is None or job.under_way is None or job.drawn == len(job.under_way.tokens):
            return False
        job.drawn += 1
        return True


NOTHING = Draft((), 0)


def _fitting(draft: Draft, mask: Mask | None) -> Draft:
    """As much of it as may come."""
    return draft if mask is None else draft.first(mask.fitting(draft.tokens))
