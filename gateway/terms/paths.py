"""Folders whose files clients choose by name: which there are, and where one lies."""

from collections.abc import Mapping
from pathlib import Path

from backends.machine import paths
from gateway.terms.errors import InvalidRequest


def within(root: Path, name: str, param: str) -> Path:
    """See `backends.machine.paths.within`. Raises InvalidRequest."""
    try:
        return paths.within(root, name)
    except ValueError as error:
        raise InvalidRequest(str(error), param=param) from None


def listed(root: Path | None, suffixes: tuple[str, ...]) -> dict[str, Path]:
    """The files of `root` with one of `suffixes`, by name without it. A folder that is absent has
    none.
    """
    if root is None or not root.is_dir():
        return {}
    files = sorted(path for path in root.iterdir() if path.suffix in suffixes and path.is_file())
    return {path.stem: path for path in files}


def chosen_file(kind: str, name: str, files: Mapping[str, Path], param: str) -> Path:
    """The one of `files` that is called `name`. Raises InvalidRequest."""
    if name not in files:
        known = ", ".join(files) or "none"
        raise InvalidRequest(f"{kind} {name!r} not found; available: {known}.", param=param)
    return files[name]
