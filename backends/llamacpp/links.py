"""Samplers that llama.cpp lacks, as links of its chains: numpy on the candidates, in place.

llama.cpp calls a link with its array of candidates, as it calls its own. Of an array only what is
left of it after the links before is read, so that what costs stands behind what is cheap.
"""

import ctypes
import math
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from backends.llamacpp.library import api
from backends.protocol import Sampling
from backends.sampling.formulas import (
    SCALE,
    above_top_a,
    divided,
    faded,
    halves,
    hashed,
    mixed,
    skewed,
    smoothed,
    within_tail_free,
)

# The fields of llama.h's struct of one candidate.
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
# A candidate so far below the best adds less to a sum over a vocabulary than single precision sees.
NEGLIGIBLE = 30.0
LIKELY = 8.0  # below the best: of most distributions a few hundred candidates at most
# Of a vocabulary up to SMALL the random numbers of so many places are computed TOGETHER, because
# numpy takes as long to begin as to compute one row.
SMALL, TOGETHER = 4_096, 16
Floats: TypeAlias = npt.NDArray[np.float32]


class TokenDataArray:
    """llama.cpp's array of candidates, while a link is called."""

    def __init__(self, array: Any) -> None:
        self._array = array.contents
        count, address = self._array.size, ctypes.cast(self._array.data, ctypes.c_void_p).value
        memory = (ctypes.c_char * (count * _CANDIDATE.itemsize)).from_address(address)
        self._rows = np.frombuffer(memory, _CANDIDATE)

    @property
    def ids(self) -> npt.NDArray[np.int32]:
        return self._rows["id"]

    @property
    def logits(self) -> Floats:
        """To be changed in place, by callers that then call `reordered` if others may lead."""
        return self._rows["logit"]

    def probabilities(self) -> Floats:
        powers = np.exp(self.logits - self.logits.max())
        return np.asarray(powers / powers.sum())

    def sort(self) -> None:
        """The most likely first."""
        if not self._array.sorted:
            self._rows[:] = self._rows[np.argsort(-self.logits, kind="stable")]
            self._array.sorted = True

    def keep(self, mask: npt.NDArray[np.bool_]) -> None:
        """Only those of `mask`, in their order; never none."""
        kept = self._rows[mask]
        if len(kept):
            self._rows[: len(kept)] = kept
            self._rows = self._rows[: len(kept)]
            self._array.size = len(kept)

    def reordered(self) -> None:
        self._array.sorted = False

    def select(self, place: int) -> None:
        """It is the token that is drawn."""
        self._array.selected = place


class OwnLink:
    """A sampler made of a function. The owner of a chain with `pointer` keeps the link as long as
    the chain; the chain frees the pointer.
    """

    def __init__(
        self, apply: Callable[[TokenDataArray], None], accept: Callable[[int], None] | None = None
    ) -> None:
        self.error: Exception | None = None  # what `apply` raised: llama.cpp can't pass it on
        self._apply = apply
        self._called = api.llama_sampler_i_apply(self._on_apply)
        self._interface = api.llama_sampler_i(apply=self._called)
        if accept is not None:
            self._accepted = api.llama_sampler_i_accept(lambda _, token: accept(token))
            self._interface.accept = self._accepted
        self.pointer = api.llama_sampler_init(ctypes.byref(self._interface), None)

    def _on_apply(self, _: Any, array: Any) -> None:
        try:
            self._apply(TokenDataArray(array))
        except Exception as error:  # noqa: BLE001 - see `error`
            self.error = error


def smoothing(sampling: Sampling) -> OwnLink:
    """See `formulas.smoothed`."""
    factor, curve = sampling.smoothing_factor, sampling.smoothing_curve

    def apply(candidates: TokenDataArray) -> None:
        candidates.logits[:] = smoothed(np, candidates.logits[None], factor, curve)[0]
        candidates.reordered()  # a curve below 1 may lift the tail

    return OwnLink(apply)


def tail_free(sampling: Sampling) -> OwnLink:
    """See `formulas.within_tail_free`."""

    def apply(candidates: TokenDataArray) -> None:
        logits = candidates.logits
        candidates.keep(logits >= logits.max() - NEGLIGIBLE)
        candidates.sort()
        candidates.keep(within_tail_free(np, candidates.probabilities()[None], sampling.tfs)[0])

    return OwnLink(apply)


def top_a(sampling: Sampling) -> OwnLink:
    """See `formulas.above_top_a`."""

    def apply(candidates: TokenDataArray) -> None:
        candidates.keep(above_top_a(np, candidates.probabilities()[None], sampling.top_a)[0])

    return OwnLink(apply)


def skewing(sampling: Sampling) -> OwnLink:
    """See `formulas.skewed`."""

    def apply(candidates: TokenDataArray) -> None:
        candidates.sort()
        moved = skewed(np, candidates.probabilities()[None], np.float32(sampling.skew))[0]
        with np.errstate(divide="ignore"):
            candidates.logits[:] = np.log(moved)
        candidates.reordered()

    return OwnLink(apply)


def fading_penalty(sampling: Sampling, size: int, tokens: Iterable[int]) -> OwnLink:
    """The repetition penalty where it decays, see `formulas.faded`; `tokens`: the prompt."""
    last = np.full(size, -np.inf, np.float32)  # the place where each token stood last
    count = 0

    def accept(token: int) -> None:
        nonlocal count
        last[token] = count
        count += 1

    def apply(candidates: TokenDataArray) -> None:
        ages = count - 1 - last[candidates.ids]
        back, decay = sampling.penalty_range, sampling.repetition_decay
        factors = faded(np, ages, np.float32(sampling.repetition_penalty), back, decay)
        candidates.logits[:] = divided(np, candidates.logits, factors)
        candidates.reordered()

    for token in tokens:
        accept(token)
    return OwnLink(apply, accept)


def drawing(seed: int, size: int) -> OwnLink:
    """Draws with random numbers that each token has by itself, from the seed and the place in the
    answer alone: so the same seed draws the same among others, where logits are a little different
    and may have another order. llama.cpp walks along the candidates with one number for all.

    Of exponential times at rates of the probabilities the first is drawn, as in `sampling.draw`.
    `size`: of the vocabulary.
    """
    place = 0
    table = np.empty((0, size), np.float32)  # of the places after the one that divides by TOGETHER

    def accept(_token: int) -> None:
        nonlocal place
        place += 1

    def apply(candidates: TokenDataArray) -> None:
        nonlocal table
        if size > SMALL:
            candidates.select(_first(candidates.logits, hashed(candidates.ids, *key(place))))
            return
        row = place % TOGETHER
        if not row or not len(table):
            keys = np.array([halves(mixed(seed, place - row + k)) for k in range(TOGETHER)], "i4")
            ids = np.arange(size, dtype=np.int32)[None]
            table = _log_times(hashed(ids, keys[:, :1], keys[:, 1:]))
        candidates.select(int((candidates.logits - table[row][candidates.ids]).argmax()))

    def key(place: int) -> tuple[np.int32, np.int32]:
        low, high = halves(mixed(seed, place))
        return np.int32(low), np.int32(high)

    return OwnLink(apply, accept)


def _first(logits: Floats, bits: npt.NDArray[np.int32]) -> int:
    """The candidate whose time comes first. Of a whole vocabulary most can't be it: they are so
    unlikely that their bits had to be lower than they are, which needs no logarithms.
    """
    likely = logits > logits.max() - LIKELY
    best = float((logits[likely] - _log_times(bits[likely])).max())
    latest = -math.expm1(-math.exp(min(0.0, float(logits.max()) - LIKELY - best))) / SCALE
    [left] = np.nonzero(likely | (bits <= np.int32(latest)))
    return int(left[(logits[left] - _log_times(bits[left])).argmax()])


def _log_times(bits: npt.NDArray[np.int32]) -> Floats:
    """Logarithms of numbers of the exponential distribution, of 31 random bits each."""
    return np.asarray(np.log(-np.log(1.0 - (bits + 0.5) * SCALE)), np.float32)
