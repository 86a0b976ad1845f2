"""A repository of the hub: what it holds, the models it offers (one for each quantization of its
GGUF files, else all of it as one), how a configuration or the command line names one of them
(`hf:owner/name`, `hf:owner/name:Q4_K_M`), and an order to download it. Sizes are bytes.

Listing goes through huggingface_hub and blocks: for a worker thread. The library is optional and
takes long to import, so that happens with the first question.
"""

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import msgspec

from backends.catalog import BACKENDS, Catalog
from gateway.errors import InvalidRequest, ModelUnavailable, NotFound
from gateway.hub.cache import quantizations
from gateway.registry.library import HUB_SCHEME


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One repository, or what `include` leaves of it after `exclude` (patterns of file names)."""

    repository: str  # "owner/name"
    revision: str | None = None  # None: the main branch
    folder: str | None = None  # name of the folder to make; None: the repository's own
    token: str | None = None  # None: the one that the hub's tools have stored, if any
    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether nothing of the repository is left out."""
        return self.include == ("*",) and not self.exclude

    def wants(self, file: str) -> bool:
        """Whether `file` is to be fetched."""
        included = any(fnmatch(file, pattern) for pattern in self.include)
        return included and not any(fnmatch(file, pattern) for pattern in self.exclude)

    def __repr__(self) -> str:
        """All but the token, since representations end in logs."""
        return f"Order({self.repository!r}, revision={self.revision!r})"


class RemoteFile(msgspec.Struct, frozen=True):
    """One file of a repository. `sha256`: of large files the hub knows it."""

    name: str
    size: int
    url: str
    sha256: str | None = None


class Listing(msgspec.Struct, frozen=True):
    """A repository at one commit; `headers` are those to ask for its files with."""

    commit: str
    files: tuple[RemoteFile, ...]
    headers: dict[str, str]


class DownloadProgress(msgspec.Struct, frozen=True):
    """How far a download is, over all files."""

    file: str
    done: int
    total: int


SCHEME = HUB_SCHEME
_FORM = re.compile(r"hf:(?P<owner>[\w.-]+)/(?P<name>[\w.-]+)(:(?P<files>[\w.-]+))?")

Usable = Callable[[Path], bool]


class HubModel(msgspec.Struct, frozen=True):
    """`files`: a part of the names of the files that are wanted; None: all of them."""

    owner: str
    name: str
    files: str | None = None

    @property
    def repository(self) -> str:
        return f"{self.owner}/{self.name}"

    @property
    def folder(self) -> str:
        """Where a download of it lies, under the folder for downloads."""
        return self.name if self.files is None else f"{self.name}-{self.files}"

    @property
    def order(self) -> Order:
        if self.files is None:
            return Order(repository=self.repository, folder=self.folder)
        include = (f"*{self.files}*", *BACKENDS.companions)
        return Order(repository=self.repository, folder=self.folder, include=include)


def hub_model(text: str) -> HubModel:
    """What `text` names. Raises InvalidRequest where it has another form."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"{text!r} is not of the form hf:owner/name or hf:owner/name:part")
    return HubModel(match["owner"], match["name"], match["files"])


def snapshot(cache: Path, model: HubModel) -> Path:
    """Where the hub's own tools put the main branch, if they did (huggingface_hub's cache layout:
    `models--owner--name/refs/main` holds the commit, `snapshots/<commit>` its files).
    """
    root = cache / f"models--{model.owner}--{model.name}"
    try:
        commit = (root / "refs" / "main").read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        commit = "none"
    return root / "snapshots" / commit


def listing(endpoint: str | None, order: Order) -> Listing:
    """The files that `order` wants.

    Raises NotFound where hub, repository or revision say no, InvalidRequest where nothing is left
    to fetch, ModelUnavailable where the hub can't be reached or the library is missing.
    """
    try:
        import huggingface_hub  # noqa: PLC0415 - optional, and slow to import
        from huggingface_hub import errors  # noqa: PLC0415
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined] # noqa: PLC0415
    except ImportError as error:
        raise ModelUnavailable(
            "downloads need huggingface_hub: pip install huggingface_hub"
        ) from error
    api = huggingface_hub.HfApi(endpoint=endpoint, token=order.token, library_name="roundhouse")
    try:
        info = api.model_info(order.repository, revision=order.revision, files_metadata=True)
    except errors.HFValidationError as error:
        raise InvalidRequest(f"repo_id: {error}", param="repo_id") from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise NotFound(f"the hub has no {order.repository}: {error}", param="repo_id") from error
    except Exception as error:  # of whichever HTTP library huggingface_hub uses
        raise ModelUnavailable(f"the hub can't be asked: {error}") from error

    commit = info.sha
    if commit is None:
        raise ModelUnavailable(f"the hub names no commit of {order.repository}")

    def url(name: str) -> str:
        return str(
            huggingface_hub.hf_hub_url(order.repository, name, revision=commit, endpoint=endpoint)
        )

    wanted = (one for one in info.siblings or () if order.wants(one.rfilename))
    files = tuple(_file(one, url(one.rfilename)) for one in wanted if not _is_hidden(one.rfilename))
    if not files:
        text = f"include and exclude leave nothing of {order.repository}"
        raise InvalidRequest(text, param="include")
    return Listing(commit, files, build_hf_headers(token=order.token, library_name="roundhouse"))


def _is_hidden(name: str) -> bool:
    """Git's own files and such, which no model needs. What leads elsewhere is not merely hidden."""
    return any(part.startswith(".") and part != ".." for part in name.split("/"))


def _file(sibling: Any, url: str) -> RemoteFile:
    checksum = sibling.lfs.sha256 if sibling.lfs is not None else None
    return RemoteFile(sibling.rfilename, sibling.size or 0, url, checksum)


class OfferedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model that can be downloaded. `name`: its quantization; None: the whole repository."""

    name: str | None
    model: str  # what a download of it is asked by
    backend: str | None  # whose files these are; None: known when they are here
    files: tuple[str, ...]
    size: int  # bytes, what every quantization needs besides included


def choices(repository: str, found: Listing, catalog: Catalog) -> Sequence[OfferedModel]:
    """Those of one repository, the smallest first."""
    shared = [file for file in found.files if _is_shared(file.name, catalog)]
    single: dict[str, list[RemoteFile]] = {}
    for file in found.files:
        if file not in shared and not _is_beside(file.name, catalog) and _backend(file, catalog):
            single.setdefault(catalog.bare_name(file.name), []).append(file)
    if not single:
        size = sum(file.size for file in found.files)
        names = tuple(file.name for file in found.files)
        return (OfferedModel(name=None, model=repository, backend=None, files=names, size=size),)
    named = quantizations(list(single))
    offered = [
        _choice(repository, named[name].rpartition("/")[2], [*files, *shared], catalog)
        for name, files in single.items()
    ]
    return sorted(offered, key=lambda one: one.size)


def _choice(
    repository: str, tag: str, files: Sequence[RemoteFile], catalog: Catalog
) -> OfferedModel:
    return OfferedModel(
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
    """Called as what they need, in a precision that is not downloaded: no model of its own."""
    marks = [part for pattern in catalog.companions for part in pattern.split("*")[:2]]
    return any(mark and mark in name for mark in marks)
