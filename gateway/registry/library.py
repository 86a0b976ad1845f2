"""Which models exist: the config's entries and what lies in its model folders. It knows no engine and loads nothing."""

import difflib
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from backends import catalog
from backends.catalog import ModelFiles
from backends.errors import BackendError
from backends.protocol import Sampling
from config.engines import EngineOptions
from config.models import options_for, sampling_for
from config.settings import Config, ModelConfig
from gateway.errors import ModelNotFound, ModelUnavailable
from gateway.registry.folders import ModelFolder
from gateway.request import SamplingWishes

DEFAULT_NAMES = ("", "default")
LOOK_EVERY = 1.0  # seconds between looks at the folders, at least


class ModelEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be asked for, loaded or not."""

    name: str
    files: ModelFiles
    options: EngineOptions
    aliases: tuple[str, ...] = ()
    pinned: bool = False
    preload: bool = False
    ttl: float = -1.0  # idle seconds until it is unloaded; -1: never
    sampling: SamplingWishes = SamplingWishes()
    format: str | None = None
    template: str | None = None  # a chat template's text in place of the model's own
    created: int = 0  # Unix time of the files


class Unusable(msgspec.Struct, frozen=True, kw_only=True):
    """A model the config names that can't be recognised, and why."""

    name: str
    aliases: tuple[str, ...]
    reason: str


Recognise = Callable[[Path, str | None], ModelFiles]


class Library:
    """All models by name. Raises ConfigError for options or sampling defaults that don't exist."""

    def __init__(self, config: Config, *, recognise: Recognise = catalog.recognise) -> None:
        self._config = config
        self._recognise = recognise
        self._folders = tuple(ModelFolder(Path(root), recognise) for root in config.model_dirs)
        self._found: Mapping[str, ModelEntry] = {}
        self._looked = float("-inf")
        self._configured = {model.name: self._entry(model) for model in config.models}

    def entries(self) -> tuple[ModelEntry, ...]:
        """All models that can be asked for, the configured ones first."""
        known = {**self._configured, **self._found, **self._configured}
        return tuple(one for one in known.values() if isinstance(one, ModelEntry))

    def unusable(self) -> tuple[Unusable, ...]:
        """Configured models that can't be asked for, and why."""
        return tuple(one for one in self._configured.values() if isinstance(one, Unusable))

    def resolve(self, name: str) -> ModelEntry:
        """The model called `name` (id or alias, by its exact letters).

        Raises ModelNotFound with the nearest names, ModelUnavailable for a configured model without usable files.
        """
        known = self._all()
        wanted = self._default(known) if name in DEFAULT_NAMES and name not in known else name
        names = {alias: key for key, one in known.items() for alias in one.aliases} | {
            key: key for key in known
        }
        if wanted not in names:
            raise ModelNotFound(_not_found(wanted, tuple(names)), param="model")
        found = known[names[wanted]]
        if isinstance(found, Unusable):
            raise ModelUnavailable(f"{found.name} can't be used: {found.reason}", param="model")
        return found

    def is_stale(self) -> bool:
        """Whether it is time to look at the folders again."""
        return bool(self._folders) and time.monotonic() - self._looked >= LOOK_EVERY

    def refresh(self) -> None:
        """Look at the folders again. Blocks for as long as new files take to recognise; may run in a thread."""
        self._looked = time.monotonic()
        found: dict[str, ModelEntry] = {}
        for folder in self._folders:
            for name, files in folder.models().items():
                old = self._found.get(name)
                found[name] = old if old and old.files is files else self._plain(name, files)
        self._found = found

    def _all(self) -> dict[str, ModelEntry | Unusable]:
        return {**self._found, **self._configured}

    def _default(self, known: Mapping[str, ModelEntry | Unusable]) -> str:
        if self._config.default_model is not None:
            return self._config.default_model
        if not known:
            raise ModelNotFound("there is no model here yet", param="model")
        return next(iter(self._configured or sorted(known)))

    def _plain(self, name: str, files: ModelFiles) -> ModelEntry:
        model = ModelConfig(name=name, path=str(files.path))
        return self._made(model, files)

    def _entry(self, model: ModelConfig) -> ModelEntry | Unusable:
        try:
            files = self._recognise(Path(model.path).expanduser(), model.backend)
        except (BackendError, OSError, msgspec.MsgspecError) as error:
            return Unusable(name=model.name, aliases=model.aliases, reason=str(error))
        return self._made(model, files)

    def _made(self, model: ModelConfig, files: ModelFiles) -> ModelEntry:
        return ModelEntry(
            name=model.name,
            files=files,
            options=options_for(self._config, model, files.backend),
            aliases=model.aliases,
            pinned=model.pinned,
            preload=model.preload,
            ttl=self._config.swap.ttl if model.ttl is None else model.ttl,
            sampling=SamplingWishes(sampling_for(model, Sampling), frozenset(model.sampling)),
            format=model.format,
            template=None if model.template is None else Path(model.template).read_text("utf-8"),
            created=int(files.path.stat().st_mtime) if files.path.exists() else 0,
        )


def _not_found(name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    return f"There is no model {name!r}." + (f" Nearest: {', '.join(near)}." if near else "")
