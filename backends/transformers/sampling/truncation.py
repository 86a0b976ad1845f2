"""Which candidates stay. Every function takes all rows at once; a neutral value keeps all of a
row's candidates.

Rows are sorted, best candidate first. The definitions are llama.cpp's (`llama-sampler.cpp`), so
that the same request means the same on both engines; top-a is KoboldAI's, tail-free sampling
Trenton Bricken's.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch

from backends.protocol import Sampling
from backends.transformers.sampling.chooser import Chooser

_NEVER = float("-inf")
ENOUGH = (
    1024  # best candidates looked at first: sorting a large vocabulary costs more than the model
)


class Candidates:
    """The best tokens of every row, and how much probability the tokens not looked at have
    together.

    `spread` is the standard deviation of all the row's logits.
    """

    def __init__(self, logits: torch.Tensor, count: int) -> None:
        self.logits, self.ids = logits.topk(min(count, logits.shape[-1]), sorted=True)
        self._everything = logits
        self._rest = torch.full_like(self.logits[:, :1], _NEVER)
        if self.logits.shape[-1] < logits.shape[-1]:
            unseen = logits.scatter(-1, self.ids, _NEVER)
            self._rest = unseen.logsumexp(-1, keepdim=True)

    @property
    def complete(self) -> bool:
        """Nothing that stays lies outside the candidates looked at."""
        return not bool((self._rest > _NEVER).any())

    @property
    def spread(self) -> torch.Tensor:
        there = self._everything.isfinite()
        count = there.sum(-1, keepdim=True)
        known = torch.where(there, self._everything, 0.0)
        mean = known.sum(-1, keepdim=True) / count
        squares = torch.where(there, (known - mean) ** 2, 0.0)
        return (squares.sum(-1, keepdim=True) / count).sqrt()

    def probabilities(self) -> torch.Tensor:
        """Of what stays; tokens not looked at are counted as long as they may stay."""
        total = torch.logaddexp(self.logits.logsumexp(-1, keepdim=True), self._rest)
        return (self.logits - total).exp()

    def keep(self, mask: torch.Tensor) -> None:
        """Only what `mask` marks; where that cuts a tail off, the tokens behind it are gone too."""
        self._rest = self._rest.masked_fill(~mask.all(-1, keepdim=True), _NEVER)
        self.logits = self.logits.masked_fill(~mask, _NEVER)

    def drop(self, mask: torch.Tensor) -> None:
        """Not what `mask` marks, whatever comes after it."""
        self.logits = self.logits.masked_fill(mask, _NEVER)


Column: TypeAlias = torch.Tensor
Cut: TypeAlias = Callable[[Candidates, Column], None]


def top_n_sigma(candidates: Candidates, sigmas: Column) -> None:
    """No further below the best than `sigmas` standard deviations (arXiv:2411.07641)."""
    candidates.keep(candidates.logits >= candidates.logits[:, :1] - sigmas * candidates.spread)


def top_k(candidates: Candidates, count: Column) -> None:
    """The best `count`."""
    ranks = torch.arange(candidates.logits.shape[-1], device=candidates.logits.device)
    candidates.keep(ranks < count)


def tail_free(candidates: Candidates, share: Column) -> None:
    """Up to where the curve of sorted probabilities stops bending."""
    bends = candidates.probabilities().diff(dim=-1).diff(dim=-1).abs()
    if not bends.shape[-1]:
        return
    weights = bends / bends.sum(-1, keepdim=True).clamp(min=1e-10)
    within = torch.nn.functional.pad(weights.cumsum(-1), (0, 2), value=1.0) <= share
    within[:, 0] = True
    candidates.keep(within)


def typical(candidates: Candidates, share: Column) -> None:
    """Whose surprise is nearest to the expected one, up to `share` together (arXiv:2202.00666)."""
    probabilities = candidates.probabilities()
    surprise = -probabilities.log()
    expected = torch.special.entr(probabilities).sum(-1, keepdim=True)
    order = (surprise - expected).abs().argsort(dim=-1, stable=True)
    ordered = probabilities.gather(-1, order)
    before = ordered.cumsum(-1) - ordered
    mask = torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before <= share)
    candidates.keep(mask)


def top_p(candidates: Candidates, share: Column) -> None:
    """The fewest that have `share` of the probability together."""
    probabilities = candidates.probabilities()
    candidates.keep(probabilities.cumsum(-1) - probabilities < share)


def min_p(candidates: Candidates, share: Column) -> None:
    """At least `share` times as likely as the best."""
    candidates.keep(candidates.logits >= candidates.logits.amax(-1, keepdim=True) + share.log())


def top_a(candidates: Candidates, share: Column) -> None:
    """At least `share` times the square of the best's probability."""
    probabilities = candidates.probabilities()
    candidates.keep(probabilities >= share * probabilities.amax(-1, keepdim=True) ** 2)


def exclude_top(candidates: Candidates, threshold: Column, happens: Column) -> None:
    """XTC: where it `happens`, drop all above `threshold` but the least likely of them (p-e-w's
    proposal).
    """
    above = candidates.probabilities() >= threshold
    others = above.sum(-1, keepdim=True) - 1
    candidates.drop(happens & (threshold <= 0.5) & above & (above.cumsum(-1) <= others))


# In the order they are applied: field, its neutral value, the cut, the value that makes it keep
# all.
CUTS: Sequence[tuple[str, float, Cut, float]] = (
    ("top_n_sigma", 0.0, top_n_sigma, 1e9),  # infinity times a spread of zero would be no number
    ("top_k", 0, top_k, float("inf")),
    ("tfs", 1.0, tail_free, float("inf")),
    ("typical_p", 1.0, typical, float("inf")),
    ("top_p", 1.0, top_p, float("inf")),
    ("min_p", 0.0, min_p, 0.0),
    ("top_a", 0.0, top_a, 0.0),
)
_NEED_ALL = ("tfs", "typical_p")  # their cut depends on every token's probability


class Truncation:
    """All cuts that one of the rows wants, with their columns."""

    def __init__(self, choosers: Sequence[Chooser], device: torch.device) -> None:
        wishes = [chooser.sampling for chooser in choosers]
        self._cuts = [
            (cut, _column([_value(wish, field, off) for wish in wishes], device))
            for field, neutral, cut, off in CUTS
            if any(_on(getattr(wish, field), neutral) for wish in wishes)
        ]
        self._whole = any(_on(getattr(wish, field), 1.0) for wish in wishes for field in _NEED_ALL)
        self._most = max([ENOUGH, *(wish.top_k for wish in wishes)])
        self._xtc = [wish.xtc_probability for wish in wishes]
        self._threshold = _column([wish.xtc_threshold for wish in wishes], device)

    def apply(self, logits: torch.Tensor, happens: torch.Tensor) -> Candidates:
        """The candidates that stay; `happens` (jobs, 1) says where XTC strikes this time."""
        if not self._whole and self._most < logits.shape[-1]:
            candidates = self._cut(Candidates(logits, self._most), happens)
            if candidates.complete:
                return candidates
        return self._cut(Candidates(logits, logits.shape[-1]), happens)

    def _cut(self, candidates: Candidates, happens: torch.Tensor) -> Candidates:
        for cut, column in self._cuts:
            cut(candidates, column)
        if any(self._xtc):
            exclude_top(candidates, self._threshold, happens)
        return candidates


_NEUTRAL: Mapping[str, float] = {field: neutral for field, neutral, _, _ in CUTS}


def _on(value: float, neutral: float) -> bool:
    """Out of range is as good as neutral: top_p above 1, a negative top_k."""
    return value < neutral if neutral == 1 else value > neutral


def _value(wish: Sampling, field: str, off: float) -> float:
    value: float = getattr(wish, field)
    return value if _on(value, _NEUTRAL[field]) else off


def _column(values: Sequence[float], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device)[:, None]
