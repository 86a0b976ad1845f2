"""The files of a model that is parked: its weights wait in main memory, where the next load finds
them, whatever engine it is and wherever it puts them.

They lie in the system's cache of files, mapped by this process so that the system keeps them before
what nobody has mapped; it may take them back all the same where other programs need the memory,
since nothing is locked. A load maps or reads the same files, and so waits for no disk.
"""

import mmap
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

PIECE = 8 << 20  # bytes that are read between two questions whether to go on
POPULATE_READ = 22  # MADV_POPULATE_READ, since Linux 5.14


class WarmFiles:
    """Used by any thread. Raises OSError where they can't be opened."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._left = [(path, path.stat().st_size) for path in paths if path.stat().st_size]
        self._maps: list[mmap.mmap] = []
        self.size = sum(size for _, size in self._left)

    def read_on(self, wanted: Callable[[], bool]) -> bool:
        """Read what isn't yet, until it is all there or not `wanted` any more. Blocks. Whether it
        is all there. Raises OSError.
        """
        with self._lock:
            while self._left and not self._closed:
                path, size = self._left[0]
                if not self._read(path, size, wanted):
                    return False
                self._left.pop(0)
            return not self._closed

    def close(self) -> None:
        """The system may have them back. Does not wait."""
        self._closed = True
        if self._lock.acquire(blocking=False):  # else who reads closes them
            self._let_go()
            self._lock.release()

    def _let_go(self) -> None:
        while self._maps:
            self._maps.pop().close()

    def _read(self, path: Path, size: int, wanted: Callable[[], bool]) -> bool:
        buffer = memoryview(bytearray(PIECE))
        with path.open("rb", buffering=0) as file:
            try:
                there = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
            except ValueError as error:  # it has become shorter
                raise OSError(f"{path}: {error}") from error
            for start in range(0, size, PIECE):
                if self._closed or not wanted():
                    there.close()
                    if self._closed:
                        self._let_go()
                    return False
                # Read first: that lets other threads run, and mapping what is there takes no time.
                os.preadv(file.fileno(), [buffer], start)
                _map(there, start, min(PIECE, size - start))
        self._maps.append(there)
        return True


def _map(there: mmap.mmap, start: int, size: int) -> None:
    """Have its pages in this process, where the system can do that."""
    try:
        there.madvise(POPULATE_READ, start, size)
    except (AttributeError, OSError):  # it is in the cache all the same
        return
