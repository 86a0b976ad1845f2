"""Repetition (prompt and answer), frequency and presence (answer alone), for all rows at once.

What is counted of all jobs lies in one tensor each; the jobs' own become its rows, so that they
follow it.
"""

from collections.abc import Sequence

import torch

from backends.samplers import fades
from backends.sampling.formulas import divided, faded
from backends.sampling.state import SamplerState, SamplingContext


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
