"""The hub's local cache, as its own tools lay it out: `models--owner--name/blobs/*`."""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

_KINDS = {"models": "model", "datasets": "dataset", "spaces": "space"}


class CachedFiles(msgspec.Struct, frozen=True):
    """One repository in the cache; size in bytes."""

    repository: str
    kind: str
    size: int


def cached(root: Path) -> tuple[CachedFiles, ...]:
    """All repositories in the cache at `root`, by name. A cache that is absent is empty. Blocks."""
    found = []
    for folder in sorted(root.glob("*--*")):
        kind, _, name = folder.name.partition("--")
        if kind in _KINDS and name.isprintable() and folder.is_dir():
            sizes = (_size(blob) for blob in folder.glob("blobs/*"))
            found.append(CachedFiles(name.replace("--", "/"), _KINDS[kind], sum(sizes)))
    return tuple(found)


def default_root(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the hub's tools keep their cache (huggingface_hub's environment variables)."""
    if cache := environment.get("HF_HUB_CACHE"):
        return Path(cache).expanduser()
    home = environment.get("HF_HOME")
    cache_home = environment.get("XDG_CACHE_HOME") or "~/.cache"
    root = Path(home) if home else Path(cache_home) / "huggingface"
    return root.expanduser() / "hub"


def _size(blob: Path) -> int:
    try:
        return blob.stat().st_size
    except OSError:  # gone meanwhile
        return 0
