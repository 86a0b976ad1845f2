"""One job's sampling parameters, and what they remember from token to token."""

import random
from collections.abc import Sequence

import msgspec
import torch

from backends.hf_vocabulary import HfVocabulary
from backends.protocol import Generation, Sampling
from backends.sampling.dry import Dry

_NEVER = float("-inf")
_WORD = (1 << 64) - 1

SUPPORTED = frozenset(Sampling.__struct_fields__) - {
    "skew",
    "repetition_decay",
    "mirostat_mode",
    "mirostat_tau",
    "mirostat_eta",
    "banned_strings",
}


class Counts(msgspec.Struct):
    """How often each token occurs within the penalty range. The batch that draws keeps them as rows
    of its own.
    """

    seen: torch.Tensor  # (vocabulary,): in prompt and answer
    said: torch.Tensor  # (vocabulary,): in the answer

    def change(self, token: int, by: int, *, said: bool) -> None:
        self.seen[token] += by
        if said:
            self.said[token] += by


class SamplingContext:
    """What all jobs of a model share: the vocabulary's size and ends, the tensors' device, the
    random numbers of jobs without a seed.
    """

    def __init__(self, vocabulary: HfVocabulary, device: torch.device) -> None:
        self.size = vocabulary.size
        self.ends = [token for token in sorted(vocabulary.ends) if token < vocabulary.size]
        self.device = device
        self.breakers = vocabulary.containing
        # For all jobs without a seed. Those with one have their own.
        self.generator = torch.Generator(device)
        self.generator.seed()
        self.numbers = random.Random()  # noqa: S311 - text, not secrets


class SamplerState:
    """`tokens` is the job's sequence, prompt first; its owner extends it, then calls `accepted`."""

    def __init__(self, job: Generation, tokens: Sequence[int], context: SamplingContext) -> None:
        sampling = job.sampling
        self.sampling = sampling
        self.tokens = tokens
        self.logprobs = job.logprobs
        self.greedy = sampling.temperature <= 0
        self.must_go_on = job.min_tokens
        self.bias = _bias(sampling, context)
        self.dry = (
            Dry(sampling, context.breakers(sampling.dry_sequence_breakers))
            if sampling.dry_multiplier
            else None
        )
        self._prompt = len(tokens)
        self._range = sampling.penalty_range
        self.counts = self._count(context) if _penalizes(sampling) else None
        self.seeded = sampling.seed is not None
        self._context = context
        self._generator = torch.Generator(context.device) if self.seeded else context.generator

    def generator(self) -> torch.Generator:
        """For the noise of the job's next token. With a seed, seed and place decide alone: whoever
        is in the batch, and however often the token is drawn anew.
        """
        return self._generator.manual_seed(self._mixed()) if self.seeded else self._generator

    def number(self) -> float:
        """A random number in [0, 1) for the job's next token."""
        numbers = random.Random(self._mixed()) if self.seeded else self._context.numbers  # noqa: S311 - text, not secrets
        return numbers.random()

    def _mixed(self) -> int:
        """Of seed and place, 63 bits (SplitMix64): a generator on the CPU takes the lower 32 only,
        and neighbouring seeds shall have nothing in common.
        """
        seed, place = self.sampling.seed or 0, len(self.tokens) - self._prompt
        bits = (seed + 0x9E3779B97F4A7C15 * (place + 1)) & _WORD
        bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _WORD
        return (bits ^ (bits >> 31)) >> 1

    def accepted(self) -> None:
        """A token was forced upon the job: it counts like any other."""
        if self.counts is not None:
            self.counts.change(self.tokens[-1], 1, said=True)
        self.drawn()

    def drawn(self) -> None:
        """One more token; whoever drew it has counted it already. Forget what fell out of the
        penalty range.
        """
        self.must_go_on = max(0, self.must_go_on - 1)
        gone = len(self.tokens) - 1 - self._range
        if self.counts is not None and self._range >= 0 and gone >= 0:
            self.counts.change(self.tokens[gone], -1, said=gone >= self._prompt)

    def _count(self, context: SamplingContext) -> Counts:
        first = 0 if self._range < 0 else max(0, len(self.tokens) - self._range)
        recent = self.tokens[first:]
        seen = torch.bincount(torch.tensor(recent, dtype=torch.long), minlength=context.size)
        seen = seen[: context.size].to(device=context.device, dtype=torch.int32)
        return Counts(seen, torch.zeros_like(seen))


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
