"""The batch's wishes as columns, one row per job, and the draw for all of them together.

A table is made when the jobs of a pass change, not at every token. It knows no model: logits in,
tokens out.
"""

from collections.abc import Sequence

import torch

from backends.transformers.sampling.chooser import Chooser, Desk
from backends.transformers.sampling.draw import Draw
from backends.transformers.sampling.truncation import window

_NEVER = float("-inf")


class Table:
    """Draws for `choosers`, in this order."""

    def __init__(self, choosers: Sequence[Chooser], desk: Desk) -> None:
        self.choosers = tuple(choosers)
        self._desk = desk
        self._ends = desk.ends
        self._bias = _stacked_biases(choosers, desk)
        self._penalties = Penalties(choosers, desk) if any(c.counts for c in choosers) else None
        self._dry = [(row, c, c.dry) for row, c in enumerate(choosers) if c.dry is not None]
        self._draws = _draws(choosers, desk)

    def draw(self, logits: torch.Tensor) -> list[int]:
        """One token for each row of `logits` (jobs, vocabulary), float32; they are left as they
        are.

        One copy from the device in all, but where a row needs a wider window. It changes nothing:
        `count` does, once the tokens are taken.
        """
        scores = self._scores(logits)
        tokens: list[int] = self._picked(scores).tolist()
        if min(tokens) < 0:
            for draw in self._draws:
                _redraw(draw, scores, tokens)
        return tokens

    def _picked(self, scores: torch.Tensor) -> torch.Tensor:
        """As `Draw.pick` for those who draw; the likeliest token for the greedy ones."""
        for draw in self._draws:
            if len(draw.rows) == len(self.choosers):
                return draw.pick(scores)
        picked = scores.argmax(-1)
        for draw in self._draws:
            picked[draw.rows] = draw.pick(scores[draw.rows])
        return picked

    def count(self, tokens: Sequence[int]) -> None:
        """What was drawn counts for the penalties of the tokens to come."""
        if self._penalties is not None:
            self._penalties.count(torch.tensor(tokens, device=self._desk.device))

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


def _draws(choosers: Sequence[Chooser], desk: Desk) -> list[Draw]:
    """One for each window. How a job's token is drawn depends on its own wishes alone."""
    rows: dict[int | None, list[int]] = {}
    for row, chooser in enumerate(choosers):
        if not chooser.greedy:
            rows.setdefault(window(chooser.sampling, desk.size), []).append(row)
    return [
        Draw([choosers[row] for row in group], group, desk, first) for first, group in rows.items()
    ]


def _redraw(draw: Draw, scores: torch.Tensor, tokens: list[int]) -> None:
    """Put tokens where `draw` had to leave complements, from windows as wide as it takes."""
    while rows := [row for row in draw.rows if tokens[row] < 0]:
        draw = draw.wider(rows)
        for row, token in zip(rows, draw.pick(scores[rows]).tolist(), strict=True):
            tokens[row] = token


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


def _column(values: Sequence[float], desk: Desk) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=desk.device)[:, None]
