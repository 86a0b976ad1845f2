"""A job's grammar mask for the libraries, which ask for it within their own loop.

An exception there would fail the whole step. So it is kept, the job goes on without a mask until
the step is over, and the engine then fails that job alone.
"""

import numpy as np
import torch

from backends.constraints.matcher import Mask
from backends.errors import BackendError


class GuardedMask:
    """`error`: why the job can't go on."""

    def __init__(self, mask: Mask, size: int) -> None:
        """`size`: tokens of the vocabulary."""
        self.error: BackendError | None = None
        self._mask = mask
        self._bytes = -(-size // 8)

    def allowed(self) -> bytes:
        """See `Mask.allowed`."""
        if self.error is None:
            try:
                return self._mask.allowed()
            except BackendError as error:
                self.error = error
        return b"\xff" * self._bytes

    def drawn(self, token: int) -> None:
        """See `Mask.drawn`."""
        if self.error is None:
            try:
                self._mask.drawn(token)
            except BackendError as error:
                self.error = error

    def taken_back(self, count: int) -> None:
        """See `Mask.taken_back`."""
        if self.error is None:
            try:
                self._mask.taken_back(count)
            except BackendError as error:
                self.error = error


def bits(allowed: bytes, size: int) -> torch.Tensor:
    """(size,), bool: whether each token is allowed; those behind the vocabulary's are not."""
    single = np.zeros(size, np.uint8)
    row = np.unpackbits(np.frombuffer(allowed, np.uint8), bitorder="little")[:size]
    single[: len(row)] = row
    return torch.from_numpy(single).view(torch.bool)


def words(allowed: bytes) -> torch.Tensor:
    """(1, n), int32: the same bits, filled up to whole words."""
    filled = bytearray(allowed.ljust(-(-len(allowed) // 4) * 4, b"\0"))
    return torch.frombuffer(filled, dtype=torch.int32)[None]
