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
        self._xtc = [chooser.sampling.xtc_probability for chooser in choosers]

    def pick(self, scores: torch.Tensor) -> torch.Tensor:
        """A token for each of `scores` (rows, vocabulary)."""
        logits = self._before.apply(scores)
        if self._truncation is None:
            return _spin(self._after.apply(logits).softmax(-1), self._choosers)
        candidates = Candidates(logits, self._window)
        self._truncation.cut(candidates, self._strikes())
        if self._after.changes:
            candidates.reweigh(self._after.apply(candidates.probabilities.log()).softmax(-1))
        open_rows = candidates.open_rows()
        if open_rows:
            return self._with_more(scores, candidates, open_rows)
        return _chosen(candidates.ids, candidates.probabilities, self._choosers)

    def _with_more(
        self, scores: torch.Tensor, candidates: Candidates, open_rows: Sequence[int]
    ) -> torch.Tensor:
        """Rows that may keep more than was looked at are drawn again from the next window."""
        choosers, window = self._choosers, wider(self._window, self._desk.size)
        again = Draw([choosers[row] for row in open_rows], open_rows, self._desk, window)
        tokens = candidates.ids[:, 0].clone()
        tokens[again.rows] = again.pick(scores[again.rows])
        if done := [row for row in range(len(choosers)) if row not in again.rows]:
            ids, probabilities = candidates.ids[done], candidates.probabilities[done]
            tokens[done] = _chosen(ids, probabilities, [choosers[row] for row in done])
        return tokens

    def _strikes(self) -> torch.Tensor | None:
        """Where XTC happens this time; only jobs that want it spend a random number."""
        if not any(self._xtc):
            return None
        strikes = [
            chance > 0 and chooser.number() < chance
            for chooser, chance in zip(self._choosers, self._xtc, strict=True)
        ]
        return torch.tensor(strikes, device=self._desk.device)[:, None]


def _chosen(
    ids: torch.Tensor, probabilities: torch.Tensor, choosers: Sequence[Chooser]
) -> torch.Tensor:
    return ids.gather(-1, _spin(probabilities, choosers)[:, None]).squeeze(-1)


def _spin(probabilities: torch.Tensor, choosers: Sequence[Chooser]) -> torch.Tensor:
    """A place in each row of `probabilities` (rows, tokens), whose sums needn't be 1."""
    noise = torch.empty_like(probabilities)
    for row, chooser in zip(noise.unbind(0), choosers, strict=True):
        row.uniform_(generator=chooser.dice)
    # Minus a logarithm makes them exponential, in a third of the time of torch's `exponential_`.
    return (probabilities / noise.log_().neg_()).argmax(-1)
