"""Samplers that change a distribution: truncations, which say which candidates stay, and
temperature, plain and dynamic, with smoothing.

Every function takes all rows at once; a neutral value keeps all of a row's candidates. The
definitions are llama.cpp's (`llama-sampler.cpp`), so that the same request means the same on both
engines; what it lacks is in `formulas`. Logits have shape (jobs, candidates); a candidate that is
out has minus infinity. A column has shape (jobs, 1).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch

from backends.contract.bounds import GREEDY_BELOW
from backends.contract.samplers import NEUTRAL, SAMPLERS, TRUNCATIONS, Sampling, order_of
from backends.engines.sampling.formulas import above_top_a, smoothed, within_tail_free
from backends.engines.sampling.state import column

# How many of the best candidates are taken, until nothing that stays may lie beyond. Sorting is
# what costs (16 rows of 768: all of them 520 µs, 256 of them 80, 64 of them 38; of 150,000: 186 ms,
# 5 and 3), and an answer seldom needs more than a few.
WINDOWS = (64, 256, 1024)


class Candidates:
    """The best tokens of every row by falling probability; what is cut off has zero. Without a
    `count`: all tokens, in the vocabulary's order, and nothing may be cut off.
    """

    def __init__(self, logits: torch.Tensor, count: int | None, ids: torch.Tensor) -> None:
        """`ids`: all tokens, (1, vocabulary)."""
        self.size = logits.shape[-1]
        everything = logits.softmax(-1)
        if count is None:
            self.probabilities, self.ids = everything, ids.expand_as(everything)
        else:
            self.probabilities, self.ids = everything.topk(min(count, self.size))
        self.feedback: torch.Tensor | None = (
            None  # by candidate: what `feedback` gets if it is drawn
        )
        self._logits = logits
        self._cut = False
        # Rows that may still keep tokens beyond those taken: their probabilities are already shares
        # of all; the others' are shares of what stays.
        partial = self.probabilities.shape[-1] < self.size
        self._open = torch.full_like(self.probabilities[:, :1], partial, dtype=torch.bool)
        # Where that was still so when they were changed as a whole: it took all to do that.
        self._premature = torch.zeros_like(self._open)

    @property
    def open(self) -> torch.Tensor:
        """(rows,) booleans: where something may stay that was not taken."""
        return (self._open | self._premature).squeeze(-1)

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

    def drop(self, mask: torch.Tensor) -> None:
        """Not what `mask` marks, whatever comes after it."""
        self.probabilities = self.probabilities * ~mask
        self._cut = True

    def reweigh(self, probabilities: torch.Tensor) -> None:
        """What stays, with other probabilities, which sum to 1 in each row."""
        self.probabilities = probabilities
        self._premature = self._premature | self._open


Column: TypeAlias = torch.Tensor
Cut: TypeAlias = Callable[[Candidates, Column], None]
Step: TypeAlias = Callable[[Candidates], None]


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
    candidates.keep(within_tail_free(torch, candidates.shares(), share))


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
    candidates.keep(above_top_a(torch, candidates.shares(), share))


def exclude_top(candidates: Candidates, threshold: Column, happens: Column) -> None:
    """XTC: where it `happens`, drop all above `threshold` but the least likely of them (p-e-w)."""
    above = candidates.shares() >= threshold
    others = above.sum(-1, keepdim=True) - 1
    candidates.drop(happens & (threshold <= 0.5) & above & (above.cumsum(-1) <= others))


# Field: the cut, and the value that makes it keep all.
CUTS: Mapping[str, tuple[Cut, float]] = {
    "top_n_sigma": (top_n_sigma, 1e9),  # infinity times a spread of zero would be no number
    "top_k": (top_k, float("inf")),
    "tfs": (tail_free, 2.0),
    "typical_p": (typical, float("inf")),
    "top_p": (top_p, float("inf")),
    "min_p": (min_p, 0.0),
    "top_a": (top_a, 0.0),
}
SUPPORTED = frozenset(SAMPLERS) - (set(TRUNCATIONS) - CUTS.keys())
_NEED_ALL = ("tfs", "typical_p")  # their cut depends on every token's probability


def window(sampling: Sampling, size: int) -> int | None:
    """How many of `size` candidates to take first; None: there is nothing to truncate.

    By the job's own parameters alone, so that its neighbours in the batch change nothing.
    """
    order = order_of(sampling)
    if sampling.mirostat_mode:
        return wider(0 if sampling.mirostat_mode == 2 else WINDOWS[0], size)
    wanted = [name for name in order if name in CUTS and is_on(sampling, name)]
    if not wanted and not (sampling.xtc_probability > 0 and "xtc" in order) and not sampling.skew:
        return None
    limits = [place for place, name in enumerate(wanted) if name == "top_k"]
    early = wanted[: limits[0]] if limits else wanted
    if (sampling.skew and not wanted) or any(name in _NEED_ALL for name in early):
        return size
    return wider(sampling.top_k - 1 if limits else 0, size)


def wider(count: int, size: int) -> int:
    """The next window that holds more than `count` candidates, or all `size` of them."""
    return next((enough for enough in WINDOWS if count < enough < size), size)


def is_on(sampling: Sampling, field: str) -> bool:
    """Whether the truncation does anything. Out of range is as good as neutral: top_p above 1, a
    negative top_k.
    """
    value, neutral = getattr(sampling, field), getattr(NEUTRAL, field)
    return bool(value < neutral if neutral == 1 else value > neutral)


def cut_with(samplings: Sequence[Sampling], field: str, device: torch.device) -> Step | None:
    """The truncation by `field` for rows with `samplings`; None where no row has it on."""
    cut, off = CUTS[field]
    if not any(is_on(sampling, field) for sampling in samplings):
        return None
    values = column([getattr(w, field) if is_on(w, field) else off for w in samplings], device)
    return lambda candidates: cut(candidates, values)


class Temperature:
    """The temperature of every row, dynamic where its bounds differ, after its smoothing."""

    def __init__(self, samplings: Sequence[Sampling], device: torch.device) -> None:
        ranges = [_range(sampling) for sampling in samplings]
        factors = [sampling.smoothing_factor for sampling in samplings]
        exponents = [sampling.temp_exponent for sampling in samplings]
        curves = [sampling.smoothing_curve for sampling in samplings]
        smooth, dynamic = any(factors), any(low != high for low, high in ranges)
        self._low, self._high = (column(ends, device) for ends in zip(*ranges, strict=True))
        self._exponent = column(exponents, device) if dynamic else None
        self._smooth = (column(factors, device), column(curves, device)) if smooth else None
        self.changes = smooth or any(ends != (1.0, 1.0) for ends in ranges)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """New logits."""
        if self._smooth is not None:
            logits = smoothed(torch, logits, *self._smooth)
        if self._exponent is None:
            return logits / self._low
        return logits / _dynamic(logits, self._low, self._high, self._exponent)


def _range(sampling: Sampling) -> tuple[float, float]:
    """The lowest and the highest temperature."""
    if sampling.min_temp == sampling.max_temp:
        return sampling.temperature, sampling.temperature
    return sampling.min_temp, sampling.max_temp


def _dynamic(
    logits: torch.Tensor, low: torch.Tensor, high: torch.Tensor, exponent: torch.Tensor
) -> torch.Tensor:
    """Between `low` and `high` by how unsure the model is: entropy over its greatest possible
    value.

    As llama.cpp's `temp_ext` sampler computes it.
    """
    entropy = torch.special.entr(logits.softmax(-1)).sum(-1, keepdim=True)
    most = logits.isfinite().sum(-1, keepdim=True).clamp(min=2).log()
    temperature: torch.Tensor = low + (high - low) * (entropy / most) ** exponent
    return temperature.clamp(min=GREEDY_BELOW)  # no fixed one, which stands beside it, is below
