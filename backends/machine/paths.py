"""Names from outside to paths that can't leave their folder, and files that are written whole."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

UNFINISHED = ".saving-"  # a file whose name begins so is being written, or was
LONGEST = 240  # bytes of a part; file systems take 255, and what is unfinished has a suffix
MOST_PARTS = 12  # together less than the 4,096 bytes that Linux takes


def within(root: Path, name: str) -> Path:
    """`root/name`, where name may have several parts. Raises ValueError for a name that is
    absolute, hidden, too long for a file system, or leads out of `root`, be it by a link.
    """
    parts = PurePosixPath(name).parts
    plain = all(part and not part.startswith(".") and part.isprintable() for part in parts)
    if not parts or name.startswith("/") or "\\" in name or ":" in name or not plain:
        raise ValueError(f"{name!r} is not a name that can be used here")
    if max(len(os.fsencode(part)) for part in parts) > LONGEST or len(parts) > MOST_PARTS:
        raise ValueError(f"{name!r:.80}… is too long: {LONGEST} bytes a part, {MOST_PARTS} parts")
    path = root.joinpath(*parts)
    if not path.resolve().is_relative_to(root.resolve()):
        raise ValueError(f"{name!r} leads out of its folder")
    return path


def replace_file(path: Path, content: bytes | memoryview) -> None:
    """Put `content` in place of the file at `path`. See `replacing`."""
    with replacing(path) as file:
        file.write(content)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """What is written while the context lasts takes the place of the file at `path`, which is
    always whole: the old one or the new one. Only its user may read it. Its folder is made where
    there is none. Blocks. Raises OSError.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=UNFINISHED, delete=False) as file:
        unfinished = Path(file.name)
        try:
            yield cast(BinaryIO, file)
            file.flush()
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
