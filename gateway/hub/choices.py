"""Which models a repository of the hub offers: one for each quantization of its GGUF files, else
all of it as one. Pure.
"""

from collections.abc import Sequence
from fnmatch import fnmatch

import msgspec

from backends.catalog import Catalog
from gateway.hub.cache import quantizations
from gateway.hub.order import Listing, RemoteFile


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One model that can be downloaded. `name`: its quantization; None: the whole repository."""

    name: str | None
    model: str  # what a download of it is asked by
    backend: str | None  # whose files these are; None: known when they are here
    files: tuple[str, ...]
    size: int  # bytes, what every quantization needs besides included


def choices(repository: str, found: Listing, catalog: Catalog) -> Sequence[Choice]:
    """Those of one repository, the smallest first."""
    shared = [file for file in found.files if _is_shared(file.name, catalog)]
    single: dict[str, list[RemoteFile]] = {}
    for file in found.files:
        if file not in shared and not _is_beside(file.name, catalog) and _backend(file, catalog):
            single.setdefault(catalog.bare_name(file.name), []).append(file)
    if not single:
        size = sum(file.size for file in found.files)
        names = tuple(file.name for file in found.files)
        return (Choice(name=None, model=repository, backend=None, files=names, size=size),)
    named = quantizations(list(single))
    offered = [
        _choice(repository, named[name].rpartition("/")[2], [*files, *shared], catalog)
        for name, files in single.items()
    ]
    return sorted(offered, key=lambda one: one.size)


def _choice(repository: str, tag: str, files: Sequence[RemoteFile], catalog: Catalog) -> Choice:
    return Choice(
        name=tag,
        model=f"{repository}:{tag}",
        backend=_backend(files[0], catalog),
        files=tuple(file.name for file in files),
        size=sum(file.size for file in files),
    )


def _backend(file: RemoteFile, catalog: Catalog) -> str | None:
    """Whose single files are called like this."""
    for name, backend in catalog.items():
        suffix = backend.files.SUFFIX
        if suffix is not None and suffix.search(file.name):
            return name
    return None


def _is_shared(name: str, catalog: Catalog) -> bool:
    """Every quantization needs it."""
    return any(fnmatch(name, pattern) for pattern in catalog.companions)


def _is_beside(name: str, catalog: Catalog) -> bool:
    """Called as what they need, in a precision that nobody fetches: no model of its own."""
    marks = [part for pattern in catalog.companions for part in pattern.split("*")[:2]]
    return any(mark and mark in name for mark in marks)
