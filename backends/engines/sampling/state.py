"""One job's sampling parameters, and what is remembered from token to token; and the penalties of
all rows at once: repetition (prompt and answer), frequency and presence (answer alone). What is
remembered of all jobs lies in one tensor each; the jobs' own become its rows, so that they follow
it.
"""

import math
import random
from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet

import msgspec
import torch

from backends.contract.protocol import Generation
from backends.contract.samplers import Sampling, fades, order_of
from backends.engines.constraints import Mask
from backends.engines.sampling.biases import biases
from backends.engines.sampling.formulas import divided, faded, mixed, unit
from backends.engines.vocabulary import HfVocabulary

_LONGEST = 50  # tokens compared; a longer match would overflow the penalty long before


class Dry(msgspec.Struct, eq=False):
    """One job's DRY: a penalty on the token that would continue a repetition, the longer the
    repetition the higher.

    After p-e-w's proposal (text-generation-webui #5677): a match of n tokens between the text's end
    and an earlier place costs that place's next token multiplier * base ** (n - allowed_length). A
    match doesn't reach over a sequence breaker. Pure Python on the job's tokens.
    """

    sampling: Sampling
    breakers: AbstractSet[int]

    def penalties(self, tokens: Sequence[int]) -> dict[int, float]:
        """What to subtract from which token's logit after `tokens`."""
        sampling = self.sampling
        window = tokens[-sampling.dry_range :] if sampling.dry_range > 0 else tokens
        return {
            token: self._cost(length - sampling.dry_allowed_length)
            for token, length in self._matches(window).items()
            if length >= sampling.dry_allowed_length
        }

    def _cost(self, excess: int) -> float:
        """Without limit where it is more than a float holds."""
        try:
            return float(self.sampling.dry_multiplier * self.sampling.dry_base**excess)
        except OverflowError:
            return math.copysign(math.inf, self.sampling.dry_multiplier)

    def _matches(self, window: Sequence[int]) -> dict[int, int]:
        """Each token that continues an earlier copy of the window's end, with the longest copy's
        length.
        """
        longest: dict[int, int] = {}
        limit = self._since_breaker(window)
        last = len(window) - 1
        if not limit:
            return longest
        for at in range(last):
            if window[at] != window[last] or window[at + 1] in self.breakers:
                continue
            length = 1
            while length < limit and length <= at and window[at - length] == window[last - length]:
                length += 1
            longest[window[at + 1]] = max(longest.get(window[at + 1], 0), length)
        return longest

    def _since_breaker(self, window: Sequence[int]) -> int:
        for count in range(min(len(window), _LONGEST)):
            if window[-1 - count] in self.breakers:
                return count
        return min(len(window), _LONGEST)


NOWHERE = float("-inf")  # the place of a token that never stood
FAR = 1e9  # tokens; a penalty without a range reaches back so far
_ELSE = 0x5851F42D4C957F2D  # another stream of random numbers for the same seed and place


class SamplingContext:
    """What all jobs of a model share: its vocabulary, the tensors' device, the random numbers of
    jobs without a seed.
    """

    def __init__(self, vocabulary: HfVocabulary, device: torch.device) -> None:
        self.size = vocabulary.size
        self.ends = [token for token in sorted(vocabulary.ends) if token < vocabulary.size]
        self.device = device
        self.on_host = device.type == "cpu"
        self.vocabulary = vocabulary
        self.seeds = random.SystemRandom()
        self.generator = torch.Generator(device)  # for all jobs without a seed
        self.generator.seed()
        self.ids = torch.arange(self.size, device=device)[None]


class SamplerState:
    """`tokens` is the job's sequence, prompt first; its owner extends it, then calls `accepted`."""

    def __init__(self, job: Generation, tokens: Sequence[int], context: SamplingContext) -> None:
        sampling = job.sampling
        self.sampling = sampling
        self.tokens = tokens
        self.logprobs = job.logprobs
        self.greedy = sampling.temperature <= 0
        bias = biases(sampling, context.size, context.ends)
        self.bias = None if bias is None else torch.from_numpy(bias).to(context.device)
        used = order_of(sampling)
        self._repeats = "penalties" in used and sampling.repetition_penalty != 1
        adds = sampling.frequency_penalty or sampling.presence_penalty
        self._adds = "penalties" in used and bool(adds)
        self.dry: Dry | None = None
        if sampling.dry_multiplier and "dry" in used:
            breakers = context.vocabulary.containing(sampling.dry_sequence_breakers)
            self.dry = Dry(sampling, breakers)
        self.mask: Mask | None = None  # which tokens may be drawn; None: all
        self.banned: Collection[int] = ()  # at the next place alone
        self._least = job.min_tokens
        self._prompt = len(tokens)
        self._range = sampling.penalty_range
        self._context = context
        self._seed = context.seeds.getrandbits(64) if sampling.seed is None else sampling.seed
        self._remember()

    def _remember(self) -> None:
        """Derive from `tokens` what the next draw needs."""
        self.must_go_on = max(0, self._least - (len(self.tokens) - self._prompt))
        # Of each token of the vocabulary, where it stood last, and how often it occurs in the
        # answer within the penalty range. The batch that draws keeps both as rows of its own.
        self.last = self._last_places() if self._repeats else None
        self.counts = self._counted() if self._adds else None
        self.feedback: torch.Tensor | None = None  # see `feedback`; None: nothing drawn yet

    @property
    def key(self) -> int:
        """64 bits for the noise of the job's next token: seed and place decide alone, whatever else
        is in the batch, and however often the place is drawn anew.
        """
        return mixed(self._seed, len(self.tokens) - self._prompt)

    def number(self) -> float:
        """A random number in [0, 1) for the job's next token."""
        return unit(mixed(self._seed ^ _ELSE, len(self.tokens) - self._prompt))

    def accepted(self) -> None:
        """A token was forced upon the job: it counts like any other."""
        if self.counts is not None:
            self.counts[self.tokens[-1]] += 1
        if self.last is not None:
            self.last[self.tokens[-1]] = len(self.tokens) - 1
        self.drawn()

    def drawn(self) -> None:
        """One more token; its batch has counted it already. Forget what fell out of the penalty
        range.
        """
        self.must_go_on = max(0, self.must_go_on - 1)
        self.banned = ()
        gone = len(self.tokens) - 1 - self._range
        if self.counts is not None and self._range >= 0 and gone >= self._prompt:
            self.counts[self.tokens[gone]] -= 1

    def rewound(self, banned: Collection[int]) -> None:
        """The newest tokens were taken back, and none of `banned` may come in their place."""
        self._remember()
        self.banned = banned

    def _counted(self) -> torch.Tensor:
        first = 0 if self._range < 0 else len(self.tokens) - self._range
        answer = torch.tensor(self.tokens[max(first, self._prompt) :], dtype=torch.long)
        counted = torch.bincount(answer, minlength=self._context.size)
        return counted[: self._context.size].to(device=self._context.device, dtype=torch.int32)

    def _last_places(self) -> torch.Tensor:
        """Float32; see `NOWHERE`."""
        places = dict(zip(self.tokens, range(len(self.tokens)), strict=True))  # the last one wins
        known = [token for token in places if 0 <= token < self._context.size]
        row = torch.full((self._context.size,), NOWHERE)
        row[known] = torch.tensor([places[token] for token in known], dtype=torch.float32)
        return row.to(self._context.device)


class RepetitionPenalty:
    """Of those of `states` that have one."""

    def __init__(self, states: Sequence[SamplerState], context: SamplingContext) -> None:
        self._rows = [row for row, state in enumerate(states) if state.last is not None]
        self._states = [states[row] for row in self._rows]
        self._last = torch.stack([s.last for s in self._states if s.last is not None])
        for state, last in zip(self._states, self._last, strict=True):
            state.last = last
        reach = zip(*(_reach(state.sampling) for state in self._states), strict=True)
        self._columns = [column(values, context.device) for values in reach]
        self._fades = any(fades(state.sampling) for state in self._states)
        self._places = torch.arange(len(self._rows), device=context.device)

    def apply(self, scores: torch.Tensor) -> torch.Tensor:
        """New scores."""
        newest = column([len(state.tokens) - 1 for state in self._states], scores.device)
        ages, (penalty, back, decay) = newest - self._last, self._columns
        if self._fades:
            factors = faded(torch, ages, penalty, back, decay)
        else:  # of a large vocabulary a third of the work
            factors = torch.where(ages < back, penalty, 1.0)
        return _changed(scores, self._rows, lambda own: divided(torch, own, factors))

    def count(self, tokens: torch.Tensor) -> None:
        """The jobs' new tokens, (jobs,), which don't stand in the states' yet."""
        places = [len(state.tokens) for state in self._states]
        where = (self._places, tokens[self._rows])
        self._last[where] = torch.tensor(places, dtype=torch.float32, device=tokens.device)


def _reach(sampling: Sampling) -> tuple[float, float, float]:
    """Penalty, range and decay, as `faded` has them. One that doesn't decay is over at once."""
    back = FAR if sampling.penalty_range < 0 else sampling.penalty_range
    if fades(sampling):
        return sampling.repetition_penalty, back, sampling.repetition_decay
    return sampling.repetition_penalty, back - 0.5, 0.5


class AnswerPenalty:
    """Frequency and presence penalty of those of `states` that have one."""

    def __init__(self, states: Sequence[SamplerState], context: SamplingContext) -> None:
        self._rows = [row for row, state in enumerate(states) if state.counts is not None]
        self._counts = torch.stack([s.counts for s in states if s.counts is not None])
        for row, counts in zip(self._rows, self._counts, strict=True):
            states[row].counts = counts
        samplings = [states[row].sampling for row in self._rows]
        self._frequency = column([one.frequency_penalty for one in samplings], context.device)
        self._presence = column([one.presence_penalty for one in samplings], context.device)
        self._places = torch.arange(len(self._rows), device=context.device)
        self._one = torch.ones(len(self._rows), dtype=torch.int32, device=context.device)

    def apply(self, scores: torch.Tensor) -> torch.Tensor:
        """New scores."""
        costs = self._frequency * self._counts + self._presence * (self._counts > 0)
        return _changed(scores, self._rows, lambda own: own - costs)

    def count(self, tokens: torch.Tensor) -> None:
        """The jobs' new tokens, (jobs,)."""
        self._counts.index_put_((self._places, tokens[self._rows]), self._one, accumulate=True)


def _changed(
    scores: torch.Tensor, rows: Sequence[int], change: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    if len(rows) == len(scores):
        return change(scores)
    changed = scores.clone()
    changed[rows] = change(scores[rows])
    return changed


def column(values: Sequence[float], device: torch.device) -> torch.Tensor:
    """One number per row, (rows, 1)."""
    return torch.tensor(values, dtype=torch.float32, device=device)[:, None]
