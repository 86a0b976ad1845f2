"""The batch's wishes as columns, one row per job, and the draw for all of them together.

A table is made when the jobs of a pass change, not at every token. It knows no model: logits in,
tokens out.
"""

from collections.abc import Sequence

import torch

from backends.transformers.sampling.chooser import Chooser, Desk
from backends.transformers.sampling.reshaping import Temperature
from backends.transformers.sampling.truncation import Truncation

_NEVER = float("-inf")


class Table:
    """Draws for `choosers`, in this order."""

    def __init__(self, choosers: Sequence[Chooser], desk: Desk) -> None:
        self.choosers = tuple(choosers)
        self._ends = desk.ends
        self._bias = _stacked_biases(choosers, desk)
        self._penalties = Penalties(choosers, desk) if any(c.counts for c in choosers) else None
        self._dry = [(row, c, c.dry) for row, c in enumerate(choosers) if c.dry is not None]
        self._draws = [
            draw
            for draw in (
                Draw(
                    choosers,
                    [row for row, c in enumerate(choosers) if not c.greedy and not c.truncates],
                    desk,
                ),
                Draw(
                    choosers,
                    [row for row, c in enumerate(choosers) if not c.greedy and c.truncates],
                    desk,
                ),
            )
            if draw.rows
        ]

    def draw(self, logits: torch.Tensor) -> list[int]:
        """One token for each row of `logits` (jobs, vocabulary), float32; they are left as they
        are.

        The owners of the jobs append the tokens and then call their choosers' `drawn`.
        """
        scores = self._scores(logits)
        tokens = scores.argmax(-1)
        for draw in self._draws:
            if len(draw.rows) == len(self.choosers):
                tokens = draw.pick(scores)
            else:
                tokens[draw.rows] = draw.pick(scores[draw.rows])
        if self._penalties is not None:
            self._penalties.count(tokens)
        drawn: list[int] = tokens.tolist()
        return drawn

    def _scores(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits with everything that comes before the temperature."""
        scores = logits if self._bias is None else logits + self._bias
        if held := [row for row, chooser in enumerate(self.choosers) if chooser.must_go_on]:
            scores = scores.clone()
            for row in held:
                scores[row, self._ends] = _NEVER
        if self._penalties is not None:
            scores = self._penalties.apply(scores)
        for row, chooser, dry in self._dry:
            if costs := dry.penalties(chooser.tokens):
                scores = scores.clone() if scores is logits else scores
                scores[row, list(costs)] -= scores.new_tensor(list(costs.values()))
        return scores


def _stacked_biases(choosers: Sequence[Chooser], desk: Desk) -> torch.Tensor | None:
    if all(chooser.bias is None for chooser in choosers):
        return None
    nothing = torch.zeros(desk.size, device=desk.device)
    return torch.stack([nothing if c.bias is None else c.bias for c in choosers])


class Penalties:
    """Repetition (prompt and answer), frequency and presence (answer alone).

    The counts of all jobs lie in one table; the choosers' own become its rows, so that they follow
    it.
    """

    def __init__(self, choosers: Sequence[Chooser], desk: Desk) -> None:
        self._rows = [row for row, chooser in enumerate(choosers) if chooser.counts]
        counts = [chooser.counts for chooser in choosers if chooser.counts]
        self._seen = torch.stack([count.seen for count in counts])
        self._said = torch.stack([count.said for count in counts])
        for place, count in enumerate(counts):
            count.seen, count.said = self._seen[place], self._said[place]
        wishes = [choosers[row].sampling for row in self._rows]
        self._repetition = _column([wish.repetition_penalty for wish in wishes], desk)
        self._frequency = _column([wish.frequency_penalty for wish in wishes], desk)
        self._presence = _column([wish.presence_penalty for wish in wishes], desk)
        self._repeats = any(wish.repetition_penalty != 1 for wish in wishes)
        self._adds = any(wish.frequency_penalty or wish.presence_penalty for wish in wishes)
        self._places = torch.arange(len(counts), device=desk.device)
        self._one = torch.ones(len(counts), dtype=torch.int32, device=desk.device)
        self._all = len(self._rows) == len(choosers)

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
            said = self._said
            scores = scores - self._frequency * said - self._presence * (said > 0)
        return scores

    def count(self, tokens: torch.Tensor) -> None:
        """The jobs' new tokens, (jobs,)."""
        tokens = tokens if self._all else tokens[self._rows]
        self._seen.index_put_((self._places, tokens), self._one, accumulate=True)
        self._said.index_put_((self._places, tokens), self._one, accumulate=True)


class Draw:
    """Random draws for some `rows` of the batch: all of them truncated, or none."""

    def __init__(self, choosers: Sequence[Chooser], rows: list[int], desk: Desk) -> None:
        self.rows = rows
        self._choosers = chosen = [choosers[row] for row in rows]
        self._device = desk.device
        last = [chooser.sampling.temperature_last for chooser in chosen]
        self._before = Temperature(chosen, [not late for late in last], desk.device)
        self._after = Temperature(chosen, last, desk.device)
        truncates = any(chooser.truncates for chooser in chosen)
        self._truncation = Truncation(chosen, desk.device) if truncates else None
        self._xtc = [chooser.sampling.xtc_probability for chooser in chosen]

    def pick(self, scores: torch.Tensor) -> torch.Tensor:
        """A token for each of `scores` (rows, vocabulary)."""
        logits = self._before.apply(scores)
        if self._truncation is None:
            return self._spin(self._after.apply(logits).softmax(-1))
        candidates = self._truncation.apply(logits, self._strikes())
        probabilities = candidates.probabilities
        if self._after.changes:
            probabilities = self._after.apply(probabilities.log()).softmax(-1)
        return candidates.ids.gather(-1, self._spin(probabilities)[:, None]).squeeze(-1)

    def _strikes(self) -> torch.Tensor | None:
        """Where XTC happens this time; only jobs that want it spend a random number."""
        if not any(self._xtc):
            return None
        strikes = [
            chance > 0 and chooser.number() < chance
            for chooser, chance in zip(self._choosers, self._xtc, strict=True)
        ]
        return torch.tensor(strikes, device=self._device)[:, None]

    def _spin(self, probabilities: torch.Tensor) -> torch.Tensor:
        """Places in `probabilities` (rows, tokens), whose sums needn't be 1: the first token whose
        cumulated probability reaches above the job's number. One of zero never does.
        """
        heights = probabilities.cumsum(-1)
        numbers = torch.tensor(
            [[chooser.number()] for chooser in self._choosers], device=self._device
        )
        return torch.searchsorted(heights, numbers * heights[:, -1:], right=True).squeeze(-1)


def _column(values: Sequence[float], desk: Desk) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=desk.device)[:, None]
