"""The parameters of all rows as columns, and the draw for all of them together.

A `SamplerBatch` is made when the jobs of a pass change, not at every token. It knows no model:
logits in, tokens out.
"""

from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

import numpy as np
import torch

from backends.contract.protocol import Candidate, TokenLogprob
from backends.engines.constraints import Mask
from backends.engines.sampling.draw import Draw, DrawWay, way
from backends.engines.sampling.state import (
    AnswerPenalty,
    RepetitionPenalty,
    SamplerState,
    SamplingContext,
)

_NEVER = float("-inf")
Piece: TypeAlias = Callable[[int], bytes]


class SamplerBatch:
    """Draws for `states`, in this order."""

    def __init__(self, states: Sequence[SamplerState], context: SamplingContext) -> None:
        self.states = tuple(states)
        self._context = context
        self._bias = _stacked_biases(states, context)
        self._penalties: list[RepetitionPenalty | AnswerPenalty] = []
        if any(state.last is not None for state in states):
            self._penalties.append(RepetitionPenalty(states, context))
        if any(state.counts is not None for state in states):
            self._penalties.append(AnswerPenalty(states, context))
        self._dry = [(row, s, s.dry) for row, s in enumerate(states) if s.dry is not None]
        self._draws = _draws(states, context)
        self._learning = [(one.rows, one.feedback) for one in self._draws if one.feedback]
        self._feedback = torch.ones(len(states) if self._learning else 0, device=context.device)

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
                self._redraw(draw, scores, tokens)
        return tokens

    def _picked(self, scores: torch.Tensor) -> torch.Tensor:
        """As `Draw.pick` for those who draw; the likeliest token for the greedy ones."""
        for draw in self._draws:
            if len(draw.rows) == len(self.states):
                return self._pick(draw, scores)
        picked = scores.argmax(-1)
        for draw in self._draws:
            picked[draw.rows] = self._pick(draw, scores[draw.rows])
        return picked

    def _pick(self, draw: Draw, scores: torch.Tensor) -> torch.Tensor:
        tokens, feedback = draw.pick(scores)
        if feedback is not None:
            self._feedback[draw.rows] = feedback
        return tokens

    def _redraw(self, draw: Draw, scores: torch.Tensor, tokens: list[int]) -> None:
        """Put tokens where `draw` had to leave complements, from windows as wide as it takes."""
        while rows := [row for row in draw.rows if tokens[row] < 0]:
            draw = draw.wider(rows)
            for row, token in zip(rows, self._pick(draw, scores[rows]).tolist(), strict=True):
                tokens[row] = token

    def count(self, tokens: Sequence[int]) -> None:
        """What was drawn counts for the tokens to come. Before it stands in the states' own."""
        for rows, feedback in self._learning:
            feedback.update(self._feedback[rows])
        if self._penalties:
            drawn = torch.tensor(tokens, device=self._context.device)
            for penalty in self._penalties:
                penalty.count(drawn)

    def _scores(self, logits: torch.Tensor) -> torch.Tensor:
        """Logits with everything that comes before the temperature."""
        scores = logits if self._bias is None else logits + self._bias
        if held := [row for row, state in enumerate(self.states) if state.must_go_on]:
            scores = scores.clone()
            for row in held:
                scores[row, self._context.ends] = _NEVER
        for penalty in self._penalties:
            scores = penalty.apply(scores)
        for row, state, dry in self._dry:
            if costs := dry.penalties(state.tokens):
                scores = scores.clone() if scores is logits else scores
                scores[row, list(costs)] -= scores.new_tensor(list(costs.values()))
        scores = masked(scores, self.states, self._context)
        for row, state in enumerate(self.states):
            if state.banned:
                scores = scores.clone() if scores is logits else scores
                scores[row] = _without(scores[row], state.banned)
        return scores


def _without(scores: torch.Tensor, banned: Collection[int]) -> torch.Tensor:
    """One row without `banned`, unless no other may come."""
    changed = scores.clone()
    changed[list(banned)] = _NEVER
    return changed if bool(changed.isfinite().any()) else scores


def _draws(states: Sequence[SamplerState], context: SamplingContext) -> list[Draw]:
    """One for each `DrawWay` of the jobs."""
    rows: dict[DrawWay, list[int]] = {}
    for row, state in enumerate(states):
        if not state.greedy:
            rows.setdefault(way(state.sampling, context.size), []).append(row)
    return [
        Draw([states[row] for row in group], group, context, one) for one, group in rows.items()
    ]


def _stacked_biases(
    states: Sequence[SamplerState], context: SamplingContext
) -> torch.Tensor | None:
    if all(state.bias is None for state in states):
        return None
    nothing = torch.zeros(context.size, device=context.device)
    return torch.stack([nothing if c.bias is None else c.bias for c in states])


def masked(
    scores: torch.Tensor, states: Sequence[SamplerState], context: SamplingContext
) -> torch.Tensor:
    """`scores` (jobs, vocabulary) with minus infinity where a job's mask forbids a token; as they
    are where no job has one. Waits for masks. Raises what `Mask.allowed` does.
    """
    masks = [state.mask for state in states]
    if all(mask is None for mask in masks):
        return scores
    return scores.masked_fill(~_allowed(masks, context), _NEVER)


def _allowed(masks: Sequence[Mask | None], context: SamplingContext) -> torch.Tensor:
    """(jobs, vocabulary), bool. To a card go bits, which are unpacked there."""
    bits = np.full((len(masks), -(-context.size // 8)), 0xFF, np.uint8)
    for row, mask in zip(bits, masks, strict=True):
        if mask is not None:
            row[:] = np.frombuffer(mask.allowed(), np.uint8)
    if context.on_host:
        single = np.unpackbits(bits, axis=-1, count=context.size, bitorder="little")
        return torch.from_numpy(single).view(torch.bool)
    packed = torch.from_numpy(bits).to(context.device)
    shifts = torch.arange(8, dtype=torch.uint8, device=context.device)
    single = (packed[:, :, None] >> shifts) & 1
    return single.flatten(1)[:, : context.size].bool()


def logprobs(
    logits: torch.Tensor, tokens: Sequence[int], wanted: Sequence[int | None], piece: Piece
) -> list[TokenLogprob | None]:
    """For each row of `logits` (jobs, vocabulary) its token's logprob and `wanted` alternatives;
    None: not asked.
    """
    by_row: list[TokenLogprob | None] = [None] * len(tokens)
    rows = [row for row, count in enumerate(wanted) if count is not None]
    if not rows:
        return by_row
    distribution = logits[rows].log_softmax(-1)
    picked = torch.tensor([[tokens[row]] for row in rows], device=logits.device)
    most = min(max(wanted[row] or 0 for row in rows), logits.shape[-1])
    best = distribution.topk(most, sorted=True)
    found = (distribution.gather(-1, picked), best.values, best.indices)
    # One copy from the device; a float64 holds every id exactly.
    copied = torch.cat([part.double() for part in found], -1).tolist()
    for row, (chosen, *others) in zip(rows, copied, strict=True):
        count = min(wanted[row] or 0, most)
        values, ids = others[:count], others[most : most + count]
        by_row[row] = TokenLogprob(
            Candidate(tokens[row], piece(tokens[row]), chosen),
            tuple(
                Candidate(int(token), piece(int(token)), value)
                for token, value in zip(ids, values, strict=True)
            ),
        )
    return by_row
