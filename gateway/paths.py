"""Client-chosen names to paths that can't leave their folder. Of the file system it reads only
links.
"""

import os
from pathlib import Path, PurePosixPath

from gateway.errors import InvalidRequest

LONGEST = 240  # bytes of a part; file systems take 255, and what is unfinished has a suffix
MOST_PARTS = 12  # together less than the 4,096 bytes that Linux takes


def within(root: Path, name: str, param: str) -> Path:
    """`root/name`, where name may have several parts.

    Raises InvalidRequest for a name that is absolute, hidden, too long for a file system, or leads
    out of `root`, be it by a link.
    """
    parts = PurePosixPath(name).parts
    plain = all(part and not part.startswith(".") and part.isprintable() for part in parts)
    if not parts or name.startswith("/") or "\\" in name or ":" in name or not plain:
        raise InvalidRequest(f"{name!r} is not a name that can be used here", param=param)
    if max(len(os.fsencode(part)) for part in parts) > LONGEST or len(parts) > MOST_PARTS:
        text = f"{name!r:.80}… is too long: {LONGEST} bytes a part, {MOST_PARTS} parts"
        raise InvalidRequest(text, param=param)
    path = root.joinpath(*parts)
    if not path.resolve().is_relative_to(root.resolve()):
        raise InvalidRequest(f"{name!r} leads out of its folder", param=param)
    return path


def listed(root: Path | None, suffixes: tuple[str, ...]) -> dict[str, Path]:
    """The files of `root` with one of `suffixes`, by name without it. A folder that is absent has
    none.
    """
    if root is None or not root.is_dir():
        return {}
    files = sorted(path for path in root.iterdir() if path.suffix in suffixes and path.is_file())
    return {path.stem: path for path in files}
