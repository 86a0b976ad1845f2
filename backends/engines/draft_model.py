"""A small model drafts for a large one of the same vocabulary: what it would say next, for all jobs
of a step together.

It reads each job's text besides the large model, in sequences of its own (`DraftSequences`), and
says one token of each job in a pass. How many passes are worth a step is `ModelDrafter`'s to
decide: by how often what the small model was so sure of was drawn, by what its passes take, and by
what verifying takes. A text that it hasn't read yet is read in pieces, where the answer's rest is
likely to bring in what that takes; where its drafts don't pay, it rests, and is tried again now and
then.

Where two sequences are the same, the cells of one are used for the other, as
`backends.engines.cells` places them; nobody's text begins from the cells of another owner.

All of it is pure: an engine computes the passes (`DraftModel`) and measures what they take.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import structlog

from backends.contract.beginnings import common_length
from backends.contract.catalog import ModelFiles
from backends.contract.errors import LoadFailed
from backends.engines.cells import Slot, place
from backends.engines.prefill import Prefill
from backends.engines.repetitions import Draft
from backends.engines.step_costs import MOST, TOGETHER, Acceptance, StepCosts, StepTerms
from backends.engines.tokenizing import Vocabulary
from config.engines import DraftOptions, LlamaCppOptions, TransformersOptions

log = structlog.get_logger(__name__)


class Piece(msgspec.Struct, frozen=True):
    """The next tokens of the sequence in `slot`, from position `start` on."""

    slot: int
    tokens: Sequence[int]
    start: int


class Guess(msgspec.Struct, frozen=True):
    """The likeliest token behind a piece, and how likely the small model finds it."""

    token: int
    chance: float


class DraftPass(msgspec.Struct, frozen=True):
    """What is likeliest behind each piece, and the seconds that took."""

    guesses: Sequence[Guess]
    seconds: float


class DraftModel(Protocol):
    """A small model, and a KV cache of its own with so many `slots`, each of up to `length` tokens;
    up to `batch` tokens in a pass, each below `vocabulary`. One thread calls it, the engine's.
    """

    vocabulary: int
    slots: int
    length: int
    batch: int

    def feed(self, pieces: Sequence[Piece]) -> DraftPass | None:
        """One pass. None: there is no room for it in the cache; nothing was changed."""
        ...

    def cut(self, slot: int, cells: int) -> int:
        """Leave no more than the first `cells`; how many really are left."""
        ...

    def copy(self, source: int, target: int, cells: int) -> bool:
        """`target` gets the first `cells` of `source`, or more, in place of its own."""
        ...

    def clear(self) -> None:
        """Forget all sequences."""
        ...


def draft_files(
    options: LlamaCppOptions | TransformersOptions,
    recognise: Callable[[Path], ModelFiles | None],
    backend: str,
) -> ModelFiles | None:
    """The draft model that the options name, without its eyes; None: none is to draft.

    Raises LoadFailed.
    """
    if options.draft.model is None or options.speculation.mode not in {"auto", "model"}:
        return None
    path = Path(options.draft.model).expanduser()
    if not path.exists():
        raise LoadFailed(f"draft model not found: {options.draft.model}")
    found = recognise(path)
    if found is None or found.task != "generate":
        raise LoadFailed(f"the draft model {path} is not a model that {backend} can generate with")
    return msgspec.structs.replace(found, projector=None, modalities=("text",))


def say_undrafted(name: str, reason: str, options: LlamaCppOptions | TransformersOptions) -> None:
    """Log the `reason`, if there is one, where drafts were asked for."""
    mode = options.speculation.mode
    if reason and mode != "off" and (mode != "auto" or options.draft.model is not None):
        log.warning("nothing is drafted", model=name, reason=reason)


PADDING = 128  # tokens by which vocabularies may differ: rows that fill up a matrix


def check_vocabularies(name: str, own: Vocabulary, target: Vocabulary) -> None:
    """Raises LoadFailed where the draft model called `name` has another vocabulary."""
    other = f"the draft model {name} has another vocabulary"
    for token in range(min(own.size, target.size)):
        mine, theirs = own.piece(token), target.piece(token)
        if mine != theirs:
            raise LoadFailed(f"{other}: token {token} is {_shown(mine)}, and {_shown(theirs)} here")
    if abs(own.size - target.size) > PADDING:
        raise LoadFailed(f"{other}: of {own.size:,} tokens, where {target.size:,} are here")


def _shown(piece: bytes) -> str:
    return repr(piece.decode(errors="replace"))


TAIL = 64  # tokens of a text that are compared with what was read: so many may have been taken back


class DraftedText(msgspec.Struct, eq=False):
    """A job's text, and what of it the small model has read."""

    tokens: Sequence[int]
    owner: str
    is_readable: bool = True
    slot: Slot | None = None
    agreed: int = 0  # so many of the slot's tokens were the text's when that was looked at last


class DraftSequences:
    """The texts of all jobs in the small model's cache."""

    def __init__(self, model: DraftModel) -> None:
        self._model = model
        self._slots = [Slot(index) for index in range(model.slots)]
        self._texts: dict[int, DraftedText] = {}
        self._releases = 0

    def __contains__(self, key: int) -> bool:
        return key in self._texts

    def admit(self, key: int, tokens: Sequence[int], owner: str) -> None:
        """A job begins. Its owner extends `tokens`, and may shorten them."""
        self._texts[key] = DraftedText(tokens, owner)

    def release(self, key: int) -> None:
        """A job is over. Its cells stay until their slot is needed."""
        text = self._texts.pop(key, None)
        if text is not None and text.slot is not None:
            self._releases += 1
            text.slot.busy, text.slot.used = False, self._releases

    def clear(self) -> None:
        """Forget all jobs and cells."""
        self._texts.clear()
        self._slots[:] = [Slot(slot.index) for slot in self._slots]
        self._model.clear()

    def lag(self, key: int) -> int | None:
        """How many tokens before the newest one are to be read still. None: the small model can't
        read the text: it is too long, or has a token that only the large one has.
        """
        text = self._texts[key]
        if len(text.tokens) >= self._model.length or not text.is_readable:
            return None
        if text.slot is None:
            self._start(text)
        else:
            self._settle(text, text.slot)
        assert text.slot is not None
        unread = text.tokens[len(text.slot.tokens) :]
        text.is_readable = max(unread) < self._model.vocabulary
        return len(unread) - 1 if text.is_readable else None

    def _start(self, text: DraftedText) -> None:
        """Give it a slot, with what is read already; a job has one slot, and there is one for
        each.
        """
        found = place(list(text.tokens), self._slots, compact=False, owner=text.owner)
        slot, source = self._slots[found.slot], self._slots[found.source]
        if slot is not source:
            slot.copy(source)
            if not self._model.copy(source.index, slot.index, found.keep):
                slot.shorten(0)
        slot.shorten(self._model.cut(slot.index, min(found.keep, len(slot.tokens))))
        slot.busy, slot.owner = True, text.owner
        text.slot, text.agreed = slot, len(slot.tokens)

    def _settle(self, text: DraftedText, slot: Slot) -> None:
        """Cut what was drafted and didn't come, or was taken back."""
        end = min(len(slot.tokens), len(text.tokens) - 1)
        first = max(0, min(text.agreed, end) - TAIL)
        keep = first + common_length(slot.tokens[first:end], text.tokens[first:end])
        if keep == first:
            keep = common_length(slot.tokens[:first], text.tokens[:first])
        if keep < len(slot.tokens):
            slot.shorten(self._model.cut(slot.index, keep))
        text.agreed = len(slot.tokens)

    def read(self, keys: Sequence[int], most: int) -> tuple[int, float]:
        """The next tokens of these texts, oldest first, up to the newest one, `most` in all. How
        many that were, and the seconds they took; none where there is no room.
        """
        pieces, left = [], min(most, self._model.batch)
        for key in keys:
            slot, tokens = self._of(key)
            fed = len(slot.tokens)
            taken = tokens[fed : min(fed + left, len(tokens) - 1)]
            if taken:
                pieces.append(Piece(slot.index, taken, fed))
                left -= len(taken)
        done = self._fed(pieces)
        return (sum(len(piece.tokens) for piece in pieces), done.seconds) if done else (0, 0.0)

    def guess(self, drafted: Mapping[int, Sequence[int]]) -> DraftPass | None:
        """What is likeliest behind each text and what is drafted behind it already. None: there is
        no room.
        """
        pieces = []
        for key, more in drafted.items():
            slot, tokens = self._of(key)
            fed = len(slot.tokens)  # drafted ones are fed one by one
            unread = [*tokens[fed:], *more[max(0, fed - len(tokens)) :]]
            pieces.append(Piece(slot.index, unread, fed))
        return self._fed(pieces)

    def _of(self, key: int) -> tuple[Slot, Sequence[int]]:
        text = self._texts[key]
        assert text.slot is not None
        return text.slot, text.tokens

    def _fed(self, pieces: Sequence[Piece]) -> DraftPass | None:
        """One pass. Where there is no room idle slots are forgotten, those first that have been
        idle longest.
        """
        if not pieces:
            return None
        while (done := self._model.feed(pieces)) is None:
            idle = [slot for slot in self._slots if not slot.busy and slot.tokens]
            if not idle:
                return None
            least = min(idle, key=lambda slot: slot.used)
            least.shorten(self._model.cut(least.index, 0))
        for piece in pieces:
            self._slots[piece.slot].tokens += piece.tokens
        return done


# How likely the small model finds a token that it drafts, from so much on; and how often such a
# token is drawn, until it is measured.
CHANCES: Sequence[float] = (0.0, 0.3, 0.5, 0.7, 0.85, 0.95)
PRIORS: Sequence[float] = (0.2, 0.4, 0.55, 0.7, 0.85, 0.95)
AVERAGE = 0.75  # of all its tokens, until it is measured
WITHOUT_MEASURING = 4  # tokens that are drafted where nothing is measured
NEAR = 16  # tokens that are read together with the newest one, and not before
USUAL = 256.0  # tokens of an answer, until they are measured


class Growing(msgspec.Struct):
    """A draft while it grows. `classes`: of each token the index of `CHANCES`; `chance`: that all
    of them come; `expected`: how many do.
    """

    most: int
    tokens: list[int] = []
    classes: list[int] = []
    chance: float = 1.0
    expected: float = 0.0


class ModelDrafter:
    """Drafts where a text's own repetitions promise less. `vocabulary`: the large model's."""

    def __init__(
        self,
        model: DraftModel,
        options: DraftOptions,
        vocabulary: int,
        *,
        measures: bool = True,
        most: int = MOST,
    ) -> None:
        """`most`: see `Speculation`."""
        usual = MOST if measures else WITHOUT_MEASURING
        self.most = min(most, usual if options.tokens == "auto" else options.tokens)
        self._vocabulary = vocabulary
        self._measures = measures
        self._sequences = DraftSequences(model)
        self._acceptance = Acceptance(PRIORS)
        self._average = Acceptance((AVERAGE,))
        self._costs = StepCosts()
        self._prompts = Prefill()
        self._usual = USUAL
        self._batch = model.batch

    def admit(self, key: int, tokens: Sequence[int], owner: str) -> None:
        """A job begins; not one with parts of pictures, which the small model can't read."""
        if min(tokens, default=0) >= 0:
            self._sequences.admit(key, tokens, owner)

    def release(self, key: int, said: int) -> None:
        """A job is over, with an answer of `said` tokens."""
        if key in self._sequences:
            self._sequences.release(key)
            self._usual += 0.1 * (said - self._usual)

    def clear(self) -> None:
        """Forget all jobs."""
        self._sequences.clear()

    def fade(self) -> None:
        """Half of what is known counts no more: what didn't pay is tried again, now and then."""
        self._acceptance.fade()
        self._average.fade()

    def judge(self, draft: Draft, drawn: int) -> None:
        """Of a draft's tokens the first `drawn` came; the next one, if any, didn't."""
        for at, sureness in enumerate(draft.classes[: drawn + 1]):
            self._acceptance.count(sureness, 1, int(at < drawn))
        self._average.count(0, len(draft.tokens), drawn)

    def drafts(
        self, rooms: Mapping[int, int], left: Mapping[int, int], terms: StepTerms
    ) -> tuple[Mapping[int, Draft], float]:
        """What the jobs are likely to say next, where that is worth a step, and the seconds it took
        to draft. `rooms`: how many tokens may be drafted for each; `left`: how many it may say
        still.
        """
        lags = {key: self._sequences.lag(key) for key in rooms if key in self._sequences}
        # Texts that are read but for a few tokens, and how much is left of the others.
        near = [key for key, lag in lags.items() if lag is not None and lag <= NEAR and rooms[key]]
        behind = {key: lag for key, lag in lags.items() if lag is not None and lag > NEAR}
        if behind:
            self._read(behind, left, terms)
        if not near or (self._measures and not self._passes(len(near), terms)):
            return {}, 0.0
        grown, seconds = self._grow({key: min(rooms[key], self.most) for key in near}, terms)
        made = {
            key: Draft(tuple(one.tokens), 0, tuple(one.classes))
            for key, one in grown.items()
            if one.tokens
        }
        return made, seconds

    def _read(self, behind: Mapping[int, int], left: Mapping[int, int], terms: StepTerms) -> None:
        """The next piece of texts whose answers are likely to bring in what that takes."""
        keys = [key for key, lag in behind.items() if self._pays_reading(lag, left[key], terms)]
        if keys:
            lag = sum(behind[key] for key in keys)
            most = self._prompts.piece(lag, self._batch, answering=True)
            self._prompts.read(*self._sequences.read(keys, most))

    def _pays_reading(self, lag: int, left: int, terms: StepTerms) -> bool:
        if not self._measures:
            return True
        passes = self._passes(terms.jobs, terms)
        if not passes:
            return False
        tokens, seconds = self._expected(passes, terms.jobs, terms)
        saved = terms.plain / terms.jobs - seconds / tokens
        return saved * min(left, self._usual) > lag / self._prompts.rate

    def _pass_seconds(self, rows: int, terms: StepTerms) -> float:
        """Of one pass of the small model; a quarter of the large one's, until it is measured."""
        return self._costs.of(rows) if self._costs.known else terms.plain / 4

    def _expected(self, passes: int, ready: int, terms: StepTerms) -> tuple[float, float]:
        """Tokens and seconds of a step whose drafts are so long."""
        average = self._average.of(0)
        tokens = terms.jobs + ready * sum(average ** (place + 1) for place in range(passes))
        rows = terms.jobs + passes * terms.each(ready)
        return tokens, terms.costs.of(rows) + passes * self._pass_seconds(ready, terms)

    def _passes(self, ready: int, terms: StepTerms) -> int:
        """How many of them are likely to make most tokens a second; 0: it doesn't pay."""
        each = terms.each(ready)
        most = min(self.most, TOGETHER // each, (terms.costs.reach - terms.jobs) // each)
        ways = (self._expected(passes, ready, terms) for passes in range(1, most + 1))
        best, _ = terms.best(ways, 1 - self._average.of(0))
        return best

    def _grow(
        self, rooms: Mapping[int, int], terms: StepTerms
    ) -> tuple[Mapping[int, Growing], float]:
        """Pass by pass, as long as another one is likely to bring more than it takes; and the
        seconds of all.
        """
        grown = {key: Growing(most) for key, most in rooms.items()}
        each, length, seconds = terms.each(len(grown)), 0, 0.0
        while (length + 1) * each <= TOGETHER:
            growing = {key: one.tokens for key, one in grown.items() if len(one.tokens) < one.most}
            if not growing or not self._goes_on(grown, growing, length, seconds, terms):
                break
            if (done := self._sequences.guess(growing)) is None:
                break
            length, seconds = length + 1, seconds + done.seconds
            self._take(grown, growing, done)
        return grown, seconds

    def _take(
        self, grown: Mapping[int, Growing], growing: Collection[int], done: DraftPass
    ) -> None:
        self._costs.measured(len(growing), done.seconds)
        for key, guess in zip(growing, done.guesses, strict=True):
            one = grown[key]
            if guess.token >= self._vocabulary:
                one.most = len(one.tokens)
                continue
            sureness = max(at for at, least in enumerate(CHANCES) if guess.chance >= least)
            one.chance *= self._acceptance.of(sureness)
            one.expected += one.chance
            one.tokens.append(guess.token)
            one.classes.append(sureness)

    def _goes_on(
        self,
        grown: Mapping[int, Growing],
        growing: Collection[int],
        length: int,
        seconds: float,
        terms: StepTerms,
    ) -> bool:
        """Whether one more pass is likely to bring more tokens a second than those so far, which
        took `seconds`.
        """
        if not length or not self._measures:
            return True
        each = terms.each(len(grown))
        tokens = terms.jobs + sum(one.expected for one in grown.values())
        verifying = terms.costs.of(terms.jobs + length * each)
        gain = self._average.of(0) * sum(grown[key].chance for key in growing)
        cost = terms.costs.of(terms.jobs + (length + 1) * each) - verifying
        cost += self._pass_seconds(len(growing), terms)
        return gain * (verifying + seconds) > tokens * cost
