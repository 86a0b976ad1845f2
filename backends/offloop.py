"""Long synchronous work beside the event loop, abandoned when nobody wants it any more."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

import anyio

T = TypeVar("T")


async def run_abandonable(
    work: Callable[[Callable[[], bool]], T], discard: Callable[[T], None]
) -> T:
    """Run `work(wanted)` on a thread. When this call is cancelled, `wanted()` becomes False.

    Cancellation waits until the thread has ended, and a result that came all the same goes to
    `discard`, so that nothing is left behind. `work` should look at `wanted` often and raise when
    it is False.
    """
    abandoned = threading.Event()
    future = asyncio.get_running_loop().run_in_executor(None, work, lambda: not abandoned.is_set())
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        abandoned.set()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([future])
        if future.exception() is None:
            discard(future.result())
        raise
