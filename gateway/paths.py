"""Client-chosen names to paths that can't leave their folder. Of the file system it reads only
links.
"""

from pathlib import Path, PurePosixPath

from gateway.errors import InvalidRequest


def within(root: Path, name: str, param: str) -> Path:
    """`root/name`, where name may have several parts.

    Raises InvalidRequest for a name that is absolute, hidden, or leads out of `root`, be it by a
    link.
    """
    parts = PurePosixPath(name).parts
    plain = all(part and not part.startswith(".") and part.isprintable() for part in parts)
    if not parts or name.startswith("/") or "\\" in name or ":" in name or not plain:
        raise InvalidRequest(f"{name!r} is not a name that can be used here", param=param)
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
