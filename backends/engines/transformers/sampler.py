"""The next tokens of jobs that share a pass, whose parameters may be at fault."""

from collections.abc import Sequence

import msgspec
import torch

from backends.contract.protocol import TokenLogprob
from backends.engines.sampling.batch import SamplerBatch, logprobs
from backends.engines.sampling.state import SamplerState, SamplingContext
from backends.engines.transformers.memory import ran_out


class Sampled(msgspec.Struct, frozen=True):
    """A job's next token."""

    token: int
    logprob: TokenLogprob | None  # None: not asked for


class Sampler(msgspec.Struct, eq=False):
    """Draws the next tokens of a pass's jobs together; where that fails, each by itself. What one
    job's parameters raise is that job's alone: the others' tokens and random numbers are what they
    would have been without it.

    Keeps the batch of the jobs that were last drawn for.
    """

    _context: SamplingContext
    _batch: SamplerBatch | None = None

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
            if self._batch is None or self._batch.states != tuple(states):
                self._batch = SamplerBatch(states, self._context)
            return self._sampled(self._batch, logits)
        except Exception as error:
            self._batch = None
            if ran_out(error):
                raise
            if len(states) == 1:
                return [error]
        rows = zip(states, logits.split(1), strict=True)
        return [one for state, row in rows for one in self.sample([state], row)]

    def _sampled(self, batch: SamplerBatch, logits: torch.Tensor) -> list[Sampled]:
        tokens = batch.draw(logits)
        wanted = [state.logprobs for state in batch.states]
        found = logprobs(logits, tokens, wanted, self._context.vocabulary.piece)
        batch.count(tokens)  # last: a job that is drawn for again was not counted
        return [Sampled(token, logprob) for token, logprob in zip(tokens, found, strict=True)]
