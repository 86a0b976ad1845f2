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

from collections.abc import Iterator, Mapping, MutableSequence, Sequence

import msgspec

from backends.engines.constraints import Mask
from backends.engines.draft_model import ModelDrafter
from backends.engines.repetitions import PRIORS, Draft, RecentAnswers, Repetitions
from backends.engines.step_costs import (
    MOST,
    TOGETHER,
    Acceptance,
    Allowance,
    StepCosts,
    StepTerms,
)
from config.engines import SpeculationOptions

STREAMS = 8  # jobs; a step of more has enough to do
FADE_EVERY = 512  # steps, after which what was measured counts less, or no more

# Why nothing is drafted for a model.
IS_OFF = "speculation is off for this model"
STAYS = "the states of its recurrent layers can't be taken back"


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
        self.under_way: Draft | None = None  # its newest draft, and how much of it was drawn
        self.drawn = 0


class Speculation:
    """The drafts of one engine's jobs. `even`: a pass takes as many tokens of each job, so that all
    drafts are of one length.

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
        drafter: ModelDrafter | None = None,
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
        self._streams = 0  # jobs of the step under way
        self._rows = 0  # tokens of it; none where it isn't measured
        self._drafting = 0.0  # seconds that its drafts took

    @property
    def is_off(self) -> bool:
        return self._mode == "off"

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

    def drafts(self, answering: Sequence[Answering]) -> Mapping[int, StepDraft]:
        """What to verify in the coming step, by key; nothing in most steps of most texts."""
        self._steps += 1
        self._streams = self._rows = jobs = len(answering)
        self._drafting = 0.0
        if not self._jobs or jobs > STREAMS:
            return {}
        if not self._steps % FADE_EVERY:
            self._costs.forget()
            self._acceptance.fade()
            if self._drafter is not None:
                self._drafter.fade()
        found = self._found(answering)  # in any case: texts are read as they grow
        if self._mode == "auto" and not self._costs.sure_of(jobs):
            return {}
        terms = StepTerms(jobs, self._costs, self._allowance, even=self._even)
        chosen, rate = self._chosen(terms, found) if found else ({}, 0.0)
        if self._drafter is not None:
            terms = msgspec.structs.replace(terms, rate=rate)
            chosen = self._by_model(self._drafter, answering, terms) or chosen
        drafts = self._fed(answering, chosen) if chosen else {}
        self._rows += sum(len(draft.tokens) for draft in drafts.values())
        return drafts

    def undone(self) -> None:
        """The step had no room for its drafts."""
        self._rows = self._streams
        for job in self._jobs.values():
            job.under_way = None

    def _by_model(
        self, drafter: ModelDrafter, answering: Sequence[Answering], terms: StepTerms
    ) -> Mapping[int, Draft]:
        """What the drafter promises more of than `terms.rate`, as far as it is allowed."""
        if self._mode == "model":
            self._costs.measured(len(answering), 1.0)  # which nothing is decided by
        jobs = {one.key: one for one in answering if one.key in self._jobs}
        rooms = {
            key: max(0, min(one.most, one.room, self._jobs[key].most, drafter.most))
            for key, one in jobs.items()
        }
        left = {key: one.most for key, one in jobs.items()}
        drafts, self._drafting = drafter.drafts(rooms, left, terms)
        fitting = {key: _fitting(draft, jobs[key].mask) for key, draft in drafts.items()}
        return {key: draft for key, draft in fitting.items() if draft.tokens}

    def _found(self, answering: Sequence[Answering]) -> Mapping[int, Draft]:
        """What the texts repeat."""
        found: dict[int, Draft] = {}
        for one in answering:
            job = self._jobs.get(one.key)
            if job is None:
                continue
            self._judge(job)
            most = min(one.most, one.room, job.most)
            if self._mode == "model" or most <= 0 or not job.text.read():
                continue
            if (draft := self._draft(job, most, one.mask)).tokens:
                found[one.key] = draft
        return found

    def _draft(self, job: DraftingJob, most: int, mask: Mask | None) -> Draft:
        own = job.text.find(job.tokens, most)
        return _fitting(own or self._recent.find(job.owner, job.tokens, most) or NOTHING, mask)

    def _judge(self, job: DraftingJob) -> None:
        """Its last draft was verified."""
        draft, job.under_way = job.under_way, None
        if draft is None:
            return
        if draft.classes:
            assert self._drafter is not None
            self._drafter.judge(draft, job.drawn)
            return
        self._acceptance.count(draft.sureness, len(draft.tokens), job.drawn)

    def _chosen(
        self, terms: StepTerms, found: Mapping[int, Draft]
    ) -> tuple[Mapping[int, Draft], float]:
        """As much of each draft as makes most tokens a second, one length for all as far as they
        go; and how many these are, where that is measured.
        """
        room = TOGETHER // (terms.jobs if self._even else len(found))
        length, rate = room, 0.0
        if self._mode != "ngram":
            chances = [self._acceptance.of(one.sureness) for one in found.values()]
            ways = self._ways(terms, [*found.values()], chances, room)
            length, rate = terms.best(ways, 1 - sum(chances) / len(chances))
        return {key: draft.first(length) for key, draft in found.items() if length}, rate

    def _ways(
        self, terms: StepTerms, drafts: Sequence[Draft], chances: Sequence[float], room: int
    ) -> Iterator[tuple[float, float]]:
        """The tokens and seconds of a step with one token of each draft, with two, and so on."""
        tokens, rows = float(terms.jobs), terms.jobs
        for place in range(min(room, max(len(draft.tokens) for draft in drafts))):
            pairs = zip(drafts, chances, strict=True)
            longer = [chance ** (place + 1) for draft, chance in pairs if len(draft.tokens) > place]
            tokens, rows = tokens + sum(longer), rows + terms.each(len(longer))
            if rows > terms.costs.reach:
                return
            yield tokens, terms.costs.of(rows)

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
        """The pass took `seconds`, of this engine's own (`StepThreads.needed`)."""
        jobs, rows = self._streams, self._rows
        self._rows = 0
        if not self._jobs or self._mode != "auto" or not rows or jobs > STREAMS:
            return
        self._costs.measured(rows, seconds)
        plain = self._costs.of(jobs)
        self._allowance.earned(plain)
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
