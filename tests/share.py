"""A folder that lies on a share, which can hang: a file system in user space (fuse(4)) that shows
another folder, read only, and answers nothing while it hangs. Mounting takes root's rights.
"""

import ctypes
import errno
import os
import select
import stat
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

LOOKUP, FORGET, GETATTR, OPEN, READ, INIT, OPENDIR, READDIR = 1, 2, 3, 14, 15, 26, 27, 28
UNANSWERED = {FORGET, 36, 42}  # FORGET, INTERRUPT, BATCH_FORGET
DONE = {18, 25, 29}  # RELEASE, FLUSH, RELEASEDIR: nothing is to be done
HEADER = struct.Struct("<IIQQIIII")
SHORTLY = 0.02  # seconds
DETACHED = 3  # MNT_FORCE | MNT_DETACH


class Share:
    """`place` shows `folder`."""

    def __init__(self, folder: Path, place: Path, connection: int) -> None:
        self.place = place
        self._paths = {1: folder}
        self._connection = connection
        self._answers = threading.Event()
        self._answers.set()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def hang(self) -> None:
        """It answers nothing more."""
        self._answers.clear()

    def _serve(self) -> None:
        with suppress(OSError):  # it was unmounted
            while self._answers.wait():
                if not select.select([self._connection], [], [], SHORTLY)[0]:
                    continue  # while it hangs it reads nothing: who asks can still be killed then
                asked = os.read(self._connection, 1 << 18)
                _, kind, number, node, *_ = HEADER.unpack_from(asked)
                if kind in UNANSWERED:
                    continue
                try:
                    said, error = (
                        self._answer(
                            kind, self._paths.get(node, self._paths[1]), asked[HEADER.size :]
                        ),
                        0,
                    )
                except OSError as failed:
                    said, error = b"", -(failed.errno or errno.EIO)
                head = struct.pack("<IiQ", 16 + len(said), error, number)
                os.write(self._connection, head + said)

    def _answer(self, kind: int, path: Path, body: bytes) -> bytes:
        if kind == INIT:
            return struct.pack("<IIIIHHIIHHI28x", 7, 31, 1 << 17, 0, 12, 9, 1 << 16, 1, 16, 0, 0)
        if kind == LOOKUP:
            found = path / os.fsdecode(body.rstrip(b"\0"))
            attributes = _attributes(found)
            node = found.stat().st_ino + 1
            self._paths[node] = found
            return struct.pack("<QQQQII", node, 0, 0, 0, 0, 0) + attributes
        if kind == GETATTR:
            return struct.pack("<QII", 0, 0, 0) + _attributes(path)
        if kind in (OPEN, OPENDIR):
            return struct.pack("<QII", 0, 0, 0)
        if kind == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            return path.read_bytes()[offset : offset + size]
        if kind == READDIR:
            return b"" if struct.unpack_from("<QQ", body)[1] else _entries(path)
        if kind in DONE:
            return b""
        raise OSError(errno.ENOSYS, "not needed here")


def _attributes(path: Path) -> bytes:
    """Of which the kernel keeps none, so that each question reaches the share."""
    one = path.stat()
    second, part = divmod(one.st_mtime_ns, 10**9)
    times = (second,) * 3, (part,) * 3
    sizes = one.st_ino, one.st_size, one.st_size // 512
    mode = one.st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)
    return struct.pack("<6Q10I", *sizes, *times[0], *times[1], mode, 1, 0, 0, 0, 4096, 0)


def _entries(path: Path) -> bytes:
    entries = b""
    for number, one in enumerate(sorted(path.iterdir()), 1):
        name = os.fsencode(one.name)
        kind = stat.S_IFMT(one.stat().st_mode) >> 12
        head = struct.pack("<QQII", one.stat().st_ino, number, len(name), kind)
        entries += head + name + bytes(-len(name) % 8)
    return entries


@contextmanager
def share(folder: Path, place: Path) -> Iterator[Share]:
    """`folder`, shown at `place`. Skips the test where nothing can be mounted."""
    libc = ctypes.CDLL(None, use_errno=True)
    place.mkdir()
    try:
        connection = os.open("/dev/fuse", os.O_RDWR)
    except OSError:
        pytest.skip("no /dev/fuse")
    options = f"fd={connection},rootmode=40000,user_id=0,group_id=0".encode()
    if not hasattr(libc, "mount") or libc.mount(b"share", os.fsencode(place), b"fuse", 0, options):
        os.close(connection)
        pytest.skip("mounting takes root's rights")
    try:
        yield Share(folder, place, connection)
    finally:
        libc.umount2(os.fsencode(place), DETACHED)
        os.close(connection)
