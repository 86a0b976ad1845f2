"""One job's sampling parameters, and what is remembered from token to token; and the penalties of
all rows at once: repetition (prompt and answer), frequency and presence (answer alone). What is
counted of all jobs lies in one tensor each; the jobs' own become its rows, so that they follow it.
"""

import math
import random
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet

import msgspec
import torch

from backends.contract.protocol import Generation
from backends.contract.samplers import Sampling, fades, order_of
from backends.engines.constraints import Mask
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


_NEVER = float("-inf")
NOWHERE = float("-inf")  # the place of a token that never stood
_ELSE = 0x5851F42D4C957F2D  # another stream of random numbers for the same seed and place


class Counts(msgspec.Struct):
    """How often each token occurs within the penalty range. The batch that draws keeps them as rows
    of its own.
    """

    seen: torch.Tensor  # (vocabulary,): in prompt and answer
    in_answer: torch.Tensor  # (vocabulary,): in the answer

    def change(self, token: int, by: int, *, in_answer: bool) -> None:
        self.seen[token] += by
        if in_answer:
            self.in_answer[token] += by


class SamplingContext:
    """What all jobs of a model share: the vocabulary's size and ends, the tensors' device, the
    random numbers of jobs without a seed.
    """

    def __init__(self, vocabulary: HfVocabulary, device: torch.device) -> None:
        self.size = vocabulary.size
        self.ends = [token for token in sorted(vocabulary.ends) if token < vocabulary.size]
        self.device = device
        self.on_host = device.type == "cpu"
        self.breakers = vocabulary.containing
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
        self.bias = _bias(sampling, context)
        used = order_of(sampling)
        self._counts = "penalties" in used and _penalizes(sampling)
        self._fades = "penalties" in used and fades(sampling)
        self.dry: Dry | None = None
        if sampling.dry_multiplier and "dry" in used:
            self.dry = Dry(sampling, context.breakers(sampling.dry_sequence_breakers))
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
        self.counts = self._counted() if self._counts else None
        self.last = self._last_places() if self._fades else None
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
            self.counts.change(self.tokens[-1], 1, in_answer=True)
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
        if self.counts is not None and self._range >= 0 and gone >= 0:
            self.counts.change(self.tokens[gone], -1, in_answer=gone >= self._prompt)

    def rewound(self, banned: Collection[int]) -> None:
        """The newest tokens were taken back, and none of `banned` may come in their place."""
        self._remember()
        self.banned = banned

    def _counted(self) -> Counts:
        first = 0 if self._range < 0 else max(0, len(self.tokens) - self._range)
        answer = self.tokens[max(first, self._prompt) :]
        return Counts(self._occurrences(self.tokens[first:]), self._occurrences(answer))

    def _occurrences(self, tokens: Sequence[int]) -> torch.Tensor:
        size = self._context.size
        counted = torch.bincount(torch.tensor(tokens, dtype=torch.long), minlength=size)
        return counted[:size].to(device=self._context.device, dtype=torch.int32)

    def _last_places(self) -> torch.Tensor:
        """Where each token of the vocabulary stood last in `tokens`, float32; see `NOWHERE`."""
        places = dict(zip(self.tokens, range(len(self.tokens)), strict=True))  # the last one wins
        known = _known(tuple(places), self._context.size)
        row = torch.full((self._context.size,), NOWHERE)
        row[known] = torch.tensor([places[token] for token in known], dtype=torch.float32)
        return row.to(self._context.device)


def _penalizes(sampling: Sampling) -> bool:
    return bool(
        sampling.repetition_penalty != 1 or sampling.frequency_penalty or sampling.presence_penalty
    )


def _bias(sampling: Sampling, context: SamplingContext) -> torch.Tensor | None:
    """Everything that is added to the logits alike at every token, as one row; None for nothing."""
    banned = _known(sampling.banned_tokens, context.size)
    if not (sampling.logit_bias or banned or sampling.allowed_tokens or sampling.ban_eos):
        return None
    row = torch.zeros(context.size)
    if sampling.allowed_tokens:
        row.fill_(_NEVER)
        row[_known(sampling.allowed_tokens, context.size)] = 0.0
    for token, value in sampling.logit_bias:
        if 0 <= token < context.size:
            row[token] += value
    row[banned] = _NEVER
    if sampling.ban_eos:
        row[context.ends] = _NEVER
    return row.to(context.device)


def _known(tokens: Sequence[int], size: int) -> list[int]:
    return [token for token in tokens if 0 <= token < size]


class Penalties:
    """For those of `states` that have one. None that fades: see `FadingPenalty`."""

    def __init__(self, states: Sequence[SamplerState], context: SamplingContext) -> None:
        self._rows = [row for row, state in enumerate(states) if state.counts]
        counts = [state.counts for state in states if state.counts]
        self._seen = torch.stack([count.seen for count in counts])
        self._in_answer = torch.stack([count.in_answer for count in counts])
        for place, count in enumerate(counts):
            count.seen, count.in_answer = self._seen[place], self._in_answer[place]
        samplings = [states[row].sampling for row in self._rows]
        repetition = [
            1.0 if fades(sampling) else sampling.repetition_penalty for sampling in samplings
        ]
        self._repetition = column(repetition, context.device)
        self._frequency = column(
            [sampling.frequency_penalty for sampling in samplings], context.device
        )
        self._presence = column(
            [sampling.presence_penalty for sampling in samplings], context.device
        )
        self._repeats = any(penalty != 1 for penalty in repetition)
        self._adds = any(
            sampling.frequency_penalty or sampling.presence_penalty for sampling in samplings
        )
        self._places = torch.arange(len(counts), device=context.device)
        self._one = torch.ones(len(counts), dtype=torch.int32, device=context.device)
        self._all = len(self._rows) == len(states)

    def apply(self, scores: torch.Tensor) -> torch.Tensor:
        """New scores."""
        if self._all:
            return self._penalized(scores)
        changed = scores.clone()
        changed[self._rows] = self._penalized(scores[self._rows])
        return changed

    def _penalized(self, scores: torch.Tensor) -> torch.Tensor:
        if self._repeats:
            factor = torch.where(scores > 0, 1 / self._repetition, self._repetition)
            scores = torch.where(self._seen > 0, scores * factor, scores)
        if self._adds:
            in_answer = self._in_answer
            scores = scores - self._frequency * in_answer - self._presence * (in_answer > 0)
        return scores

    def count(self, tokens: torch.Tensor) -> None:
        """The jobs' new tokens, (jobs,)."""
        tokens = tokens if self._all else tokens[self._rows]
        self._seen.index_put_((self._places, tokens), self._one, accumulate=True)
        self._in_answer.index_put_((self._places, tokens), self._one, accumulate=True)


class FadingPenalty:
    """The repetition penalty of those of `states` for whom it decays with a token's age."""

    def __init__(self, states: Sequence[SamplerState], context: SamplingContext) -> None:
        self._rows = [row for row, state in enumerate(states) if state.last is not None]
        self._states = [states[row] for row in self._rows]
        self._last = torch.stack([s.last for s in self._states if s.last is not None])
        for state, last in zip(self._states, self._last, strict=True):
            state.last = last
        samplings = [state.sampling for state in self._states]
        self._columns = [
            column([getattr(sampling, field) for sampling in samplings], context.device)
            for field in ("repetition_penalty", "penalty_range", "repetition_decay")
        ]
        self._places = torch.arange(len(samplings), device=context.device)

    def apply(self, scores: torch.Tensor) -> torch.Tensor:
        """New scores."""
        newest = column([len(state.tokens) - 1 for state in self._states], scores.device)
        factors = faded(torch, newest - self._last, *self._columns)
        changed = scores.clone()
        changed[self._rows] = divided(torch, scores[self._rows], factors)
        return changed

    def count(self, tokens: torch.Tensor) -> None:
        """The jobs' new tokens, (jobs,), which don't stand in the states' yet."""
        places = [len(state.tokens) for state in self._states]
        where = (self._places, tokens[self._rows])
        self._last[where] = torch.tensor(places, dtype=torch.float32, device=tokens.device)


def column(values: Sequence[float], device: torch.device) -> torch.Tensor:
    """One number per row, (rows, 1)."""
    return torch.tensor(values, dtype=torch.float32, device=device)[:, None]
