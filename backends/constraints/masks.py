"""Masks are computed on threads of their own while the device works."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from backends.constraints.matcher import Matcher
from backends.errors import BackendError
from backends.processors import cores

THREADS = 4  # at most; a mask takes some ten microseconds, and seldom milliseconds


class MaskThreads:
    """Those of one driver. Begins none until the first constrained job."""

    def __init__(self) -> None:
        self._count = min(THREADS, cores())
        self._pool: ThreadPoolExecutor | None = None

    def begin(self, matchers: Iterable[Matcher]) -> None:
        """Compute the next masks of those that want one, shared out among the threads."""
        wanting = [one for one in matchers if one.wants_mask]
        if wanting and self._pool is None:
            self._pool = ThreadPoolExecutor(self._count, "masks")
        for first in range(min(self._count, len(wanting))):
            part = wanting[first :: self._count]
            assert self._pool is not None
            pending = self._pool.submit(_compute, part)
            for matcher in part:
                matcher.await_mask(pending)

    def close(self) -> None:
        """No mask is being computed once this has returned."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _compute(matchers: Sequence[Matcher]) -> None:
    for matcher in matchers:
        with suppress(BackendError):  # met again by whoever asks for the mask
            matcher.compute()
