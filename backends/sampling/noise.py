"""Random numbers that are a function of a job's seed, the place in its answer and the token.

So a token's number is the same whoever else is in the batch, however many candidates are looked at
and in which order they come, and however often the place is drawn anew. There is no generator to
keep or to seed: a hash of all three (`formulas.hashed`) costs a few operations for all rows
together.
"""

from collections.abc import Sequence

import numpy as np
import torch

from backends.sampling.formulas import SCALE, halves, hashed

WIDE = 4_096  # candidates; more are hashed row by row, which stay in the processor's cache


def exponential(ids: torch.Tensor, keys: Sequence[int], *, on_host: bool) -> torch.Tensor:
    """A number of the exponential distribution for each of `ids` (rows, candidates), int64, by its
    row's 64-bit key. Above 0 and finite.

    `on_host`: `ids` are in the CPU's memory, where numpy's operations start sooner than torch's.
    """
    bits = _host_bits(ids, keys) if on_host else _device_bits(ids, keys)
    return bits.add_(0.5).mul_(-SCALE).log1p_().neg_()


def _device_bits(ids: torch.Tensor, keys: Sequence[int]) -> torch.Tensor:
    low, high = (
        torch.tensor([halves(key) for key in keys], dtype=torch.int32)
        .to(ids.device, non_blocking=True)
        .T[..., None]
    )
    bits: torch.Tensor = hashed(ids.int(), low, high)
    return bits.float()


def _host_bits(ids: torch.Tensor, keys: Sequence[int]) -> torch.Tensor:
    words = np.array([halves(key) for key in keys], np.int32)
    tokens = ids.numpy().astype(np.int32)
    if tokens.shape[-1] <= WIDE:
        bits = hashed(tokens, words[:, :1], words[:, 1:]).astype(np.float32)
    else:
        bits = np.empty(tokens.shape, np.float32)
        for row, (low, high) in enumerate(words):
            bits[row] = hashed(tokens[row], low, high)
    return torch.from_numpy(bits)
