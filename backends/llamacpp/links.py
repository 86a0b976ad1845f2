"""Samplers that llama.cpp lacks, as links of its chains: numpy on the candidates, in place.

llama.cpp calls a link with its array of candidates, as it calls its own. Of an array only what is
left of it after the links before is read, so that what costs stands behind what is cheap.
"""

import ctypes
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as api

from backends.protocol import Sampling
from backends.sampling.formulas import (
    above_top_a,
    divided,
    faded,
    skewed,
    smoothed,
    within_tail_free,
)

# The fields of llama.h's struct of one candidate.
_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
# A candidate so far below the best adds less to a sum over a vocabulary than single precision sees.
NEGLIGIBLE = 30.0
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


class Link:
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


def smoothing(sampling: Sampling) -> Link:
    """See `formulas.smoothed`."""
    factor, curve = sampling.smoothing_factor, sampling.smoothing_curve

    def apply(candidates: TokenDataArray) -> None:
        candidates.logits[:] = smoothed(np, candidates.logits[None], factor, curve)[0]
        candidates.reordered()  # a curve below 1 may lift the tail

    return Link(apply)


def tail_free(sampling: Sampling) -> Link:
    """See `formulas.within_tail_free`."""

    def apply(candidates: TokenDataArray) -> None:
        logits = candidates.logits
        candidates.keep(logits >= logits.max() - NEGLIGIBLE)
        candidates.sort()
        candidates.keep(within_tail_free(np, candidates.probabilities()[None], sampling.tfs)[0])

    return Link(apply)


def top_a(sampling: Sampling) -> Link:
    """See `formulas.above_top_a`."""

    def apply(candidates: TokenDataArray) -> None:
        candidates.keep(above_top_a(np, candidates.probabilities()[None], sampling.top_a)[0])

    return Link(apply)


def skewing(sampling: Sampling) -> Link:
    """See `formulas.skewed`."""

    def apply(candidates: TokenDataArray) -> None:
        candidates.sort()
        moved = skewed(np, candidates.probabilities()[None], np.float32(sampling.skew))[0]
        with np.errstate(divide="ignore"):
            candidates.logits[:] = np.log(moved)
        candidates.reordered()

    return Link(apply)


def fading_penalty(sampling: Sampling, size: int, tokens: Iterable[int]) -> Link:
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
    return Link(apply, accept)
