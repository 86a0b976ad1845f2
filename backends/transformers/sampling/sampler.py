"""The jobs of a pass get their tokens together; where that fails, each by itself.

What one job's parameters raise is that job's alone: the others' tokens and random numbers are what
they would have been without it.
"""

from collections.abc import Callable, Sequence

import msgspec
import torch

from backends.protocol import TokenLogprob
from backends.transformers.memory import ran_out
from backends.transformers.sampling.chooser import Chooser, Desk
from backends.transformers.sampling.logprobs import logprobs
from backends.transformers.sampling.table import Table


class Sampled(msgspec.Struct, frozen=True):
    """A job's next token."""

    token: int
    logprob: TokenLogprob | None  # None: not asked for


class Sampler:
    """Keeps the table of the jobs that were last drawn for. `piece`: a token's bytes."""

    def __init__(self, desk: Desk, piece: Callable[[int], bytes]) -> None:
        self._desk = desk
        self._piece = piece
        self._table: Table | None = None

    def clear(self) -> None:
        """Forget the jobs."""
        self._table = None

    def sample(
        self, choosers: Sequence[Chooser], logits: torch.Tensor
    ) -> Sequence[Sampled | Exception]:
        """For each row of `logits` (jobs, vocabulary), float32: a token, or what its own job
        raised. The owners append the tokens and then call their choosers' `drawn`.

        Raises what means that memory ran out: that is nobody's own.
        """
        try:
            return self._together(tuple(choosers), logits)
        except Exception as error:
            if ran_out(error):
                raise
        self._table = None
        return [
            self._alone(chooser, row)
            for chooser, row in zip(choosers, logits.split(1), strict=True)
        ]

    def _together(self, choosers: tuple[Chooser, ...], logits: torch.Tensor) -> list[Sampled]:
        if self._table is None or self._table.choosers != choosers:
            self._table = Table(choosers, self._desk)
        return self._sampled(self._table, logits)

    def _alone(self, chooser: Chooser, logits: torch.Tensor) -> Sampled | Exception:
        try:
            [sampled] = self._sampled(Table([chooser], self._desk), logits)
        except Exception as error:
            if ran_out(error):
                raise
            return error
        return sampled

    def _sampled(self, table: Table, logits: torch.Tensor) -> list[Sampled]:
        tokens = table.draw(logits)
        wanted = [chooser.logprobs for chooser in table.choosers]
        told = logprobs(logits, tokens, wanted, self._piece)
        table.count(tokens)  # last: who is drawn for again has been counted nowhere
        return [Sampled(token, logprob) for token, logprob in zip(tokens, told, strict=True)]
