"""A grammar as one of exllamav2's filters.

The library only needs a filter to have the methods of its `ExLlamaV2Filter`, so that this needs no
import of the library, which compiles. `mask_logits` is its fastest path. The masks are computed on
threads of our own, beside the pass; so none of its threads is used.
"""

import torch

from backends.exllama.mask import GuardedMask, bits

_NEVER = float("-inf")


class ExLlamaV2GrammarFilter:
    """See `ExLlamaV2Filter` in exllamav2 0.3.2."""

    def __init__(self, mask: GuardedMask) -> None:
        self._mask = mask

    def begin(self, prefix_str: str) -> None:
        """Where a job of the library begins the request may stand anywhere in its grammar."""

    def feed(self, token: torch.Tensor) -> None:
        """`token` was drawn; of the shape (1, 1)."""
        self._mask.drawn(int(token.item()))

    def can_mask_logits(self) -> bool:
        return True

    def use_background_worker(self) -> bool:
        return False

    def background_drop(self) -> None:
        """Nothing runs in the background."""

    def get_next(self, mask: bool = False) -> bool:  # noqa: FBT001, FBT002 - theirs
        """Whether the mask can be had now."""
        assert mask  # all filters of a job are ours
        return True

    def mask_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """`logits`, (padded vocabulary,), changed in place."""
        allowed = bits(self._mask.allowed(), len(logits))
        return logits.masked_fill_(~allowed, _NEVER)
