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

from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from functools import partial
from typing import Protocol

import msgspec

from config.engines import SpeculationOptions

MOST = 16  # tokens drafted for a job at a time
TOGETHER = 32  # for all jobs of a step
STREAMS = 8  # jobs; a step of more has enough to do

# ------------------------------------------------------------------------------------ repetitions

SHORTEST = 3  # tokens that must be repeated before what followed them is drafted
LONGEST = 24  # tokens compared
TRIED = 4  # places compared, the newest ones
INDEXED = 16_384  # tokens of a text, the newest ones: 150 bytes each
AT_ONCE = 1_024  # tokens taken into the index in one step, a quarter of a millisecond
_BITS = 20  # of a token; of longer ones the lowest, since what is found is compared
_RUN = (1 << _BITS * SHORTEST) - 1


class Mask(Protocol):
    """See `constraints.Mask`."""

    def fitting(self, tokens: Sequence[int]) -> int: ...


class Draft(msgspec.Struct, frozen=True):
    """What may come next. `sureness`: an index of `PRIORS`, the higher the more was repeated; of
    each token an index of its own, where a model drafted them (`classes`).
    """

    tokens: Sequence[int]
    sureness: int
    classes: Sequence[int] = ()

    def first(self, count: int) -> "Draft":
        """No more than so many of its tokens."""
        return Draft(self.tokens[:count], self.sureness, self.classes[:count])


class Repetitions:
    """Finds in a growing text an earlier place that reads like its end. Costs the same for each
    token, however long the text is.

    The list is its owner's, who extends it and may shorten it. Then places are known that aren't
    there any more: what is found is compared before it is used.
    """

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._latest: dict[int, int] = {}  # behind which place a run of tokens stood last
        self._before: dict[int, int] = {}  # the place before that, of the same run
        self._read = max(0, len(tokens) - INDEXED)
        self._lag: int | None = None  # how far behind the end the text was that was drafted last

    def read(self) -> bool:
        """Take the next tokens into the index. Whether all are there."""
        tokens = self._tokens
        if len(self._latest) > 2 * INDEXED:
            self._latest.clear()
            self._before.clear()
            self._read = max(0, len(tokens) - INDEXED)
        self._read = min(self._read, len(tokens))
        first, end = self._read, min(len(tokens), self._read + AT_ONCE)
        run = self._numbered(tokens[max(0, first - SHORTEST) : first])
        for place in range(first, end):
            run = (run << _BITS | tokens[place] & _TOKEN) & _RUN
            known = self._latest.get(run)
            if known is not None:
                self._before[place + 1] = known
            self._latest[run] = place + 1
        self._read = end
        return end == len(tokens)

    def find(self, end: Sequence[int], most: int, least: int = 1) -> Draft | None:
        """What followed where the text last read like `end`, which may be its own end, in `least`
        tokens or more.
        """
        own = end is self._tokens
        place, length = self._longest(end, least, own=own)
        if not length:
            return None
        self._lag = len(end) - place if own else None
        tokens = self._following(place, most, own=own)
        return Draft(tokens, _sureness(length)) if tokens else None

    def _longest(self, end: Sequence[int], least: int, *, own: bool) -> tuple[int, int]:
        """The place with the longest repetition before it, and how long that is. What was drafted
        last is gone on with: there a shorter one will do.
        """
        place, longest = 0, 0
        if own and self._lag is not None and self._lag < len(end):
            place = len(end) - self._lag
            longest = self._alike(place, end, least)
        found = self._latest.get(self._numbered(end[-SHORTEST:]))
        for _ in range(TRIED):
            if found is None or longest == LONGEST:
                break
            length = self._alike(found, end, max(least, SHORTEST))
            if length > longest:
                place, longest = found, length
            found = self._before.get(found)
        return place, longest

    def _alike(self, place: int, end: Sequence[int], least: int) -> int:
        """How many of the tokens before `place` are the last of `end`; none at the text's end, nor
        where they are fewer than `least`, which mostly shows in one comparison.
        """
        tokens, last, length = self._tokens, len(end) - 1, 0
        most = min(LONGEST, place, len(end))
        if place >= len(tokens) or least > most or tokens[place - least] != end[-least]:
            return 0
        while length < most and tokens[place - 1 - length] == end[last - length]:
            length += 1
        return length if length >= least else 0

    def _following(self, place: int, most: int, *, own: bool) -> Sequence[int]:
        """What comes after `place`; where that is the text's own end, what it repeats goes on."""
        following = list(self._tokens[place : place + most])
        period = len(following)
        if own and period < most:
            following += [following[at % period] for at in range(period, most)]
        for at, token in enumerate(following):
            if token < 0:  # a part of a picture
                return following[:at]
        return following

    @staticmethod
    def _numbered(tokens: Iterable[int]) -> int:
        run = 0
        for token in tokens:
            run = run << _BITS | token & _TOKEN
        return run & _RUN


_TOKEN = (1 << _BITS) - 1

# How often a token is drawn that follows so much, until it is measured; from so many tokens on.
PRIORS: Sequence[float] = (0.4, 0.5, 0.65, 0.8, 0.9)
_FROM: Sequence[int] = (1, SHORTEST, 6, 10, 16)


def _sureness(length: int) -> int:
    return max(index for index, least in enumerate(_FROM) if length >= least)


# A key's recent answers, which its next ones may repeat.
ANSWERS, ANSWER_TOKENS, OWNERS = 4, 4_096, 64
WORTH_KEEPING = 32  # tokens


class RecentAnswers:
    """What was answered lately, by owner. An owner's jobs are drafted from its own answers alone:
    how fast an answer comes says what it repeats.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, deque[Repetitions]] = OrderedDict()

    def keep(self, owner: str, answer: Sequence[int]) -> None:
        """The last of the answer's tokens; the oldest answers make room."""
        if len(answer) < WORTH_KEEPING:
            return
        kept = Repetitions(list(answer[-ANSWER_TOKENS:]))
        while not kept.read():
            pass
        self._known.setdefault(owner, deque(maxlen=ANSWERS)).append(kept)
        self._known.move_to_end(owner)
        if len(self._known) > OWNERS:
            self._known.popitem(last=False)

    def find(self, owner: str, end: Sequence[int], most: int, least: int = 1) -> Draft | None:
        """See `Repetitions.find`; the newest answer first."""
        for answer in reversed(self._known.get(owner, ())):
            if (draft := answer.find(end, most, least)) is not None:
                return draft
        return None


# ------------------------------------------------------------------------------------- measuring

TRUSTED = 6.0  # tokens as which a prior counts
REMEMBERED = 128.0  # tokens; older ones count half


class Acceptance:
    """How many of the drafted tokens are drawn, by what is known of them."""

    def __init__(self, priors: Sequence[float]) -> None:
        self._priors = priors
        self._counts = [[0.0, 0.0] for _ in priors]  # drawn, and verified

    def of(self, sureness: int) -> float:
        """How likely the next token of such a draft is drawn, where those before it were."""
        drawn, verified = self._counts[sureness]
        return (drawn + TRUSTED * self._priors[sureness]) / (verified + TRUSTED)

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
FASTER, SLOWER = 0.4, 0.08  # weights of a step that took less than is known, and more


class StepCosts:
    """What steps take, by the tokens in them.

    What took less counts more: of a machine that others use too, the time that a step takes is one
    that it took when it was let.
    """

    def __init__(self) -> None:
        self._known: dict[int, float] = {}
        self._rows: list[int] = []  # ascending

    def measured(self, rows: int, seconds: float) -> None:
        """A step of `rows` tokens took `seconds`."""
        known = self._known.get(rows)
        if known is None:
            self._known[rows] = seconds
            self._rows = sorted(self._known)
            return
        weight = FASTER if seconds < known else SLOWER
        self._known[rows] = known + weight * (min(seconds, 4 * known) - known)

    def knows(self, rows: int) -> bool:
        return rows in self._known

    @property
    def known(self) -> bool:
        """Whether any step was measured."""
        return bool(self._rows)

    def of(self, rows: int) -> float:
        """Seconds; between and beyond what is known, along straight lines. At least one size must
        be known.
        """
        known = self._known.get(rows)
        if known is not None:
            return known
        below = [size for size in self._rows if size < rows]
        above = [size for size in self._rows if size > rows]
        if below and above:
            low, high = below[-1], above[0]
            part = (rows - low) / (high - low)
            return self._known[low] + part * (self._known[high] - self._known[low])
        if above:
            return self._known[above[0]]
        last = below[-1]
        return self._known[last] + (rows - last) * self._slope(below)

    def _slope(self, below: Sequence[int]) -> float:
        first, last = below[0], below[-1]
        if first == last:
            return GUESS * self._known[first]
        return max(0.0, (self._known[last] - self._known[first]) / (last - first))


EARNED = 0.005  # of the time of steps: what drafts may lose
AT_FIRST = 4.0  # plain steps that may be lost before anything was earned
SAVED = 32.0  # plain steps that may be saved up, of what drafts have won, too


class Allowance:
    """What drafts may lose: a part of all time, and some of what they have won."""

    def __init__(self) -> None:
        self._left: float | None = None  # seconds

    def stepped(self, plain: float, extra: float) -> None:
        """A step took `extra` seconds more for its drafts than the `plain` one would have."""
        left = AT_FIRST * plain if self._left is None else self._left
        self._left = min(left + EARNED * plain - extra, SAVED * plain)

    def won(self, seconds: float) -> None:
        """A drafted token was drawn, which would have taken so long."""
        if self._left is not None:
            self._left += seconds

    def covers(self, extra: float) -> bool:
        return self._left is not None and self._left >= extra


# ------------------------------------------------------------------------------------- deciding

PAYS = 1.03  # so many times the tokens a second make drafts worth their trouble
SUREST = 0.98  # of a token's chance
PLAIN_EVERY = 96  # steps with drafts, after which one without shows what it costs now
PLAIN_FIRST = 3  # steps without drafts, of each number of jobs, before the first with some
# Steps for which it stays so how long a repetition must be to be worth a step: most texts repeat a
# few tokens all the time, and to look at each costs more than it brings.
LOOK_EVERY = 32


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
    """What drafts besides a text's own repetitions: see `backends.draft_model`."""

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
        self.acceptance = Acceptance(PRIORS)
        self.under_way: Draft | None = None  # its newest draft, and how much of it was drawn
        self.drawn = 0
        self.least: int | None = 1  # tokens that must be repeated; None: nothing pays
        self.look_at = 0  # the step in which that is decided anew


class Speculation:
    """The drafts of one engine's jobs. `even`: a pass takes as many tokens of each job, so that all
    drafts are of one length.

        drafts = speculation.drafts(answering)      # what to feed besides the newest tokens
        ...the pass...
        speculation.stepped(seconds)
        speculation.drew(key)                       # for each drafted token that is drawn
    """

    def __init__(
        self, options: SpeculationOptions, *, even: bool = False, drafter: Drafter | None = None
    ) -> None:
        """`drafter`: drafts where a text's repetitions promise less."""
        self._mode = options.mode
        self._drafter = drafter if options.mode in {"auto", "model"} else None
        self._most = MOST if options.tokens == "auto" else min(options.tokens, TOGETHER)
        self._even = even
        self._jobs: dict[int, DraftingJob] = {}
        self._recent = RecentAnswers()
        self._acceptance = Acceptance(PRIORS)
        self._costs = StepCosts()
        self._allowance = Allowance()
        self._plain: dict[int, int] = {}  # steps without drafts yet, by the number of jobs
        self._since_plain = 0
        self._steps = 0
        self._streams = self._rows = 0  # jobs and tokens of the step under way
        self._drafting = 0.0  # seconds that its drafts took

    @property
    def is_off(self) -> bool:
        return self._mode == "off"

    @property
    def has_model(self) -> bool:
        """Whether a model drafts, too."""
        return self._drafter is not None

    def admit(self, key: int, tokens: MutableSequence[int], owner: str, most: int | None) -> None:
        """A job begins, whose draft may have `most` tokens; None: as many as the model's."""
        most = self._most if most is None else min(most, self._most)
        if most and not self.is_off:
            self._jobs[key] = DraftingJob(tokens, owner, most)
            if self._drafter is not None:
                self._drafter.admit(key, tokens, owner)

    def release(self, key: int) -> None:
        """A job is over. Its answer may be repeated by its owner's next ones."""
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

    # -- a step ----------------------------------------------------------------------------------

    def drafts(self, answering: Sequence[Answering]) -> Mapping[int, StepDraft]:
        """What to verify in the coming step, by key; nothing in most steps of most texts."""
        self._steps += 1
        self._streams = self._rows = jobs = len(answering)
        self._drafting = 0.0
        if not self._jobs or jobs > STREAMS:
            return {}
        found = self._found(answering)  # in any case: texts are read as they grow
        may = self._may_draft(jobs)
        counts = self._counts(jobs, found) if found and may else {}
        if self._drafter is not None and self._measured_enough(jobs):
            rate = self._rate(jobs, found, counts)
            if by_model := self._by_model(self._drafter, answering, rate):
                found = by_model
                counts = {key: len(draft.tokens) for key, draft in found.items()}
        for key, count in counts.items():
            self._jobs[key].under_way, self._jobs[key].drawn = found[key].first(count), 0
        drafts = self._filled(answering, counts) if self._even else self._plainly(counts)
        self._rows += sum(len(draft.tokens) for draft in drafts.values())
        return drafts

    def undone(self) -> None:
        """The step had no room for its drafts."""
        self._rows = self._streams
        for job in self._jobs.values():
            job.under_way = None

    def _may_draft(self, jobs: int) -> bool:
        if self._mode != "auto":
            return self._mode == "ngram"
        if not self._measured_enough(jobs):
            return False
        return self._allowance.covers(self._costs.of(jobs + 1) - self._costs.of(jobs))

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
        terms = StepTerms(len(answering), self._costs, self._allowance, rate, self._even)
        drafts = drafter.drafts(rooms, left, terms)
        self._drafting = drafter.seconds
        fitting = {
            key: draft if (mask := masks[key]) is None else draft.first(mask.fitting(draft.tokens))
            for key, draft in drafts.items()
        }
        return {key: draft for key, draft in fitting.items() if draft.tokens}

    def _found(self, answering: Sequence[Answering]) -> Mapping[int, Draft]:
        found: dict[int, Draft] = {}
        for one in answering:
            job = self._jobs.get(one.key)
            if job is None:
                continue
            self._judge(job)
            most = min(one.most, one.room, job.most)
            if self._mode == "model" or most <= 0 or not job.text.read():
                continue
            least = self._least(job, len(answering))
            if least is not None and (draft := self._draft(job, most, least)) is not None:
                if one.mask is not None:
                    fitting = one.mask.fitting(draft.tokens)
                    draft = Draft(draft.tokens[:fitting], draft.sureness)
                if draft.tokens:
                    found[one.key] = draft
        return found

    def _draft(self, job: DraftingJob, most: int, least: int) -> Draft | None:
        draft = job.text.find(job.tokens, most, least)
        if draft is None and job.owner:
            draft = self._recent.find(job.owner, job.tokens, most, least)
        return draft

    def _least(self, job: DraftingJob, jobs: int) -> int | None:
        """How many tokens must be repeated for a draft of `job` to be worth a step, if all others
        had as good ones; None: however many.
        """
        if self._mode == "ngram" or self._plain.get(jobs, 0) < PLAIN_FIRST:
            return 1
        if self._steps >= job.look_at:
            job.look_at = self._steps + LOOK_EVERY
            lengths = zip(_FROM, map(partial(self._chance, job), range(len(PRIORS))), strict=True)
            paying = (length for length, chance in lengths if self._pays(chance, job.most, jobs))
            job.least = next(paying, None)
        return job.least

    def _pays(self, chance: float, most: int, jobs: int) -> bool:
        """Whether drafts whose every token is drawn with that chance could be worth a step."""
        each = jobs if self._even else 1
        gains = [
            each * chance ** (row * each // jobs + 1)
            for row in range(min(TOGETHER, most * jobs) // each)
        ]
        return self._best(jobs, gains, each=each) > 0

    def _judge(self, job: DraftingJob) -> None:
        """Its last draft was verified."""
        if job.under_way is None:
            return
        draft, job.under_way = job.under_way, None
        if draft.classes:
            assert self._drafter is not None
            self._drafter.judge(draft, job.drawn)
            return
        job.look_at = 0
        for acceptance in (job.acceptance, self._acceptance):
            acceptance.count(draft.sureness, len(draft.tokens), job.drawn)

    # -- how much --------------------------------------------------------------------------------

    def _counts(self, jobs: int, found: Mapping[int, Draft]) -> Mapping[int, int]:
        """How many tokens of each draft make most tokens a second; only those with some."""
        if self._mode == "ngram":
            room = TOGETHER // (jobs if self._even else len(found))
            return {key: min(len(draft.tokens), room) for key, draft in found.items()}
        chances = {
            key: self._chance(self._jobs[key], draft.sureness) for key, draft in found.items()
        }
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
        best = self._best(jobs, [chance for chance, _ in likeliest], each=1)
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
        best = self._best(jobs, gains, each=jobs)
        return {key: min(best, len(draft.tokens)) for key, draft in found.items()}

    def _best(self, jobs: int, gains: Sequence[float], *, each: int) -> int:
        """How many of `gains`, the tokens that `each` so many more rows are expected to bring,
        make most tokens a second.
        """
        plain = self._costs.of(jobs)
        tokens, best, rate = float(jobs), 0, PAYS * jobs / plain
        for count, gain in enumerate(gains, 1):
            tokens += gain
            cost = self._costs.of(jobs + count * each)
            if tokens > rate * cost and self._allowance.covers(cost - plain):
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

    # -- what came of it -------------------------------------------------------------------------

    def stepped(self, seconds: float) -> None:
        """The pass took `seconds`."""
        jobs, rows = self._streams, self._rows
        if not self._jobs or self._mode != "auto" or not 0 < jobs <= STREAMS:
            return
        self._costs.measured(rows, seconds)
        if rows == jobs:
            self._plain[jobs] = self._plain.get(jobs, 0) + 1
            self._since_plain = 0
        else:
            self._since_plain += 1
        plain = self._costs.of(jobs)
        extra = max(0.0, self._costs.of(rows) - plain) + self._drafting
        self._allowance.stepped(plain, extra)

    def drew(self, key: int) -> bool:
        """The next token of what was fed behind the job's newest was drawn. Whether it was meant to
        be.
        """
        if self._mode == "auto":
            self._allowance.won(self._costs.of(self._streams) / self._streams)
        job = self._jobs.get(key)
        if job is None or job.under_way is None or job.drawn == len(job.under_way.tokens):
            return False
        job.drawn += 1
        return True
