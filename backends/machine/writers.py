"""Who may write to files, besides the user of this process."""

import grp
import os
import stat
from collections.abc import Sequence
from pathlib import Path


def changeable(paths: Sequence[Path]) -> Path | None:
    """The first of these files, or of their folders, that others than this process's user and root
    may write to; None where there is none.
    """
    for path in dict.fromkeys(path.resolve() for path in paths):
        if others_may_write(path):
            return path
    for folder in dict.fromkeys(path.resolve().parent for path in paths):
        # In a sticky folder (/tmp) nobody may replace what is another's.
        if not folder.stat().st_mode & stat.S_ISVTX and others_may_write(folder):
            return folder
    return None


def others_may_write(path: Path) -> bool:
    """By its mode and owner; access lists are not looked at."""
    status = path.stat()
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & stat.S_IWOTH:
        return True
    return bool(status.st_mode & stat.S_IWGRP) and not _has_no_others(status.st_gid)


def _has_no_others(group: int) -> bool:
    """Whether it is this user's own group: many systems make one for each user."""
    if group not in (os.getegid(), 0):
        return False
    try:
        return not grp.getgrgid(group).gr_mem
    except KeyError:
        return True
