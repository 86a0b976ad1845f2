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
from backends.sampling.state import SamplerState

# How many of the best candidates are looked at, until nothing that stays may lie beyond. Sorting is
# what costs (16 rows of 768: all of them 520 µs, 256 of them 80, 64 of them 38; of 150,000: 186 ms,
# 5 and 3), and an answer seldom needs more than a few.
WINDOWS = (64, 1024)


class Candidates:
    """The best tokens of every row by falling probability; what is cut off has zero."""

    def __init__(self, logits: torch.Tensor, count: int) -> None:
        everything = logits.softmax(-1)
        self.probabilities, self.ids = everything.topk(min(count, logits.shape[-1]))
        self._logits = logits
        self._cut = False
        # Rows that may still keep tokens beyond those looked at: their probabilities are already
        # shares of all; the others' are shares of what stays.
        partial = self.probabilities.shape[-1] < logits.shape[-1]
        self._open = torch.full_like(self.probabilities[:, :1], partial, dtype=torch.bool)

    @property
    def open(self) -> torch.Tensor:
        """(rows,) booleans: where something may stay that was not looked at."""
        return self._open.squeeze(-1)

    @property
    def spread(self) -> torch.Tensor:
        """The standard deviation of all the row's logits."""
        there = self._logits.isfinite()
        count = there.sum(-1, keepdim=True)
        known = torch.where(there, self._logits, 0.0)
        mean = known.sum(-1, keepdim=True) / count
        squares = torch.where(there, (known - mean) ** 2, 0.0)
        return (squares.sum(-1, keepdim=True) / count).sqrt()

    def shares(self) -> torch.Tensor:
        """The probabilities among what stays."""
        if not self._cut:
            return self.probabilities
        total = self.probabilities.sum(-1, keepdim=True)
        return self.probabilities / torch.where(self._open, 1.0, total)

    def best(self) -> torch.Tensor:
        """Each row's greatest probability; before any is dropped that is the first."""
        return self.probabilities.amax(-1, keepdim=True)

    def keep(self, mask: torch.Tensor) -> None:
        """Only what `mask` marks; where that cuts a tail off, the tokens behind it are gone too."""
        self.probabilities = self.probabilities * mask
        self._open = self._open & mask.all(-1, keepdim=True)
        self._cut = True

    def reweigh(self, probabilities: torch.Tensor) -> None:
        """What stays, with other probabilities."""
        self.probabilities = probabilities

    def drop(self, mask: torch.Tensor) -> None:
        """Not what `mask` marks, whatever comes after it."""
        self.probabilities = self.probabilities * ~mask
        self._cut = True


Column: TypeAlias = torch.Tensor
Cut: TypeAlias = Callable[[Candidates, Column], None]


def top_n_sigma(candidates: Candidates, sigmas: Column) -> None:
    """No further below the best than `sigmas` standard deviations (arXiv:2411.07641)."""
    least = candidates.best() * (-sigmas * candidates.spread).exp()
    candidates.keep(candidates.probabilities >= least)


def top_k(candidates: Candidates, count: Column) -> None:
    """The best `count`."""
    ranks = torch.arange(candidates.ids.shape[-1], device=candidates.ids.device)
    candidates.keep(ranks < count)


def tail_free(candidates: Candidates, share: Column) -> None:
    """Up to where the curve of sorted probabilities stops bending."""
    bends = candidates.shares().diff(dim=-1).diff(dim=-1).abs()
    if not bends.shape[-1]:
        return
    weights = bends / bends.sum(-1, keepdim=True).clamp(min=1e-10)
    within = torch.nn.functional.pad(weights.cumsum(-1), (0, 2), value=1.0) <= share
    within[:, 0] = True
    candidates.keep(within)


def typical(candidates: Candidates, share: Column) -> None:
    """Whose surprise is nearest to the expected one, up to `share` together (arXiv:2202.00666)."""
    shares = candidates.shares()
    expected = torch.special.entr(shares).sum(-1, keepdim=True)
    order = (-shares.log() - expected).abs().argsort(dim=-1, stable=True)
    ordered = shares.gather(-1, order)
    before = ordered.cumsum(-1) - ordered
    mask = torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before <= share)
    candidates.keep(mask)


def top_p(candidates: Candidates, share: Column) -> None:
    """The fewest that have `share` of the probability together."""
    shares = candidates.shares()
    candidates.keep(shares.cumsum(-1) - shares < share)


def min_p(candidates: Candidates, share: Column) -> None:
    """At least `share` times as likely as the best."""
    candidates.keep(candidates.probabilities >= share * candidates.best())


def top_a(candidates: Candidates, share: Column) -> None:
    """At least `share` times the square of the best's probability."""
    candidates.keep(candidates.shares() >= share * candidates.shares().amax(-1, keepdim=True) ** 2)


def exclude_top(candidates: Candidates, threshold: Column, happens: Column) -> None:
    """XTC: where it `happens`, drop all above `threshold` but the least likely of them (p-e-w)."""
    above = candidates.shares() >= threshold
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
_NEUTRAL: Mapping[str, float] = {field: neutral for field, neutral, _, _ in CUTS}
_NEED_ALL = ("tfs", "typical_p")  # their cut depends on every token's probability


def window(wish: Sampling, size: int) -> int | None:
    """How many of `size` candidates to look at first; None: there is nothing to truncate.

    By the job's own wishes alone, so that its neighbours in the batch change nothing.
    """
    wanted = [field for field, neutral in _NEUTRAL.items() if _on(getattr(wish, field), neutral)]
    if not wanted and wish.xtc_probability <= 0:
        return None
    if any(field in _NEED_ALL for field in wanted):
        return size
    return wider(wish.top_k - 1, size)


def wider(count: int, size: int) -> int:
    """The next window that holds more than `count` candidates, or all `size` of them."""
    return next((enough for enough in WINDOWS if count < enough < size), size)


class Truncation:
    """All cuts that one of the rows wants, with their columns."""

    def __init__(self, states: Sequence[SamplerState], device: torch.device) -> None:
        wishes = [state.sampling for state in states]
        self._cuts = [
            (cut, _column([_value(wish, field, off) for wish in wishes], device))
            for field, neutral, cut, off in CUTS
            if any(_on(getattr(wish, field), neutral) for wish in wishes)
        ]
        self._threshold = _column([wish.xtc_threshold for wish in wishes], device)

    def cut(self, candidates: Candidates, xtc_happens: torch.Tensor | None) -> None:
        """Leave what stays. `xtc_happens` (jobs, 1): where XTC happens this time."""
        for cut, column in self._cuts:
            cut(candidates, column)
        if xtc_happens is not None:
            exclude_top(candidates, self._threshold, xtc_happens)


def _on(value: float, neutral: float) -> bool:
    """Out of range is as good as neutral: top_p above 1, a negative top_k."""
    return value < neutral if neutral == 1 else value > neutral


def _value(wish: Sampling, field: str, off: float) -> float:
    value: float = getattr(wish, field)
    return value if _on(value, _NEUTRAL[field]) else off


def _column(values: Sequence[float], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, device=device)[:, None]
