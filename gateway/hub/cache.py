"""The hub's local cache, read through huggingface_hub: what lies in it, and the models among that.

The library is slow to import, so that happens with the first scan.
"""

import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import structlog

from backends.contract.catalog import BACKENDS
from backends.contract.errors import LoadFailed, UnsupportedModel
from gateway.registry.folders import MAX_REASON, Scanned, Unusable

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo, CachedRevisionInfo

SnapshotState: TypeAlias = frozenset[tuple[Path, float, int]]  # file, time of change in s, bytes
Names: TypeAlias = tuple[str, ...]  # the id, and what else a model is called

QUANTIZATION = re.compile(r"(?i)(?:^|[-._])((?:UD-)?(?:I?Q\d\w*|BF16|F16|F32|MXFP4\w*))$")

log = structlog.get_logger(__name__)


def default_root(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the hub's tools keep their cache, by their variables of `environment`. An empty one is
    none, though they take it for the working directory.
    """
    cache = environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE")
    caches = environment.get("XDG_CACHE_HOME") or "~/.cache"
    home = environment.get("HF_HOME") or f"{caches}/huggingface"
    return Path(os.path.expandvars(cache or f"{home}/hub")).expanduser()


def repositories(root: Path) -> list["CachedRepoInfo"]:
    """The whole ones in the cache at `root`, by name. A cache that is absent is empty, and what
    huggingface_hub finds broken, or half there, is left out. Blocks.
    """
    if not root.is_dir():
        return []
    from huggingface_hub import scan_cache_dir  # noqa: PLC0415 - slow to import

    found = (one for one in scan_cache_dir(root).repos if one.repo_id.isprintable())
    return sorted(found, key=lambda one: (one.repo_id, one.repo_type))


class CachedModels:
    """The models in the cache at `root`, under the hub's ids: `owner/name`, and of a repository
    with several models in files of their own `owner/name:Q4_K_M` for each.

    Of a repository's commits that of the main branch counts, as for the hub's own tools; without
    one the newest. Its files are links into the cache; those that lead out of it are refused.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.expanduser().resolve()
        self._seen: dict[Path, tuple[SnapshotState, Mapping[Names, Scanned]]] = {}

    def scanned(self) -> Mapping[Names, Scanned]:
        """What is there now, by its names. Only snapshots in which something changed are read
        again; unchanged models are the same objects. Blocks.
        """
        found = {}
        for repository in repositories(self._root):
            snapshot = max(repository.revisions, key=_is_current, default=None)
            if repository.repo_type == "model" and snapshot is not None:
                path, state = snapshot.snapshot_path, _state(snapshot)
                known = self._seen.get(path)
                if known is None or known[0] != state:
                    known = state, self._scan(repository.repo_id, path)
                found[path] = known
        self._seen = found
        return {names: one for _, there in found.values() for names, one in there.items()}

    def _scan(self, repository: str, snapshot: Path) -> Mapping[Names, Scanned]:
        """The snapshot as one model, or else the models that are files in it."""
        whole = self._recognised(snapshot, repository)
        if whole is not None and whole.path == snapshot and not isinstance(whole, Unusable):
            return {(repository,): whole}
        found = self._in_files(repository, snapshot)
        tags = quantizations(list(found))
        if len(found) == 1:  # then its quantization isn't needed in the name
            return {(repository, f"{repository}:{tags[name]}"): one for name, one in found.items()}
        if not found and whole is not None:
            return {(repository,): whole}
        return {(f"{repository}:{tags[name]}",): one for name, one in found.items()}

    def _in_files(self, repository: str, snapshot: Path) -> Mapping[str, Scanned]:
        """By the files' names, without what all of a format have in common."""
        found = {}
        for path in sorted(snapshot.rglob("*")):
            name = BACKENDS.bare_name(str(path.relative_to(snapshot)))
            inside = path.is_file() and path.resolve().is_relative_to(self._root)
            if inside and (one := self._recognised(path, f"{repository}:{name}")) is not None:
                found[name] = one
        return found

    def _recognised(self, path: Path, name: str) -> Scanned | None:
        try:
            self._require_inside(path)
            return BACKENDS.recognise(path)
        except UnsupportedModel:  # a cache holds all sorts of things
            return None
        except Exception as error:  # noqa: BLE001 - a strange file must not stop the server
            log.warning("not a usable model", model=name, reason=str(error))
            return Unusable(name=name, reason=str(error)[:MAX_REASON], path=path)

    def _require_inside(self, path: Path) -> None:
        """Raises LoadFailed."""
        for file in path.rglob("*"):
            if not file.resolve().is_relative_to(self._root):
                raise LoadFailed(f"{file.name} is a link that leads out of the hub's cache")


def _is_current(revision: "CachedRevisionInfo") -> tuple[bool, float]:
    return "main" in revision.refs, revision.last_modified


def _state(snapshot: "CachedRevisionInfo") -> SnapshotState:
    return frozenset(
        (file.file_path, file.blob_last_modified, file.size_on_disk) for file in snapshot.files
    )


def quantizations(names: list[str]) -> Mapping[str, str]:
    """What distinguishes files: their quantizations, or else their whole names."""
    tags = {name: found[1] for name in names if (found := QUANTIZATION.search(name))}
    often = Counter(tags.values())
    return {name: tags[name] if often[tags.get(name, "")] == 1 else name for name in names}
