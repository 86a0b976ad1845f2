"""A folder of models: scanned for what the backends recognise, and again when it changed. Loads nothing."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from backends.catalog import ModelFiles
from backends.errors import BackendError

SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


class ModelFolder:
    """The models under `root`, named by their path below it."""

    def __init__(self, root: Path, recognise: Callable[[Path, str | None], ModelFiles]) -> None:
        self._root = root.expanduser().resolve()
        self._recognise = recognise
        self._seen: frozenset[tuple[str, int]] = frozenset()
        self._models: dict[str, ModelFiles] = {}

    def models(self) -> dict[str, ModelFiles]:
        """Name to files; scanned again if a folder below the root changed."""
        state = frozenset(
            (folder, Path(folder).stat().st_mtime_ns) for folder, _, _ in self._walk()
        )
        if state != self._seen:
            self._models, self._seen = dict(self._scan()), state
        return self._models

    def _walk(self) -> Iterator[tuple[str, list[str], list[str]]]:
        return os.walk(self._root, followlinks=False)

    def _scan(self) -> Iterator[tuple[str, ModelFiles]]:
        for folder, _, names in self._walk():
            for path in (Path(folder), *(Path(folder) / name for name in sorted(names))):
                if (files := self._look(path)) is not None:
                    yield self._name(path), files

    def _look(self, path: Path) -> ModelFiles | None:
        split = SPLIT.search(path.name)
        if (split and int(split[1]) != 1) or not path.resolve().is_relative_to(self._root):
            return None
        try:
            return self._recognise(path, None)
        except (BackendError, OSError, ImportError, msgspec.MsgspecError):
            return None

    def _name(self, path: Path) -> str:
        relative = path.relative_to(self._root).as_posix()
        return SPLIT.sub("", relative).removesuffix(".gguf")
