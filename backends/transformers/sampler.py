"""Draws the next tokens of a pass's jobs together; where that fails, each by itself.

What one job's parameters raise is that job's alone: the others' tokens and random numbers are what
they would have been without it.
"""

from collections.abc import Callable, Sequence

import msgspec
import torch

from backends.protocol import TokenLogprob
from backends.sampling.batch import SamplerBatch, logprobs
from backends.sampling.state import SamplerState, SamplingContext
from backends.transformers.memory import ran_out


class Sampled(msgspec.Struct, frozen=True):
    """A job's next token."""

    token: int
    logprob: TokenLogprob | None  # None: not asked for


class Sampler:
    """Keeps the batch of the jobs that were last drawn for. `piece`: a token's bytes."""

    def __init__(self, context: SamplingContext, piece: Callable[[int], bytes]) -> None:
        self._context = context
        self._piece = piece
        self._batch: SamplerBatch | None = None

    def clear(self) -> None:
        """Forget the jobs."""
        self._batch = None

    def sample(
        self, states: Sequence[SamplerState], logits: torch.Tensor
    ) -> Sequence[Sampled | Exception]:
        """For each row of `logits` (jobs, vocabulary), float32: a token, or what its own job
        raised. The owners append the tokens and then call their states' `drawn`.

        Raises errors of memory that ran out: they are no single job's.
        """
        try:
            return self._together(tuple(states), logits)
        except Exception as error:
            if ran_out(error):
                raise
        self._batch = None
        return [self._alone(state, row) for state, row in zip(states, logits.split(1), strict=True)]

    def _together(self, states: tuple[SamplerState, ...], logits: torch.Tensor) -> list[Sampled]:
        if self._batch is None or self._batch.states != states:
            self._batch = SamplerBatch(states, self._context)
        return self._sampled(self._batch, logits)

    def _alone(self, state: SamplerState, logits: torch.Tensor) -> Sampled | Exception:
        try:
            [sampled] = self._sampled(SamplerBatch([state], self._context), logits)
        except Exception as error:
            if ran_out(error):
                raise
            return error
        return sampled

    def _sampled(self, batch: SamplerBatch, logits: torch.Tensor) -> list[Sampled]:
        tokens = batch.draw(logits)
        wanted = [state.logprobs for state in batch.states]
        found = logprobs(logits, tokens, wanted, self._piece)
        batch.count(tokens)  # last: a job that is drawn for again was not counted
        return [Sampled(token, logprob) for token, logprob in zip(tokens, found, strict=True)]
