"""A repository of the hub: what it holds, the models it offers (one for each quantization of its
GGUF files, else all of it as one), how a configuration or the command line names one of them
(`hf:owner/name`, `hf:owner/name:Q4_K_M`), and an order to download it. Sizes are bytes.

Listing goes through huggingface_hub and blocks: for a worker thread. The library takes long to
import, so that happens with the first question.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from backends.contract.catalog import CPU, Cards, Catalog
from backends.contract.protocol import MemoryNeed
from config.settings import Config
from config.values import HUB, hub_id
from gateway.hub.cache import quantizations
from gateway.registry.memory import covered, shares
from gateway.terms.errors import Forbidden, InvalidRequest, ModelUnavailable, NotFound

MOST_NAMED = 40  # files or quantizations in an error
PREFERRED = "q4_k_m"
UNQUANTIZED = ("f32", "f16", "bf16")  # taken where they are named, or are all there is
LARGEST = 1 << 62  # bytes of a file
BESIDE = 0.1  # of a model's bytes, for its cache and buffers: a guess, until its header is here


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One model of a repository: the one whose quantization, or a part of whose file names, is
    `quantization`. Of several where it isn't given one is chosen, see `selected`. With `include` or
    `exclude` (patterns of file names) it is all that they leave of the repository.
    """

    repository: str  # "owner/name"
    quantization: str | None = None
    revision: str | None = None  # None: the main branch
    folder: str | None = None  # name of the folder to make; None: the repository's own
    token: str | None = None  # None: the one that the hub's tools have stored, if any
    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What is ordered, as it was named."""
        return self.repository + (f":{self.quantization}" if self.quantization else "")

    @property
    def usual_folder(self) -> str:
        """Where a download of it usually lies, under the folder for downloads."""
        bare = self.repository.rpartition("/")[2]
        return bare if self.quantization is None else f"{bare}-{self.quantization}"

    @property
    def has_patterns(self) -> bool:
        """Whether the files to fetch are chosen by their names."""
        return self.include != ("*",) or bool(self.exclude)

    def wants(self, file: str) -> bool:
        """Whether `file` is to be fetched."""
        included = any(fnmatch(file, pattern) for pattern in self.include)
        return included and not any(fnmatch(file, pattern) for pattern in self.exclude)

    def __repr__(self) -> str:
        """All but the token, since representations end in logs."""
        return f"Order({self.repository!r}, revision={self.revision!r})"


class RemoteFile(msgspec.Struct, frozen=True):
    """One file of a repository. `size` 0: the hub doesn't say it, or the file is empty; `sha256`:
    of large files the hub knows it.
    """

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
    """How far a download is, over all files. `model`: what is downloaded, with its quantization."""

    file: str
    done: int
    total: int
    model: str = ""


_FORM = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(:(?P<quantization>[\w.-]+))?")

Usable = Callable[[Path], bool]


def hub_model(text: str) -> Order:
    """What `text` names, with the hub before it or without. Raises InvalidRequest where it has
    another form.
    """
    match = _FORM.fullmatch(hub_id(text))
    if match is None:
        named = HUB + hub_id(text)
        raise InvalidRequest(
            f"{named!r} is not of the form {HUB}owner/name or {HUB}owner/name:part"
        )
    return Order(repository=match["repository"], quantization=match["quantization"])


class HuggingFace(msgspec.Struct, frozen=True):
    """The hub at `endpoint`, None: huggingface.co; `cache`: where its own tools keep models. All of
    it blocks: for a worker thread.
    """

    endpoint: str | None
    cache: Path

    def snapshot(self, repository: str) -> Path:
        """Where the hub's own tools put the main branch, if they did (huggingface_hub's cache
        layout: `models--owner--name/refs/main` holds the commit, `snapshots/<commit>` its files).
        """
        root = self.cache / f"models--{repository.replace('/', '--')}"
        try:
            commit = (root / "refs" / "main").read_text("ascii").strip()
        except (OSError, UnicodeDecodeError):
            commit = "none"
        return root / "snapshots" / commit

    def listing(self, order: Order) -> Listing:
        """All files of the ordered repository.

        Raises NotFound where there is no such repository or revision, Forbidden where it is gated,
        InvalidRequest for a name that can't be one or a repository without files, ModelUnavailable
        where the hub can't be reached.
        """
        hub, who = library(), {"token": order.token, "library_name": "roundhouse"}
        api = hub.HfApi(endpoint=self.endpoint, **who)
        try:
            info = api.model_info(order.repository, revision=order.revision, files_metadata=True)
        except Exception as error:  # of whichever HTTP library huggingface_hub uses
            raise refusal(error, order, api.endpoint) from error

        commit = info.sha
        if commit is None:
            raise ModelUnavailable(f"{api.endpoint} is not a commit of {order.repository}")
        shown = [sibling for sibling in info.siblings or () if not _is_hidden(sibling.rfilename)]
        if not shown:
            raise InvalidRequest(f"{order.repository} has no files", param="repo_id")
        place = {"revision": commit, "endpoint": self.endpoint}
        urls = (hub.hf_hub_url(order.repository, one.rfilename, **place) for one in shown)
        files = (_file(one, url, api.endpoint) for one, url in zip(shown, urls, strict=True))
        return Listing(commit, tuple(files), hub.utils.build_hf_headers(**who))


def library() -> Any:  # of what is used here it declares little as its own
    """huggingface_hub, which is slow to import."""
    import huggingface_hub  # noqa: PLC0415
    import huggingface_hub.utils  # noqa: PLC0415

    return huggingface_hub


def refusal(error: Exception, order: Order, endpoint: str) -> Exception:
    """An error of huggingface_hub, whose texts have several lines, in one of ours."""
    from huggingface_hub import errors  # noqa: PLC0415 - slow to import

    name = order.repository
    match error:
        case errors.HFValidationError():
            text = f"{name!r} is not a valid repository; expected owner/name"
            return InvalidRequest(text, param="repo_id")
        case errors.GatedRepoError():
            text = f"{name} is gated: accept its terms at {endpoint}/{name}, then set HF_TOKEN"
            return Forbidden(text)
        case errors.RepositoryNotFoundError():
            text = f"{name} was not found at {endpoint}; if it is private, set HF_TOKEN"
            return NotFound(text, param="repo_id")
        case errors.RevisionNotFoundError():
            return NotFound(f"{name} has no revision {order.revision!r}", param="revision")
        case errors.HfHubHTTPError(response=response):
            return ModelUnavailable(f"{endpoint} answered {response.status_code} for {name}")
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return ModelUnavailable(f"can't reach {endpoint}: {reason}")


def _is_hidden(name: str) -> bool:
    """Git's own files and such, which no model needs. What leads elsewhere is not merely hidden."""
    return any(part.startswith(".") and part != ".." for part in name.split("/"))


def _file(sibling: Any, url: str, endpoint: str) -> RemoteFile:
    """Raises ModelUnavailable for what a hub can't mean: huggingface_hub hands it on unread."""
    name, size = sibling.rfilename, sibling.size
    if size is not None and not (type(size) is int and 0 <= size < LARGEST):
        raise ModelUnavailable(f"{endpoint} lists {name} with a wrong size, {size!r:.40}")
    checksum = sibling.lfs.sha256 if sibling.lfs is not None else None
    return RemoteFile(name, size or 0, url, checksum)


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
        if (
            file not in shared
            and not _is_beside(file.name, catalog)
            and backend_of(file.name, catalog)
        ):
            single.setdefault(catalog.bare_name(file.name), []).append(file)
    if not single:
        size = sum(file.size for file in found.files)
        names = tuple(file.name for file in found.files)
        return (OfferedModel(name=None, model=repository, backend=None, files=names, size=size),)
    named, offered = quantizations(list(single)), []
    for name, own in single.items():
        tag, files = named[name].rpartition("/")[2], [*own, *shared]
        model = OfferedModel(
            name=tag,
            model=f"{repository}:{tag}",
            backend=backend_of(own[0].name, catalog),
            files=tuple(file.name for file in files),
            size=sum(file.size for file in files),
        )
        offered.append(model)
    return sorted(offered, key=lambda model: model.size)


def backend_of(file: str, catalog: Catalog) -> str | None:
    """Whose single files are called like this."""
    for name, backend in catalog.items():
        suffix = backend.files.SUFFIX
        if suffix is not None and suffix.search(file):
            return name
    return None


def _is_shared(name: str, catalog: Catalog) -> bool:
    """Every quantization needs it."""
    return any(fnmatch(name, pattern) for pattern in catalog.companions)


def _is_beside(name: str, catalog: Catalog) -> bool:
    """Called as what they need, in a precision that is not downloaded: no model of its own."""
    marks = [part for pattern in catalog.companions for part in pattern.split("*")[:2]]
    return any(mark and mark in name for mark in marks)


Fits: TypeAlias = Callable[[OfferedModel], bool]


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """What a download fetches. `model`: its full name; `folder`: what the folder of it is called;
    `others`: what would have been there besides, where one was chosen here.
    """

    model: str
    folder: str
    files: tuple[RemoteFile, ...]
    others: tuple[OfferedModel, ...] = ()

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def selected(order: Order, found: Listing, catalog: Catalog, fits: Fits) -> Selection:
    """What `order` means in a repository.

    Raises InvalidRequest that names what there is, where nothing fits its words.
    """
    bare = order.repository.rpartition("/")[2]
    wanted = tuple(file for file in found.files if order.wants(file.name))
    if not wanted:
        raise _none_matches(order, "include and exclude", [file.name for file in found.files])
    if order.has_patterns and order.quantization is None:
        return Selection(model=order.repository, folder=order.folder or bare, files=wanted)
    offered = choices(order.repository, Listing(found.commit, wanted, found.headers), catalog)
    matching = offered if order.quantization is None else _matching(order, offered)
    choice = best(matching, fits)
    tag = choice.name or order.quantization
    is_one_of_many = len(offered) > 1 or order.quantization is not None
    return Selection(
        model=choice.model,
        folder=order.folder or (f"{bare}-{tag}" if is_one_of_many else bare),
        files=tuple(_placed(file, choice) for file in wanted if file.name in choice.files),
        others=tuple(model for model in matching if model is not choice),
    )


def _placed(file: RemoteFile, choice: OfferedModel) -> RemoteFile:
    """A model in files of its own lies directly in its folder, its projector beside it."""
    if choice.backend is None:
        return file
    return msgspec.structs.replace(file, name=file.name.rpartition("/")[2])


def _matching(order: Order, offered: Sequence[OfferedModel]) -> Sequence[OfferedModel]:
    """Those of the ordered quantization; else those in whose files' names it stands."""
    wanted = (order.quantization or "").lower()
    exact = [model for model in offered if model.name is not None and model.name.lower() == wanted]
    if exact:
        return exact
    named = {
        model.model: [name for name in model.files if wanted in name.lower()] for model in offered
    }
    found = [model for model in offered if named[model.model]]
    if not found:
        names = [model.name or file for model in offered for file in model.files[:1]]
        raise _none_matches(order, order.quantization or "", names)
    if found[0].name is None:  # a repository that is one model: a part of its files
        return [msgspec.structs.replace(found[0], files=tuple(named[found[0].model]))]
    return found


def _none_matches(order: Order, what: str, names: Sequence[str]) -> InvalidRequest:
    rest = len(names) - MOST_NAMED
    more = f" and {rest} more" if rest > 0 else ""
    text = f"no file of {order.repository} matches {what}; available: "
    return InvalidRequest(text + ", ".join(names[:MOST_NAMED]) + more, param="model")


def best(offered: Sequence[OfferedModel], fits: Fits) -> OfferedModel:
    """Q4_K_M, else the largest quantization that fits here, else the smallest there is."""
    fitting = [model for model in offered if fits(model)] or [
        min(offered, key=lambda model: model.size)
    ]
    tags = {model.model: (model.name or "").lower() for model in fitting}
    preferred = [model for model in fitting if tags[model.model].endswith(PREFERRED)]
    quantized = [model for model in fitting if not tags[model.model].endswith(UNQUANTIZED)]
    return max(preferred or quantized or fitting, key=lambda model: model.size)


def fits_in(budgets: Mapping[str, int], config: Config, catalog: Catalog) -> Fits:
    """Whether a model would have room where that many bytes are for all of them."""
    cards = {device: size for device, size in budgets.items() if device != CPU}
    return lambda choice: any(
        covered(way, budgets) for way in needed(choice, config, catalog, cards)
    )


def needed(
    choice: OfferedModel, config: Config, catalog: Catalog, cards: Cards
) -> Sequence[Mapping[str, int]]:
    """By device, the bytes that a model will take with its engine's defaults, in each way that it
    can lie, guessed by the size of its files; see
    `backends.contract.catalog.FilesModule.placements`.
    """
    # A whole folder is for the first engine that reads folders.
    folders = (name for name, backend in catalog.items() if backend.files.SUFFIX is None)
    backend = choice.backend or next(folders)
    options, files = getattr(config.engines, backend), catalog[backend].files
    need = MemoryNeed(weights=int(choice.size * (1 + BESIDE)), cache=0, engine=0)
    return [shares(need, placement) for placement in files.placements(None, options, cards)]
