"""A parked model's files: all of their pages are in memory, until they are closed or nobody wants
them any more.
"""

import ctypes
import mmap
import os
import sys
from pathlib import Path

import pytest

from backends.places.warm import PIECE, WarmFiles

SIZE = 2 * PIECE + 5_000


def resident(path: Path) -> int:
    """Pages of it in the system's cache (mincore(2))."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as there:
        pages = -(-len(there) // mmap.PAGESIZE)
        found = (ctypes.c_ubyte * pages)()
        start = (ctypes.c_ubyte * len(there)).from_buffer(there)
        assert not ctypes.CDLL(None).mincore(ctypes.byref(start), len(there), found)
        del start
        return sum(page & 1 for page in found)


def cold(path: Path) -> Path:
    """A file whose pages the system has given up, as far as it does."""
    path.write_bytes(os.urandom(SIZE))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="nobody else says which pages are there")
def test_all_pages_are_in_memory(tmp_path: Path) -> None:
    paths = [cold(tmp_path / name) for name in ("one", "two")]
    warm = WarmFiles(paths)
    assert warm.size == 2 * SIZE
    assert warm.read_on(lambda: True)
    assert [resident(path) for path in paths] == [-(-SIZE // mmap.PAGESIZE)] * 2
    warm.close()


def test_it_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    warm, asked = WarmFiles([cold(tmp_path / name) for name in ("one", "two")]), iter(range(99))
    assert not warm.read_on(lambda: next(asked) < 4)
    assert next(asked) == 5
    assert warm.read_on(lambda: next(asked) < 10), "the second file alone is read again"
    warm.close()


def test_closed_while_it_is_read_it_stops(tmp_path: Path) -> None:
    warm = WarmFiles([cold(tmp_path / "one")])

    def wanted() -> bool:
        warm.close()
        return True

    assert not warm.read_on(wanted)
    assert not warm.read_on(lambda: True)


def test_a_file_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        WarmFiles([tmp_path / "nowhere"])


def test_a_file_that_was_cut_short_ends_nothing(tmp_path: Path) -> None:
    path = cold(tmp_path / "one")
    warm = WarmFiles([path])
    os.truncate(path, 100)
    with pytest.raises(OSError, match="one"):
        warm.read_on(lambda: True)
    warm.close()
