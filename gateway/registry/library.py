"""The models that exist: the config's entries, and what the scans of its model folders and of the
hub's cache found.

It loads nothing and knows no engine. The disk is scanned in `refresh` alone; everything else
answers from the last scan.
"""

import difflib
import itertools
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

import msgspec
import structlog

from backends.catalog import BACKENDS, Catalog, ModelFiles
from backends.errors import LoadFailed
from backends.protocol import Sampling
from backends.upstream.fleet import Fleet
from backends.upstream.roster import Roster, roster_of
from config.engines import EngineOptions
from config.errors import ConfigError
from config.models import options_for, sampling_for
from config.settings import Config, ModelConfig
from gateway.access import ADMIN, Access
from gateway.errors import ModelNotFound, ModelUnavailable
from gateway.registry.origin import Names, hub_names
from gateway.registry.sources import ModelFolder, Recognise, Unusable, UpstreamModels, template_of
from gateway.request import RequestedSampling

DEFAULT_NAMES = ("", "default")
MAX_UNUSABLE = 100  # files in all folders that are listed with the reason
MAX_NAME = 256  # characters of a name that is compared with others
MAX_COMPARED = 200  # names
NEAR = 0.4  # of difflib's ratio
SCAN_EVERY = 1.0  # seconds between scans of the disk in the background
HUB_SCHEME = "hf:"  # may stand before a hub's id
LATEST = ":latest"  # may stand behind any name: Ollama's clients put it there
REST = 4.0  # times as long as a scan took there is none: large folders must not take all the time

log = structlog.get_logger(__name__)


FileIdentity: TypeAlias = Mapping[Path, tuple[int, int, int, int]]


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be asked for, loaded or not."""

    name: str
    files: ModelFiles
    options: EngineOptions
    aliases: tuple[str, ...] = ()
    pinned: bool = False
    preload: bool = False
    ttl: float = -1.0  # idle seconds until it is unloaded; -1: never
    sampling: RequestedSampling = RequestedSampling()
    format: str | None = None
    template: str | None = None  # a chat template's text in place of the model's own
    keep_reasoning: Literal["auto"] | bool = "auto"  # of earlier turns, see `ModelConfig`
    created: int = 0  # Unix time of the files


def check_files(entry: ModelEntry) -> None:
    """Raises ModelUnavailable for a model whose files are gone."""
    for part in entry.files.parts:
        if not part.exists():
            text = f"{entry.name} can't be loaded: {part} is gone"
            raise ModelUnavailable(text, param="model")


def identity(files: ModelFiles) -> FileIdentity:
    """Of every file of a model, and of those beside it: device, inode, bytes and time of change in
    ns; what is gone is left out. A file that was written over in place differs, as does one put in
    its place.
    """
    found = {}
    own = files.parts or (files.path,)
    for path in (*own, *((files.projector,) if files.projector else ()), *files.beside):
        try:
            status = path.stat()
        except OSError:
            continue
        facts = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
        found[path] = facts
    return found


Known: TypeAlias = ModelEntry | Unusable


class LibraryScan(msgspec.Struct, frozen=True):
    """The result of one scan of the disk; replaced as a whole, so that readers never see half of
    it.
    """

    models: Mapping[str, Known]
    names: Mapping[str, str]  # id or alias to id
    tags: Mapping[str, str] = {}  # a name with a quantization, in lower case, to id
    cached: frozenset[str] = frozenset()  # ids of those from the hub's cache


class CacheOfModels(Protocol):
    """A hub's cache on this machine (`gateway/hub/cache.py`)."""

    def models(self) -> Mapping[tuple[str, ...], ModelFiles]:
        """What can be used, by its names, the id first. Blocks."""
        ...

    def unusable(self) -> Iterable[Unusable]:
        """What that scan found and can't be used."""
        ...


class ModelLibrary:
    """All models by name; it scans the disk at once.

    Raises ConfigError for options or sampling defaults that don't exist, or a template that can't
    be read.
    """

    def __init__(
        self,
        config: Config,
        *,
        cache: CacheOfModels | None = None,
        catalog: Catalog = BACKENDS,
        recognise: Recognise | None = None,
        before: "ModelLibrary | None" = None,
    ) -> None:
        """`cache`: None: no model is taken from it. `recognise` stands in for the catalog's, where
        files need not be there. `before`: the one that this follows; what it knows is not read
        again, and a model or an upstream that stays as it was stays the same object.
        """
        self._config = config
        self._cache = cache
        self._catalog = catalog
        self._recognise = recognise = recognise or catalog.recognise
        known = before.folders if before else {}
        self.folders: dict[str, ModelFolder] = {
            root: known.get(root) or ModelFolder(Path(root), recognise, catalog)
            for root in config.model_dirs
        }
        self._stamps: dict[str, tuple[int, ...]] = {}
        self._scans: dict[str, ModelFiles] = {}
        self.roster: Roster = roster_of(config.upstreams, before.roster if before else None)
        self.fleet: Fleet = before.fleet if before else Fleet(self.roster)
        self._offered = UpstreamModels(config, self.roster)
        self.scan_lock: threading.Lock = before.scan_lock if before else threading.Lock()
        self._scan = LibraryScan({}, {})
        self.due = 0.0  # when the next scan may begin, by time.monotonic
        self._scanned_at = 0.0
        self.refresh()
        if before:
            self._keep(before.known())

    def successor(self, config: Config, cache: CacheOfModels | None) -> "ModelLibrary":
        """The models as `config` has them; this one stays as it is.

        Scans the disk. Raises ConfigError, as at the start.
        """
        return ModelLibrary(
            config, cache=cache, catalog=self._catalog, recognise=self._recognise, before=self
        )

    def _keep(self, before: Mapping[str, Known]) -> None:
        """What is equal stays the same object, so that its load is not planned anew."""
        models = {
            name: before[name] if before.get(name) == one else one
            for name, one in self._scan.models.items()
        }
        self._scan = msgspec.structs.replace(self._scan, models=models)

    def known(self) -> Mapping[str, Known]:
        """All models by id, usable or not, as the last scan found them. It is replaced, not
        changed.
        """
        return self._scan.models

    def entries(self) -> tuple[ModelEntry, ...]:
        """All models that can be asked for, the configured ones first."""
        return tuple(one for one in self._scan.models.values() if isinstance(one, ModelEntry))

    def unusable(self) -> tuple[Unusable, ...]:
        """Models that can't be used, and why; of the folders' files the first `MAX_UNUSABLE`."""
        return tuple(one for one in self._scan.models.values() if isinstance(one, Unusable))

    def resolve(self, name: str, access: Access = ADMIN) -> ModelEntry:
        """The model called `name`, an id or an alias by its exact letters, a hub's id also behind
        `hf:` and with its quantization in any case, and any with Ollama's tag `:latest`; "" is the
        default.

        Raises ModelNotFound with the nearest names, and ModelUnavailable for a configured model
        whose files can't be used. A key that may not use a model gets the same error as if it
        didn't exist.
        """
        scan, asked = self._scan, name
        if name in DEFAULT_NAMES and name not in scan.names:
            name = self._default(scan)
        if name not in scan.names:
            name = name.removeprefix(HUB_SCHEME)
        if name not in scan.names:
            name = scan.tags.get(name.lower(), name.removesuffix(LATEST))
        if name not in scan.names or not access.allows(scan.names[name]):
            known = [one for one, model in scan.names.items() if access.allows(model)]
            # The default's name is shown only to those who may use it.
            shown = name if access.allows(name) else asked
            raise ModelNotFound(_not_found(shown, known), param="model")
        found = scan.models[scan.names[name]]
        if isinstance(found, Unusable):
            raise ModelUnavailable(f"{found.name} can't be used: {found.reason}", param="model")
        return found

    def is_stale(self) -> bool:
        """Whether it is time to scan the disk again without a request for it."""
        return time.monotonic() >= max(self.due, self._scanned_at + SCAN_EVERY)

    def refresh(self) -> None:
        """Scan the disk again. What didn't change stays the same object.

        Blocks until the headers of new files are read; safe in any thread.
        """
        with self.scan_lock:
            began = time.monotonic()
            models = {model.name: self._configured(model) for model in self._config.models}
            places = _places(models)
            for name, files in self._offered.named():
                models.setdefault(name, self._remote(name, files))
            taken = {*models, *(alias for one in models.values() for alias in one.aliases)}
            for name, files, others in self._scanned():
                if name not in models and files.path not in places:
                    aliases = tuple(one for one in others if one not in taken)
                    models[name] = self._found(name, files, aliases)
            for name, files in self._offered.discovered():
                models.setdefault(name, self._remote(name, files))
            by_alias = {alias: name for name, one in models.items() for alias in one.aliases}
            cached = self._cached({*models, *by_alias}, _places(models))
            models |= cached
            by_alias |= {alias: name for name, one in cached.items() for alias in one.aliases}
            models |= self._unusable_files({*models, *by_alias})
            names = {**by_alias, **{name: name for name in models}}
            tags = {name.lower(): model for name, model in names.items() if ":" in name}
            self._scan = LibraryScan(models, names, tags, frozenset(cached))
            self._scanned_at = time.monotonic()
            self.due = self._scanned_at + REST * (self._scanned_at - began)

    def _scanned(self) -> Iterator[tuple[str, ModelFiles, Names]]:
        """Of each model in the folders its name, its files and its names of the hub."""
        scanned = [folder.models() for folder in self.folders.values()]
        origins = [folder.origins() for folder in self.folders.values()]
        others = hub_names({name: one for found in origins for name, one in found.items()})
        for found in scanned:
            for name, files in found.items():
                yield name, files, others.get(name, ())

    def _cached(self, taken: set[str], places: set[Path]) -> dict[str, Known]:
        """By id, what the hub's cache holds; without what is called as another model, or is one."""
        found = self._cache.models() if self._cache else {}
        return {
            name: self._found(name, files, tuple(alias for alias in others if alias not in taken))
            for (name, *others), files in found.items()
            if name not in taken and files.path not in places
        }

    def _unusable_files(self, taken: set[str]) -> dict[str, Unusable]:
        """By name, what lies in the folders or the cache and can't be used, and is neither called
        as another model nor the file of one that the config names.
        """
        configured = {Path(model.path).expanduser().resolve() for model in self._config.models}
        found = (
            one
            for source in (*self.folders.values(), *([self._cache] if self._cache else ()))
            for one in source.unusable()
            if one.name not in taken and configured.isdisjoint((one.path, *one.path.parents))
        )
        return {one.name: one for one in itertools.islice(found, MAX_UNUSABLE)}

    def default_name(self) -> str | None:
        """What the default model is called, whether or not it is there; None: there is none."""
        try:
            return self._default(self._scan)
        except ModelNotFound:
            return None

    def _default(self, scan: LibraryScan) -> str:
        """The configured default; else the first model of the config, else the first by name that
        can be used, of the folders before the hub's cache. What writes no text is none, unless it
        is configured so.
        """
        if self._config.default_model is not None:
            return self._config.default_model
        others = {
            name
            for name, one in scan.models.items()
            if isinstance(one, ModelEntry) and one.files.task != "generate"
        }
        usable = (
            name
            for name, one in scan.models.items()
            if isinstance(one, ModelEntry) and name not in others
        )
        configured = [model.name for model in self._config.models if model.name not in others]
        names = configured or sorted(usable, key=lambda name: (name in scan.cached, name))
        if not names:
            raise ModelNotFound("There is no model here yet.", param="model")
        return names[0]

    def _configured(self, model: ModelConfig) -> Known:
        path = Path(model.path).expanduser()
        old = self._scan.models.get(model.name)
        stamp = (*_stamp(path), *_stamp(path.parent))  # a projector may come to lie beside it
        if old is not None and self._stamps.get(model.name) == (*stamp, *_stamps_beside(old)):
            return old
        self._stamps[model.name] = stamp
        try:
            entry = self._entry(model, self._recognise(path, model.backend))
        except ConfigError as error:
            if old is None:  # at the start it is an error for the user
                raise
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - a strange file must not stop the server
            log.warning("not a usable model", model=model.name, reason=str(error))
            reason = str(error)
        else:
            self._stamps[model.name] = (*stamp, *_stamps_beside(entry))
            return old if isinstance(old, ModelEntry) and old == entry else entry
        return Unusable(name=model.name, aliases=model.aliases, reason=reason, path=path)

    def _found(self, name: str, files: ModelFiles, aliases: tuple[str, ...] = ()) -> Known:
        old = self._scan.models.get(name)
        if old is not None and self._scans.get(name) is files and old.aliases == aliases:
            return old
        self._scans[name] = files
        try:
            model = ModelConfig(name=name, aliases=aliases, path=str(files.path))
            return self._entry(model, files)
        except LoadFailed as error:
            return Unusable(name=name, aliases=aliases, reason=str(error), path=files.path)

    def _remote(self, name: str, files: ModelFiles) -> ModelEntry:
        """A model that another server runs. What didn't change stays the same object."""
        config = self._offered.config(files)
        entry = ModelEntry(
            name=name,
            files=files,
            options=EngineOptions(max_concurrent=config.max_concurrent),
            format=config.format,
            template=self._offered.template(files),
        )
        old = self._scan.models.get(name)
        return old if isinstance(old, ModelEntry) and old == entry else entry

    def _entry(self, model: ModelConfig, files: ModelFiles) -> ModelEntry:
        options = options_for(self._config, model, files.backend)
        files = self._catalog[files.backend].files.fitted(files, options)
        ttls = (model.ttl, options.ttl, self._config.swap.ttl)
        return ModelEntry(
            name=model.name,
            files=files,
            options=options,
            aliases=model.aliases,
            pinned=model.pinned,
            preload=model.preload,
            ttl=next(ttl for ttl in ttls if ttl is not None),
            sampling=RequestedSampling(sampling_for(model, Sampling), frozenset(model.sampling)),
            format=model.format,
            template=template_of(model, "model"),
            keep_reasoning=model.keep_reasoning,
            created=_stamp(files.path)[0] // 1_000_000_000,
        )


def _places(models: Mapping[str, Known]) -> set[Path]:
    return {one.files.path for one in models.values() if isinstance(one, ModelEntry)}


def _stamp(path: Path) -> tuple[int, int]:
    """Identifies the state of a file or folder: time of change in ns, and bytes."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_mtime_ns, status.st_size


def _stamps_beside(model: Known) -> Iterator[int]:
    beside = model.files.beside if isinstance(model, ModelEntry) else ()
    return itertools.chain.from_iterable(map(_stamp, beside))


def _not_found(name: str, known: Sequence[str]) -> str:
    """Few and short names are compared, because comparing takes time."""
    if len(name) > MAX_NAME:
        return f"There is no model of a name with {len(name):,} characters."
    near = difflib.get_close_matches(name, _of_such_length(name, known), n=3, cutoff=NEAR)
    return f"There is no model {name!r}." + (f" Nearest: {', '.join(near)}." if near else "")


def _of_such_length(name: str, known: Sequence[str]) -> Sequence[str]:
    """The first `MAX_COMPARED` that can be near `name`: twice what two texts of such lengths can
    have in common, over both lengths, is at least `NEAR`.
    """
    size, least = len(name), NEAR / (2 - NEAR)
    alike = (one for one in known if least * size <= len(one) <= min(MAX_NAME, size / least))
    return tuple(itertools.islice(alike, MAX_COMPARED))
