"""Random draws for the jobs of a batch that are drawn the same way.

A token is the one whose probability divided by a number from its job's own exponential distribution
is greatest: that draws by the probabilities, and a tiny difference in them (another batch adds its
numbers in another order) changes the choice a hundred times more rarely than walking along their
sum does. So a seed keeps its text.
"""

from collections.abc import Sequence

import torch

from backends.transformers.sampling.chooser import Chooser, Desk
from backends.transformers.sampling.reshaping import Temperature
from backends.transformers.sampling.truncation import Candidates, Truncation, wider


class Draw:
    """For `choosers`, which are the batch's `rows`. `window`: see `truncation`."""

    def __init__(
        self, choosers: Sequence[Chooser], rows: Sequence[int], desk: Desk, window: int | None
    ) -> None:
        self.rows = list(rows)
        self._choosers = list(choosers)
        self._desk = desk
        self._window = window or desk.size
        last = [chooser.sampling.temperature_last for chooser in choosers]
        self._before = Temperature(choosers, [not late for late in last], desk.device)
        self._after = Temperature(choosers, last, desk.device)
        self._truncation = None if window is None else Truncation(choosers, desk.device)
        self._seeded = [(row, c) for row, c in enumerate(self._choosers) if c.seeded]
        self._xtc = [chooser.sampling.xtc_probability for chooser in choosers]

    def pick(self, scores: torch.Tensor) -> torch.Tensor:
        """A token for each of `scores` (rows, vocabulary), int64; its complement (~token, below 0)
        where more must stay than the window holds: such a row wants `wider`.

        Nothing here waits for the device.
        """
        logits = self._before.apply(scores)
        if self._truncation is None:
            return self._spin(self._after.apply(logits).softmax(-1))
        candidates = Candidates(logits, self._window)
        self._truncation.cut(candidates, self._strikes())
        if self._after.changes:
            candidates.reweigh(self._after.apply(candidates.probabilities.log()).softmax(-1))
        place = self._spin(candidates.probabilities)[:, None]
        tokens = candidates.ids.gather(-1, place).squeeze(-1)
        return torch.where(candidates.open, ~tokens, tokens)

    def wider(self, rows: Sequence[int]) -> "Draw":
        """For those of the batch's `rows` that it picked nothing for: the next window."""
        choosers = [self._choosers[self.rows.index(row)] for row in rows]
        return Draw(choosers, rows, self._desk, wider(self._window, self._desk.size))

    def _spin(self, probabilities: torch.Tensor) -> torch.Tensor:
        """A place in each row of `probabilities` (rows, tokens), whose sums needn't be 1."""
        noise = torch.empty_like(probabilities)
        if len(self._seeded) < len(self.rows):  # one call for all who don't mind
            noise.uniform_(generator=self._desk.dice)
        if self._seeded:
            rows = noise.unbind(0)
            for row, chooser in self._seeded:
                rows[row].uniform_(generator=chooser.dice())
        # Minus a logarithm makes them exponential, in a third of the time of `exponential_`.
        return (probabilities / noise.log_().neg_()).argmax(-1)

    def _strikes(self) -> torch.Tensor | None:
        """Where XTC happens this time; only jobs that want it spend a random number."""
        if not any(self._xtc):
            return None
        strikes = [
            chance > 0 and chooser.number() < chance
            for chooser, chance in zip(self._choosers, self._xtc, strict=True)
        ]
        return torch.tensor(strikes, device=self._desk.device)[:, None]
