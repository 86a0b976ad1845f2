"""Drawing where only some tokens may come.

llama.cpp's chain is given an array of those alone. So nothing is computed for the others, and where
a grammar leaves a handful of 128,000 tokens, drawing costs a hundredth. The logits stay as they
are: they are what log probabilities are told from.
"""

import ctypes
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as api

_FIELDS = 3  # of llama.h's struct of one candidate, each of four bytes: id, logit, probability


def allowed_ids(mask: bytes, size: int) -> npt.NDArray[np.intp] | None:
    """Those of the first `size` tokens that `mask` (see `constraints.matcher.Mask`) allows,
    ascending; None: all.
    """
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), count=size, bitorder="little")
    ids = np.flatnonzero(bits)
    return None if len(ids) == size else ids


class DrawnToken(msgspec.Struct, frozen=True):
    """The token, and what the samplers left to draw it from: ids and their logits, (left,) each."""

    token: int
    ids: npt.NDArray[np.int32]
    logits: npt.NDArray[np.float32]


def draw_among(
    chain: Any, logits: npt.NDArray[np.float32], ids: npt.NDArray[np.intp]
) -> DrawnToken:
    """As `llama_sampler_sample`, of `ids` alone. `logits`: (vocabulary,)."""
    candidates = np.empty((len(ids), _FIELDS), np.int32)
    candidates[:, 0] = ids
    candidates[:, 1] = logits.view(np.int32)[ids]  # the same bits
    data = ctypes.cast(candidates.ctypes.data, ctypes.POINTER(api.llama_token_data))
    array = api.llama_token_data_array(data=data, size=len(ids), selected=-1, sorted=False)
    api.llama_sampler_apply(chain, ctypes.byref(array))
    token = int(candidates[array.selected, 0])
    api.llama_sampler_accept(chain, token)
    left = candidates[: array.size]
    return DrawnToken(token, left[:, 0], left[:, 1].view(np.float32))
