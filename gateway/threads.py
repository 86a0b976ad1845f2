"""Synchronous work beside the event loop, for what grows with a request: given up at once when the
request is cancelled, and never on more threads than allowed.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Wanted: TypeAlias = Callable[[], bool]

BODY_THREADS = 4  # long bodies read at a time
PROMPT_THREADS = 8  # prompts rendered or tokenized at a time; the others wait in line


class Abandoned(Exception):
    """The caller has left, so the work stops; nobody sees this."""


class WorkerThreads:
    """At most `limit` threads, those included whose callers have left."""

    def __init__(self, limit: int = PROMPT_THREADS) -> None:
        self._executor = ThreadPoolExecutor(limit, thread_name_prefix="prompt")

    async def run(self, work: Callable[[Wanted], T]) -> T:
        """`work(wanted)` in a thread; waits for a free one.

        When this call is cancelled it returns at once. `wanted()` is False from then on: `work`
        looks at it between its pieces and raises `Abandoned`. Work not begun is never begun.
        """
        left = threading.Event()
        future = self._executor.submit(work, lambda: not left.is_set())
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            left.set()
            raise
