"""Where this program keeps what it makes for itself (XDG Base Directory Specification)."""

import os
from pathlib import Path


def user_folder() -> Path:
    """Ours in the user's cache folder; it may not exist yet."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "roundhouse"
