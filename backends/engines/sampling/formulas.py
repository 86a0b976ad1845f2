"""Formulas that numpy and torch both compute: one meaning of a sampler, whichever engine lacks it.

Arrays are numpy's or torch's and have shape (rows, candidates); `xp` is the module they come from.
A row's candidates are sorted, most probable first, where that is said. A column has shape (rows, 1)
or is a number. Knows neither library, and no engine.
"""

import math
from typing import Any, TypeAlias

Array: TypeAlias = Any  # numpy.ndarray or torch.Tensor
Column: TypeAlias = Any  # an array of shape (rows, 1), or a float


def smoothed(xp: Any, logits: Array, factor: Column, curve: Column) -> Array:
    """Quadratic sampling with a cubic part: kalomaze's smoothing factor and curve, as
    text-generation-webui computes them (modules/sampler_hijack.py, QuadraticSamplingLogitsWarper).
    A curve of 1 is the plain parabola, and a factor of 0 leaves a row alone.
    """
    peak = xp.amax(logits, -1, keepdims=True)
    below = xp.where(xp.isfinite(logits), logits - peak, 0.0)
    quadratic, cubic = factor * (3 - curve) / 2, factor * (curve - 1) / 2
    bent = peak - quadratic * below**2 + cubic * below**3
    return xp.where((factor > 0) & xp.isfinite(logits), bent, logits)


def within_tail_free(xp: Any, probabilities: Array, share: Column) -> Array:
    """Which of the sorted candidates stand before the curve of probabilities stops bending: those
    up to `share` of its absolute second differences (Trenton Bricken's tail-free sampling, as in
    exllamav2's tfs_cpu). The first always does; fewer than three have no second difference. What
    has a probability of 0 is no candidate any more.
    """
    if probabilities.shape[-1] < 3:
        return probabilities >= 0
    before, middle, after = (
        probabilities[..., :-2],
        probabilities[..., 1:-1],
        probabilities[..., 2:],
    )
    bends = xp.where(after > 0, xp.abs(before - 2 * middle + after), 0.0)
    total = bends.sum(-1, keepdims=True)
    reached = xp.cumsum(bends, -1) / xp.where(total > 0, total, 1.0)
    inside = xp.zeros_like(probabilities, dtype=bool)
    # The candidate behind a bend that still fits stays too; the last two have none of their own.
    inside[..., 1:-1] = (reached <= share) & (after > 0)
    inside[..., :1] = True
    return inside | (total <= 0) | (share >= 1)  # without a bend there is no tail


def above_top_a(xp: Any, probabilities: Array, share: Column) -> Array:
    """Which candidates are at least `share` times as likely as the square of the best (KoboldAI's
    top-a, as in exllamav2's top_a_cpu). In any order.
    """
    return probabilities >= share * xp.amax(probabilities, -1, keepdims=True) ** 2


def skewed(xp: Any, probabilities: Array, skew: Column) -> Array:
    """The sorted probabilities with mass moved to the head (below 0) or the tail (above 0).

    exllamav2 draws with u ** exp(-skew) in place of a uniform u, walking down the sorted candidates
    (ext_sampling.cpp, sample_basic). A candidate between the cumulative shares a and b is then met
    with the probability b ** exp(skew) - a ** exp(skew).
    """
    total = probabilities.sum(-1, keepdims=True)
    reached = xp.clip(xp.cumsum(probabilities, -1) / total, 0.0, 1.0)
    bent = reached ** xp.exp(skew + xp.zeros_like(total))
    moved = xp.zeros_like(bent)
    moved[..., 1:] = bent[..., 1:] - bent[..., :-1]
    moved[..., :1] = bent[..., :1]
    return xp.where(probabilities > 0, moved, 0.0)


def faded(xp: Any, ages: Array, penalty: Column, back: Column, decay: Column) -> Array:
    """By what a token's logit is divided (multiplied, below 0) that last stood `ages` tokens before
    the newest, 0 or more; infinitely far where it never stood: `penalty` within the last `back`
    tokens, then less and less until, `decay` tokens further, nothing is left (exllamav2's
    apply_rep_penalty_cpu).
    """
    return penalty + (1 - penalty) * xp.clip((ages - back) / decay, 0.0, 1.0)


def divided(xp: Any, logits: Array, factors: Array) -> Array:
    """A repetition penalty's way to lower a logit (CTRL, arXiv:1909.05858)."""
    return xp.where(logits > 0, logits / factors, logits * factors)


_FIRST, _SECOND = 0x7FEB352D, 0x846CA68B - (1 << 32)  # of the hash, as signed 32 bits
SCALE = 2.0**-31 * (1 - 2.0**-23)  # of 31 bits: to a share below 1
WORD = (1 << 64) - 1


def mixed(seed: int, place: int) -> int:
    """64 bits of both (SplitMix64): neighbouring seeds and places have nothing in common."""
    bits = (seed + 0x9E3779B97F4A7C15 * (place + 1)) & WORD
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & WORD
    return bits ^ (bits >> 31)


def hashed(ids: Array, low: Column, high: Column) -> Array:
    """31 random bits for each of `ids`, for the 64-bit key whose halves are `low` and `high`.
    Everything is of 32 bits with a sign, and wraps.

    Chris Wellons' `lowbias32` with the key's second half mixed in between its rounds
    (https://nullprogram.com/blog/2018/07/31/).
    """
    bits = ids ^ low
    bits ^= (bits >> 16) & 0xFFFF
    bits *= _FIRST
    bits ^= high
    bits ^= (bits >> 15) & 0x1FFFF
    bits *= _SECOND
    bits ^= (bits >> 16) & 0xFFFF
    bits &= 0x7FFFFFFF
    return bits


def halves(key: int) -> tuple[int, int]:
    """A 64-bit key as two numbers of 32 bits with a sign."""
    low, high = key & 0xFFFFFFFF, key >> 32
    return low - ((low >> 31) << 32), high - ((high >> 31) << 32)


def unit(key: int) -> float:
    """A number in [0, 1) from a 64-bit key."""
    return math.ldexp(key >> 11, -53)
