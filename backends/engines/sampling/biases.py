"""What a job adds to its logits alike at every token: biases, bans, and tokens that alone may come.
It knows no engine.
"""

from collections.abc import Collection, Iterable

import numpy as np
import numpy.typing as npt

from backends.contract.samplers import Sampling

_NEVER = float("-inf")


def biases(sampling: Sampling, size: int, ends: Collection[int]) -> npt.NDArray[np.float32] | None:
    """For each of `size` tokens, of which `ends` end a generation; None: nothing.

    In bulk, because a vocabulary may have 260,000 tokens: one by one that takes half a second, in
    which no other thread gets the GIL.
    """
    banned = [*_known(sampling.banned_tokens, size), *(ends if sampling.ban_eos else ())]
    if not (banned or sampling.allowed_tokens or sampling.logit_bias):
        return None
    bias = np.zeros(size, np.float32)
    if sampling.allowed_tokens:
        bias[:] = _NEVER
        bias[_known(sampling.allowed_tokens, size)] = 0
    for token, value in sampling.logit_bias:
        if 0 <= token < size:
            bias[token] += value
    bias[banned] = _NEVER
    return bias


def _known(tokens: Iterable[int], size: int) -> list[int]:
    return [token for token in tokens if 0 <= token < size]
