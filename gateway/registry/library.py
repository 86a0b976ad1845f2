"""The models that exist: the config's entries, and what the scans of its model folders and of the
hub's cache found.

It loads nothing and knows no engine. The disk is scanned in `refresh` alone; everything else
answers from the last scan.
"""

import difflib
import itertools
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec
import structlog

from backends.contract.catalog import BACKENDS, Catalog, ModelFiles
from backends.contract.errors import LoadFailed
from backends.contract.protocol import AdapterScale
from backends.contract.samplers import Sampling
from backends.places.nodes.node import Nodes
from backends.places.upstream.fleet import Fleet, Roster, first_roster, roster_of
from backends.places.upstream.lists import NOTHING_KEPT, KeptLists
from config.commands import COMMAND
from config.engines import EngineOptions
from config.errors import ConfigError, Source
from config.models import options_for, sampling_for, written_names
from config.settings import Config, ModelConfig
from config.upstreams import UpstreamConfig
from config.values import alike, hub_id
from gateway.keys.access import ADMIN, Access
from gateway.registry.entry import Known, ModelEntry
from gateway.registry.folders import ModelFolder, Recognise, Scanned, Unusable
from gateway.registry.origins import Names, hub_names
from gateway.terms.errors import ModelNotFound, ModelUnavailable
from gateway.terms.request import RequestedSampling

log = structlog.get_logger(__name__)


Offered: TypeAlias = tuple[str, ModelFiles, Names]  # its name, and what else it is called
Discovered: TypeAlias = tuple[str, Scanned, Names]


def _options_with_names(config: Config) -> Iterator[tuple[str, str]]:
    """Where a model is named that must be described elsewhere."""
    if config.default_model:
        yield "$.default_model", config.default_model
    for place, model in enumerate(config.models):
        if model.of is not None:
            yield f"$.models[{place}].of", model.of
    for place, key in enumerate(config.keys):
        for index, name in enumerate(key.models):
            yield f"$.keys[{place}].models[{index}]", name
    for place, upstream in enumerate(config.upstreams):
        for index, name in enumerate(upstream.fallbacks):
            yield f"$.upstreams[{place}].fallbacks[{index}]", name


def template_of(configured: ModelConfig | UpstreamConfig, kind: str) -> str | None:
    """The chat template that a model or an upstream names as a file; `kind` is for the error.
    Raises ConfigError where it can't be read.
    """
    if configured.template is None:
        return None
    try:
        return Path(configured.template).expanduser().read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        source = Source(f"{kind} {configured.name!r}")
        raise source.error("$.template", f"can't be read: {error}") from None


DEFAULT_NAMES = ("", "default")
MAX_UNUSABLE = 100  # files in all folders that are listed with the reason
MAX_NAME = 256  # characters of a name that is compared with others
MAX_COMPARED = 200  # names
NEAR = 0.4  # of difflib's ratio
SCAN_EVERY = 1.0  # seconds between scans of the disk in the background
LATEST = ":latest"  # may stand behind any name: Ollama's clients put it there
REST = 4.0  # times as long as a scan took there is none: large folders must not take all the time


def _adapters(lora: Mapping[str, float]) -> tuple[AdapterScale, ...]:
    return tuple(AdapterScale(name, scale) for name, scale in lora.items())


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

    def scanned(self) -> Mapping[tuple[str, ...], Scanned]:
        """What is there, by its names, the id first. Blocks."""
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
        lists: KeptLists = NOTHING_KEPT,
        before: "ModelLibrary | None" = None,
    ) -> None:
        """`cache`: None: no model is taken from it. `recognise` stands in for the catalog's, where
        files need not be there. `lists`: the upstreams' last ones. `before`: the one that this
        follows; what it knows is not read again, and a model or an upstream that stays as it was
        stays the same object.
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
        former = before.roster if before else first_roster(lists)
        self.roster: Roster = roster_of(config.upstreams, former)
        self.fleet: Fleet = before.fleet if before else Fleet(self.roster)
        self._upstreams = {one.name: one for one in config.upstreams}
        self._templates = {one.name: template_of(one, "upstream") for one in config.upstreams}
        self._nodes = Nodes(config.nodes)
        self.told: set[tuple[str, str, str]] = before.told if before else set()
        self.scan_lock: threading.Lock = before.scan_lock if before else threading.Lock()
        self._scan = LibraryScan({}, {})
        self.due = 0.0  # when the next scan may begin, by time.monotonic
        self._scanned_at = 0.0
        self.refresh()
        if before:
            models = _same(self._scan.models, before.known())
            self._scan = msgspec.structs.replace(self._scan, models=models)

    def successor(self, config: Config, cache: CacheOfModels | None) -> "ModelLibrary":
        """The models as `config` has them; this one stays as it is.

        Scans the disk. Raises ConfigError, as at the start.
        """
        return ModelLibrary(
            config, cache=cache, catalog=self._catalog, recognise=self._recognise, before=self
        )

    def known(self) -> Mapping[str, Known]:
        """All models by id, usable or not, as the last scan found them. It is replaced, not
        changed.
        """
        return self._scan.models

    def entries(self) -> tuple[ModelEntry, ...]:
        """All models that can be asked for, the configured ones first."""
        models = self._scan.models.values()
        return tuple(model for model in models if isinstance(model, ModelEntry))

    def unusable(self) -> tuple[Unusable, ...]:
        """Models that can't be used, and why; of the folders' files the first `MAX_UNUSABLE`."""
        models = self._scan.models.values()
        return tuple(model for model in models if isinstance(model, Unusable))

    def resolve(self, name: str, access: Access = ADMIN) -> ModelEntry:
        """The model called `name`, an id or an alias by its exact letters, a hub's id also behind
        `hf:` and with its quantization in any case, and any with Ollama's tag `:latest`; "" is the
        default.

        Raises ModelNotFound with the nearest names, and ModelUnavailable for a configured model
        whose files can't be used. A key that may not use a model gets the same error as if it
        didn't exist.
        """
        scan, requested = self._scan, name
        if name in DEFAULT_NAMES and name not in scan.names:
            name = self._default(scan)
        if name not in scan.names:
            name = hub_id(name)
        if name not in scan.names:
            name = scan.tags.get(name.lower(), name.removesuffix(LATEST))
        if name not in scan.names or not access.allows(scan.names[name]):
            known = [name for name, model in scan.names.items() if access.allows(model)]
            # The default's name is shown only to those who may use it.
            shown = name if access.allows(name) else requested
            raise ModelNotFound(_not_found(shown, known), param="model")
        model = scan.models[scan.names[name]]
        if isinstance(model, Unusable):
            raise ModelUnavailable(f"{model.name} can't be used: {model.reason}", param="model")
        return model

    def unknown_names(self) -> Iterator[tuple[str, str]]:
        """Options of the configuration that name a model which there is none of, and the problem;
        none as long as the names of all models aren't known.
        """
        for option, name in _options_with_names(self._config) if self.roster.is_known else ():
            try:
                self.resolve(name)
            except ModelNotFound as error:
                yield option, error.message
            except ModelUnavailable:  # it is listed with the reason
                pass

    def is_stale(self) -> bool:
        """Whether it is time to scan the disk again without a request for it."""
        return time.monotonic() >= max(self.due, self._scanned_at + SCAN_EVERY)

    def refresh(self) -> None:
        """Scan the disk again. What didn't change stays the same object.

        Blocks until the headers of new files are read; safe in any thread.
        """
        with self.scan_lock:
            began = time.monotonic()
            models: dict[str, Known] = {}
            for model in self._config.models:
                if model.of is None:
                    models |= self._own(model)
            named, listed = self._offered()
            models |= {name: self._remote(name, files) for name, files, _ in named}
            taken = {name: place for place, name in written_names(self._config)}
            here, cache = [*self._in_folders()], [*self._in_cache()]
            for source in (here, listed):
                models |= self._discovered(source, taken, _places(models))
            models |= (cached := self._discovered(cache, taken, _places(models)))
            models |= self._unusable_files([*here, *cache], taken)
            by_alias = _aliases(models)
            models |= {
                model.name: self._preset(model, models.get(by_alias.get(name, name)), name)
                for model in self._config.models
                if (name := model.of) is not None
            }
            names = _aliases(models) | {name: name for name in models}
            models = {
                name: self._with_draft(one, models, names) if isinstance(one, ModelEntry) else one
                for name, one in models.items()
            }
            tags = {name.lower(): model for name, model in names.items() if ":" in name}
            models = _same(models, self._scan.models)
            self._scan = LibraryScan(models, names, tags, frozenset(cached))
            self._scanned_at = time.monotonic()
            self.due = self._scanned_at + REST * (self._scanned_at - began)

    def _discovered(
        self, found: Sequence[Discovered], taken: dict[str, str], places: set[Path]
    ) -> dict[str, Known]:
        """By name, what is not at one of `places`, and not called as another model: `taken`, to
        which it adds, has for each name where that comes from. The configuration's come first.
        """
        models: dict[str, Known] = {}
        ids = {name for name, files, _ in found if isinstance(files, ModelFiles)}
        for name, files, others in found:
            if isinstance(files, Unusable) or files.path in places:
                continue
            remote = files.remote
            place = str(files.path) if remote is None else f"upstream {remote.upstream!r}"
            if name in taken:
                self._passed_over(name, place, taken[name])
                continue
            aliases = tuple(alias for alias in others if alias not in ids | taken.keys())
            models[name] = (
                self._unconfigured(name, files, aliases)
                if remote is None
                else self._remote(name, files)
            )
            taken |= dict.fromkeys((name, *aliases), place)
        return models

    def _passed_over(self, name: str, place: str, by: str) -> None:
        if (name, place, by) not in self.told:
            self.told.add((name, place, by))
            log.info("a model is passed over: its name is taken", model=name, at=place, by=by)

    def _in_folders(self) -> Iterator[Discovered]:
        """Of each model in the folders its name, its files and its names of the hub."""
        scanned = [folder.scanned() for folder in self.folders.values()]
        origins = [folder.origins() for folder in self.folders.values()]
        others = hub_names({name: origin for each in origins for name, origin in each.items()})
        for models in scanned:
            for name, files in models.items():
                yield name, files, others.get(name, ())

    def _offered(self) -> tuple[Sequence[Offered], Sequence[Offered]]:
        """What upstreams have: what the configuration names, and what is in their lists alone."""
        named: list[Offered] = []
        listed: list[Offered] = []
        for name, files in self.roster.offers():
            (listed if self._upstream(files).models == "all" else named).append((name, files, ()))
        return named, listed

    def _upstream(self, files: ModelFiles) -> UpstreamConfig:
        """Of the upstream that has this model."""
        assert files.remote is not None, "it is another server's"
        return self._upstreams[files.remote.upstream]

    def _in_cache(self) -> Iterator[Discovered]:
        """What the hub's cache holds."""
        cached = self._cache.scanned() if self._cache else {}
        return ((name, files, tuple(others)) for (name, *others), files in cached.items())

    def _unusable_files(
        self, found: Iterable[Discovered], taken: Collection[str]
    ) -> dict[str, Unusable]:
        """By name, what lies in the folders or the cache and can't be used, and is neither called
        as another model nor the file of one that the config names.
        """
        configured = {
            Path(model.path).expanduser().resolve() for model in self._config.models if model.path
        }
        unusable = (
            model
            for _, model, _ in found
            if isinstance(model, Unusable) and model.name not in taken
            if configured.isdisjoint((model.path, *model.path.parents))
        )
        return {model.name: model for model in itertools.islice(unusable, MAX_UNUSABLE)}

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
        entries = [entry for entry in scan.models.values() if isinstance(entry, ModelEntry)]
        others = {entry.name for entry in entries if entry.files.task != "generate"}
        usable = (entry.name for entry in entries if entry.name not in others)
        configured = [model.name for model in self._config.models if model.name not in others]
        names = configured or sorted(usable, key=lambda name: (name in scan.cached, name))
        if not names:
            raise ModelNotFound("No model is available yet.", param="model")
        return names[0]

    def _own(self, model: ModelConfig) -> dict[str, Known]:
        """By name, a model of the config; where it has replicas, these follow."""
        if model.replicas == 1:
            return {model.name: self._configured(model)}
        each = {one.name: self._configured(one, model.name) for one in model.each}
        return {model.name: self._replicated(model, each)} | each

    def _replicated(self, model: ModelConfig, each: Mapping[str, Known]) -> Known:
        """What stands for its replicas, as the first of them that can be used is."""
        usable = [one for one in each.values() if isinstance(one, ModelEntry)]
        if not usable:
            broken = next(iter(each.values()))
            assert isinstance(broken, Unusable), "else it were usable"
            return msgspec.structs.replace(broken, name=model.name, aliases=model.aliases)
        return msgspec.structs.replace(
            usable[0],
            name=model.name,
            aliases=model.aliases,
            preload=model.preload,
            replicas=tuple(one.name for one in usable),
            replica_of="",
        )

    def _configured(self, model: ModelConfig, replica_of: str = "") -> Known:
        path = Path(model.path).expanduser() if model.path else Path(model.name)
        old = self._scan.models.get(model.name)
        stamp = (*_stamp(path), *_stamp(path.parent))  # a projector may come to lie beside it
        if self._nodes.get(model.options.get("host")) is not None:
            stamp = (0, 0, 0, 0)
            old = None if isinstance(old, Unusable) else old  # its machine is asked until it has it
        if old is not None and self._stamps.get(model.name) == (*stamp, *_stamps_beside(old)):
            return old
        self._stamps[model.name] = stamp
        try:
            entry = self._entry(model, self._files(model, path), replica_of)
        except ConfigError as error:
            if old is None:  # at the start it is an error for the user
                raise
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - a strange file must not stop the server
            log.warning("not a usable model", model=model.name, reason=str(error))
            reason = str(error)
        else:
            self._stamps[model.name] = (*stamp, *_stamps_beside(entry))
            return entry
        return Unusable(name=model.name, aliases=model.aliases, reason=reason, path=path)

    def _preset(self, model: ModelConfig, base: Known | None, name: str) -> Known:
        """What the config says a second time of `base`, the model that is called `name`."""
        if not isinstance(base, ModelEntry):
            reason = base.reason if base is not None else f"of: there is no model {name!r}"
            path = base.path if base is not None else Path(name)
            return Unusable(name=model.name, aliases=model.aliases, reason=reason, path=path)
        sampling = _requested(model)
        keep = base.keep_reasoning if model.keep_reasoning == "auto" else model.keep_reasoning
        return msgspec.structs.replace(
            base,
            name=model.name,
            aliases=model.aliases,
            pinned=False,
            preload=False,
            sampling=RequestedSampling(
                sampling.over(base.sampling.values), base.sampling.named | sampling.named
            ),
            keep_reasoning=keep,
            system=base.system if model.system is None else model.system,
            template_variables={**base.template_variables, **model.template_kwargs},
            adapters=base.adapters if model.lora is None else _adapters(model.lora),
            of=base,
        )

    def _with_draft(
        self, entry: ModelEntry, models: Mapping[str, Known], names: Mapping[str, str]
    ) -> ModelEntry:
        """With the path of its draft model, where that is named."""
        draft = getattr(entry.options, "draft", None)
        named = models.get(names.get(draft.model or "", "")) if draft is not None else None
        if draft is None or not isinstance(named, ModelEntry) or named.files.elsewhere is not None:
            return entry
        found = msgspec.structs.replace(draft, model=str(named.files.path))
        options = msgspec.structs.replace(entry.options, draft=found)
        return msgspec.structs.replace(entry, options=options)

    def _files(self, model: ModelConfig, path: Path) -> ModelFiles:
        if model.engine == COMMAND:
            return self._catalog.named(model.name, path if model.path else None)
        if (node := self._nodes.get(model.options.get("host"))) is not None:
            return self._nodes.recognise(node, model.path, model.backend)
        return self._recognise(path, model.backend)

    def _unconfigured(self, name: str, files: ModelFiles, aliases: tuple[str, ...]) -> Known:
        """A model of a folder or the hub's cache. What didn't change stays the same object."""
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
        """A model that another server runs."""
        config = self._upstream(files)
        return ModelEntry(
            name=name,
            files=files,
            options=EngineOptions(max_concurrent=config.max_concurrent),
            format=config.format,
            template=self._templates[config.name],
        )

    def _entry(self, model: ModelConfig, files: ModelFiles, replica_of: str = "") -> ModelEntry:
        options = options_for(self._config, model, files.backend)
        if (node := self._nodes.get(options.host)) is not None:
            files = self._nodes.fitted(node, files, options)
        else:
            files = self._catalog[files.backend].files.fitted(files, options)
        ttls = (model.ttl, options.ttl, self._config.swap.ttl)
        return alike(ModelEntry, model)(
            files=files,
            options=options,
            ttl=next(ttl for ttl in ttls if ttl is not None),
            sampling=_requested(model),
            template=template_of(model, "model"),
            template_variables=model.template_kwargs,
            adapters=None if model.lora is None else _adapters(model.lora),
            of=None,
            created=0 if files.node else _stamp(files.path)[0] // 1_000_000_000,
            replicas=(),
            replica_of=replica_of,
        )


def _same(models: Mapping[str, Known], before: Mapping[str, Known]) -> dict[str, Known]:
    """What is equal to what was before is the same object, so that its load is not planned anew."""
    return {
        name: before[name] if before.get(name) == model else model for name, model in models.items()
    }


def _requested(model: ModelConfig) -> RequestedSampling:
    """The sampling parameters that the config gives it. Raises ConfigError."""
    return RequestedSampling(sampling_for(model, Sampling), frozenset(model.sampling))


def _places(models: Mapping[str, Known]) -> set[Path]:
    return {model.files.path for model in models.values() if isinstance(model, ModelEntry)}


def _aliases(models: Mapping[str, Known]) -> dict[str, str]:
    """Alias to id."""
    return {alias: name for name, model in models.items() for alias in model.aliases}


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
        return f"Model not found: its name has {len(name):,} characters."
    near = difflib.get_close_matches(name, _of_such_length(name, known), n=3, cutoff=NEAR)
    return f"Model {name!r} not found." + (f" Nearest: {', '.join(near)}." if near else "")


def _of_such_length(name: str, known: Sequence[str]) -> Sequence[str]:
    """The first `MAX_COMPARED` that can be near `name`: twice what two texts of such lengths can
    have in common, over both lengths, is at least `NEAR`.
    """
    size, least = len(name), NEAR / (2 - NEAR)
    most = min(MAX_NAME, size / least)
    alike = (other for other in known if least * size <= len(other) <= most)
    return tuple(itertools.islice(alike, MAX_COMPARED))
