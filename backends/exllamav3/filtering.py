"""A grammar as one of exllamav3's filters.

The library only needs a filter to have the attributes and methods of its `Filter`, so that this
needs no import of the library, which compiles. The masks are computed on threads of our own, beside
the pass; so none of its threads is used.
"""

from typing import Any

import torch

from backends.exllama.mask import GuardedMask, words


class ExLlamaV3GrammarFilter:
    """See `Filter` in exllamav3 1.6.5. It is never over: the driver ends the job."""

    trigger_token: int | None = None
    eos_after_completed = False

    def __init__(self, mask: GuardedMask) -> None:
        self.is_active = True
        self._mask = mask

    def attach(self, job: Any) -> None:
        """`job` is the library's; nothing of it is needed."""

    def reset(self) -> None:
        """Where a job of the library begins the request may stand anywhere in its grammar."""

    def feed(self, token: int) -> bool:
        """`token` was drawn. Returns whether that ends the job."""
        self._mask.drawn(token)
        return False

    def rewind(self, num_tokens: int) -> None:
        """The last tokens were taken back, for a banned string."""
        self._mask.taken_back(num_tokens)

    def use_background_worker(self) -> bool:
        return False

    def get_next_logit_mask(self) -> torch.Tensor:
        """(1, vocabulary / 32), int32: one bit for each token."""
        return words(self._mask.allowed())
