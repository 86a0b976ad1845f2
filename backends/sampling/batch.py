"""The parameters of all rows as columns, and the draw for all of them together.

A `SamplerBatch` is made when the jobs of a pass change, not at every token. It knows no model:
logits in, tokens out.
"""

from collections.abc import Sequence

import torch

from backends.sampling.draw import Draw
from backends.sampling.state import SamplerState, SamplingContext
from backends.sampling.truncation import window

_NEVER = float("-inf")


class SamplerBatch:
    """Draws for `states`, in this order."""

    def __init__(self, states: Sequence[SamplerState], context: SamplingContext) -> None:
        self.states = tuple(states)
        self._context = context
        self._ends = context.ends
        self._bias = _stacked_biases(states, context)
        self._penalties = Penalties(states, context) if any(c.counts for c in states) else None
        self._dry = [(row, c, c.dry) for row, c in enumerate(states) if c.dry is not None]
        self._draws = _draws(states, context)

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
            if len(draw.rows) == len(self.states):
                return draw.pick(scores)
        picked = scores.argmax(-1)
        for draw in self._draws:
            picked[draw.rows] = draw.pick(scores[draw.rows])
        return picked

    def count(self, tokens: Sequence[int]) -> None:
        """What was drawn counts for the penalties of the tokens to come."""
        if self._penalties is not None:
            self._penalties.count(torch.tensor(tokens, device=self._context.device))

    def _scores(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits with everything that comes before the temperature."""
        scores = logits if self._bias is None else logits + self._bias
        if held := [row for row, state in enumerate(self.states) if state.must_go_on]:
            scores = scores.clone()
            for row in held:
                scores[row, self._ends] = _NEVER
        if self._penalties is not None:
            scores = self._penalties.apply(scores)
        for row, state, dry in self._dry:
            if costs := dry.penalties(state.tokens):
                scores = scores.clone() if scores is logits else scores
                scores[row, list(costs)] -= scores.new_tensor(list(costs.values()))
        return scores


def _draws(states: Sequence[SamplerState], context: SamplingContext) -> list[Draw]:
    """One for each window. How a job's token is drawn depends on its own wishes alone."""
    rows: dict[int | None, list[int]] = {}
    for row, state in enumerate(states):
        if not state.greedy:
            rows.setdefault(window(state.sampling, context.size), []).append(row)
    return [
        Draw([states[row] for row in group], group, context, first) for first, group in rows.items()
    ]


def _redraw(draw: Draw, scores: torch.Tensor, tokens: list[int]) -> None:
    """Put tokens where `draw` had to leave complements, from windows as wide as it takes."""
    while rows := [row for row in draw.rows if tokens[row] < 0]:
        draw = draw.wider(rows)
        for row, token in zip(rows, draw.pick(scores[rows]).tolist(), strict=True):
            tokens[row] = token


def _stacked_biases(
    states: Sequence[SamplerState], context: SamplingContext
) -> torch.Tensor | None:
    if all(state.bias is None for state in states):
        return None
    nothing = torch.zeros(context.size, device=context.device)
    return torch.stack([nothing if c.bias is None else c.bias for c in states])


class Penalties:
    """Repetition (prompt and answer), frequency and presence (answer alone).

    The counts of all jobs lie in one batch; the states' own become its rows, so that they follow
    it.
    """

    def __init__(self, states: Sequence[SamplerState], context: SamplingContext) -> None:
        self._rows = [row for row, state in enumerate(states) if state.counts]
        counts = [state.counts for state in states if state.counts]
        self._seen = torch.stack([count.seen for count in counts])
        self._said = torch.stack([count.said for count in counts])
        for place, count in enumerate(counts):
            count.seen, count.said = self._seen[place], self._said[place]
        wishes = [states[row].sampling for row in self._rows]
        self._repetition = _column([wish.repetition_penalty for wish in wishes], context)
        self._frequency = _column([wish.frequency_penalty for wish in wishes], context)
        self._presence = _column([wish.presence_penalty for wish in wishes], context)
        self._repeats = any(wish.repetition_penalty != 1 for wish in wishes)
        self._adds = any(wish.frequency_penalty or wish.presence_penalty for wish in wishes)
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
            said = self._said
            scores = scores - self._frequency * said - self._presence * (said > 0)
        return scores

    def count(self, tokens: torch.Tensor) -> None:
        """The jobs' new tokens, (jobs,)."""
        tokens = tokens if self._all else tokens[self._rows]
        self._seen.index_put_((self._places, tokens), self._one, accumulate=True)
        self._said.index_put_((self._places, tokens), self._one, accumulate=True)


def _column(values: Sequence[float], context: SamplingContext) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=context.device)[:, None]
