"""Finds the models in a folder: those that a backend recognises, and those that none can use."""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec
import structlog

from backends.contract.catalog import BACKENDS, Catalog, ModelFiles
from backends.contract.errors import UnsupportedModel
from gateway.registry.origins import HubOrigin, origin_of

Recognise: TypeAlias = Callable[[Path, str | None], ModelFiles]
FolderState: TypeAlias = frozenset[tuple[str, int, int]]  # name, time of change in ns, bytes

MAX_REASON = 500  # characters; a reason may quote the file
LEADS_OUT = (
    "This link leads out of its folder. Name the model in `models`, or the other folder in "
    "`model_dirs`."
)

log = structlog.get_logger(__name__)


class Unusable(msgspec.Struct, frozen=True, kw_only=True):
    """A model that the config names, or a folder holds, but that can't be used, and why. It may
    become usable later.
    """

    name: str
    aliases: tuple[str, ...] = ()
    reason: str
    path: Path


Scanned: TypeAlias = ModelFiles | Unusable


class FolderScan(msgspec.Struct, frozen=True):
    """What was found directly in one folder, when it was in that state."""

    state: FolderState
    models: Mapping[str, Scanned]
    origin: HubOrigin | None


class ModelFolder:
    """The models under `root`: what the backends recognise in it, and again what changed.

    A model is a file (the first part stands for a split one) or a folder. Its name is its path
    below the root, so it can't lead out of it; a link that does is unusable, where a model is
    behind it. A folder that isn't there has none, and may come later.
    """

    def __init__(self, root: Path, recognise: Recognise, catalog: Catalog = BACKENDS) -> None:
        """`recognise`: the catalog's, or what stands in for it."""
        self._root = root.expanduser().resolve()
        self._recognise = recognise
        self._catalog = catalog
        self._scans: dict[Path, FolderScan] = {}

    def scanned(self) -> Mapping[str, Scanned]:
        """Name to what is there now, of equal names what can be used. Only folders in which
        something changed are scanned again.

        Reads headers, so it may take a moment after a change. Unchanged models are the same
        objects.
        """
        scans: dict[Path, FolderScan] = {}
        for folder, state in self._walk(self._root):
            scan = self._scans.get(folder)
            if scan is None or scan.state != state:
                scan = FolderScan(state, self._scan(folder, state), origin_of(folder))
            scans[folder] = scan
        self._scans = scans
        found = [one for scan in scans.values() for one in scan.models.items()]
        return dict(sorted(found, key=lambda one: isinstance(one[1], ModelFiles)))  # the last stays

    def origins(self) -> Mapping[str, HubOrigin]:
        """By name, the models that are alone in what was downloaded from a hub, as the last scan
        found them.
        """
        origins: dict[str, HubOrigin] = {}
        for folder, scan in self._scans.items():
            if scan.origin is not None:
                below = self._below(folder)
                names = [name for name, model in below if isinstance(model, ModelFiles)]
                origins |= {name: scan.origin for name in names if len(names) == 1}
        return origins

    def _below(self, folder: Path) -> Iterator[tuple[str, Scanned]]:
        for path, scan in self._scans.items():
            if path.is_relative_to(folder):
                yield from scan.models.items()

    def _walk(self, folder: Path) -> Iterator[tuple[Path, FolderState]]:
        """Every folder below, without following links, in the order of names."""
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            return
        entries = [entry for entry in entries if _is_text(entry.name)]
        yield folder, frozenset(_state(entry) for entry in entries)
        for entry in entries:
            # Hidden folders hold what isn't whole yet, and what tools keep for themselves.
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                yield from self._walk(folder / entry.name)

    def _scan(self, folder: Path, state: FolderState) -> dict[str, Scanned]:
        """The folder as one model, or else the models that are files in it."""
        whole = self._recognised(folder)
        if isinstance(whole, ModelFiles) and whole.path == folder:
            return {self._name(folder): whole}
        paths = [folder / name for name, _, _ in sorted(state)]
        files = [path for path in paths if path.is_file() or self._leads_out(path)]
        scanned = {self._name(path): self._recognised(path) for path in files}
        models = {name: model for name, model in scanned.items() if model is not None}
        if not models and isinstance(whole, Unusable):  # else it is for one of its files
            return {whole.name: whole}
        return models

    def _recognised(self, path: Path) -> Scanned | None:
        try:
            model = self._recognise(path, None)
            return self._unusable(path, LEADS_OUT) if self._leads_out(path) else model
        except UnsupportedModel:
            return None
        except Exception as error:  # noqa: BLE001 - a strange file in a folder must not stop the server
            # What is strange about a file outside is nobody's business here.
            return None if self._leads_out(path) else self._unusable(path, str(error))

    def _leads_out(self, path: Path) -> bool:
        return not Path(os.path.realpath(path)).is_relative_to(self._root)  # a circle leads nowhere

    def _unusable(self, path: Path, reason: str) -> Unusable:
        log.warning("not a usable model", path=str(path), reason=reason)
        return Unusable(name=self._name(path), reason=reason[:MAX_REASON], path=path)

    def _name(self, path: Path) -> str:
        if path == self._root:
            return path.name
        relative = path.relative_to(self._root).as_posix()
        return self._catalog.bare_name(relative)


def _is_text(name: str) -> bool:
    """Whether a file's name is UTF-8; another can't be sent to a client, nor asked for by one."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _state(entry: os.DirEntry[str]) -> tuple[str, int, int]:
    try:
        status = entry.stat()
    except OSError:  # a link to nowhere, or gone meanwhile
        return entry.name, 0, 0
    return entry.name, status.st_mtime_ns, 0 if entry.is_dir() else status.st_size
