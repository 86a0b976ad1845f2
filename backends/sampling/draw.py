"""Random draws for the jobs of a batch that are drawn the same way.

A token is the one whose probability divided by a number from its job's own exponential distribution
is greatest: that draws by the probabilities, and a tiny difference in them (another batch adds its
numbers in another order) changes the choice a hundred times more rarely than walking along their
sum does. So a seed keeps its text.
"""

from collections.abc import Sequence

import torch

from backends.sampling.reshaping import Temperature
from backends.sampling.state import SamplerState, SamplingContext
from backends.sampling.truncation import Candidates, Truncation, wider


class Draw:
    """For `states`, which are the batch's `rows`. `window`: see `truncation`."""

    def __init__(
        self,
        states: Sequence[SamplerState],
        rows: Sequence[int],
        context: SamplingContext,
        window: int | None,
    ) -> None:
        self.rows = list(rows)
        self._choosers = list(states)
        self._context = context
        self._window = window or context.size
        last = [state.sampling.temperature_last for state in states]
        self._before = Temperature(states, [not late for late in last], context.device)
        self._after = Temperature(states, last, context.device)
        self._truncation = None if window is None else Truncation(states, context.device)
        self._seeded = [(row, c) for row, c in enumerate(self._choosers) if c.seeded]
        self._xtc = [state.sampling.xtc_probability for state in states]

    def pick(self, scores: torch.Tensor) -> torch.Tensor:
        """A token for each of `scores` (rows, vocabulary), int64; its complement (~token, below 0)
        where more must stay than the window holds: such a row wants `wider`.

        Nothing here waits for the device.
        """
        logits = self._before.apply(scores)
        if self._truncation is None:
            return self._sampled(self._after.apply(logits).softmax(-1))
        candidates = Candidates(logits, self._window)
        self._truncation.cut(candidates, self._xtc_happens())
        if self._after.changes:
            candidates.reweigh(self._after.apply(candidates.probabilities.log()).softmax(-1))
        place = self._sampled(candidates.probabilities)[:, None]
        tokens = candidates.ids.gather(-1, place).squeeze(-1)
        return torch.where(candidates.open, ~tokens, tokens)

    def wider(self, rows: Sequence[int]) -> "Draw":
        """For those of the batch's `rows` that it picked nothing for: the next window."""
        states = [self._choosers[self.rows.index(row)] for row in rows]
        return Draw(states, rows, self._context, wider(self._window, self._context.size))

    def _sampled(self, probabilities: torch.Tensor) -> torch.Tensor:
        """A place in each row of `probabilities` (rows, tokens), whose sums needn't be 1."""
        noise = torch.empty_like(probabilities)
        if len(self._seeded) < len(self.rows):  # one call for all who don't mind
            noise.uniform_(generator=self._context.generator)
        if self._seeded:
            rows = noise.unbind(0)
            for row, state in self._seeded:
                rows[row].uniform_(generator=state.generator())
        # Minus a logarithm makes them exponential, in a third of the time of `exponential_`.
        return (probabilities / noise.log_().neg_()).argmax(-1)

    def _xtc_happens(self) -> torch.Tensor | None:
        """Where XTC happens this time; only jobs that want it spend a random number."""
        if not any(self._xtc):
            return None
        xtc_happens = [
            chance > 0 and state.number() < chance
            for state, chance in zip(self._choosers, self._xtc, strict=True)
        ]
        return torch.tensor(xtc_happens, device=self._context.device)[:, None]
