"""Gives memory that an engine has freed back to the system. Knows no engine.

The C library keeps freed memory for the process; after many loads and unloads that is a lot, torn
into pieces. glibc has malloc_trim(3) for it; elsewhere there is nothing to do.
"""

import ctypes

from anyio import to_thread


async def reclaim() -> None:
    """Return freed memory, in a worker thread."""
    await to_thread.run_sync(_trim)


def _trim() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)  # ctypes lets go of the interpreter meanwhile
