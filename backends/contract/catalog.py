"""The catalog of backends: which one loads a model's files, and what installs its engine where this
code runs. A new backend is a folder and one line in `config.settings.EnginesConfig`.

A backend folder holds two modules. `files` is cheap and imports no engine: it recognises a model on
disk, estimates its memory, and says what the engine's options are called elsewhere. `container`
imports the engine, so it is imported only when a model is loaded.
"""

import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import combinations, islice
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol, TypeAlias, cast, get_args

import msgspec

from backends.contract.encoder import EncoderContainer
from backends.contract.errors import BackendError, LoadFailed, UnsupportedModel
from backends.contract.placement import ModelWeights
from backends.contract.protocol import (
    Adapter,
    MemoryNeed,
    ModelContainer,
    ModelFacts,
    ModelInfo,
    Report,
    Tokenizer,
)
from backends.contract.remote import RemoteTarget
from backends.contract.samplers import DEFAULTS, Sampling
from config.commands import COMMAND
from config.engines import EngineOptions
from config.models import ENGINES, configured_only
from config.nodes import NodeConfig
from config.product import DISTRIBUTION

Platform: TypeAlias = Literal[
    "Linux, CPUs", "Linux, CUDA", "Linux, ROCm", "Linux, Vulkan", "macOS (Metal)", "Windows"
]
PLATFORMS: tuple[Platform, ...] = get_args(Platform)


class Way(msgspec.Struct, frozen=True):
    """`command`: what installs an engine. `tried`: what the tests of this project ran there; ""
    nothing. `note`: what else it needs, or why it isn't possible where `command` is "".
    """

    command: str
    tried: str = ""
    note: str = ""


IN_WSL = Way("as Linux, in WSL2")
SUITE = "the whole suite"

SCRIPT = Path(__file__).parents[2] / "scripts" / "install"
RECEIPT = Path(sys.prefix) / "uv-receipt.toml"  # which uv leaves in a tool's environment


def command(extra: str, *, script: Path = SCRIPT, receipt: Path = RECEIPT) -> str:
    """What installs an extra of this project. A checkout's script applies its constraints.

    uv makes a tool's environment anew, so the extras that it has are in its command, and the place
    that the tool came from. pip finds it installed.
    """
    if script.is_file():
        return f"scripts/install {extra}"
    extras, origin = _installed_by_uv(receipt) if receipt.is_file() else ([], "")
    extras = list(dict.fromkeys([*extras, extra]))
    tool = "uv tool install --force" if receipt.is_file() else "pip install"
    return f"{tool} '{DISTRIBUTION}[{','.join(extras)}]{origin}'"


def _installed_by_uv(receipt: Path) -> tuple[list[str], str]:
    """The extras of the tool, and ` @ ` with its path or URL."""
    written = tomllib.loads(receipt.read_text("utf-8")).get("tool", {}).get("requirements", [])
    ours: Mapping[str, Any] = next((one for one in written if one.get("name") == DISTRIBUTION), {})
    origin = ours.get("path") or ours.get("url") or (f"git+{ours['git']}" if "git" in ours else "")
    return ours.get("extras", []), f" @ {origin}" if origin else ""


def absent(packages: tuple[str, ...]) -> Iterator[str]:
    """Those that are not installed. Imports none."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - for a start alone

    for package in packages:
        try:
            version(package)
        except PackageNotFoundError:
            yield package


LONGEST_REASON = 200  # characters
CPU = "cpu"  # the device that main memory is
MOST_SETS = 100  # of as many cards each, that are compared


class NodeShare(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model lies that another machine's worker loads, and what that machine says of it: the
    memory it takes there. Nothing that changes from moment to moment: a model of other files is
    loaded anew.
    """

    node: NodeConfig
    need: MemoryNeed
    total: dict[str, int] = {}  # bytes of its devices, by the names that they have there


class ModelFiles(ModelFacts, frozen=True, kw_only=True):
    """A model on disk, as described by its headers. `path` is the file or folder to load; of a
    model that another server has, a name for it that is no path.
    """

    path: Path
    added_bytes: int = 0  # that weights take in memory beyond those
    layers: int = 0  # that can lie on devices of their own; 0: unknown
    weights: ModelWeights | None = None  # by layer; None: unknown, or they can't be divided
    types: tuple[int, ...] = ()  # of its tensors, as ggml counts them
    repacked: bool = True  # its weights may be copied into layouts that suit the CPU
    cache_bytes_per_token: int  # KV cache for one token at 16 bits
    parts: tuple[Path, ...] = ()  # every file that belongs to it
    beside: tuple[Path, ...] = ()  # files that need not be there, and say how it is used
    projector: Path | None = None  # the file of its image encoder
    generation_defaults: Sampling = DEFAULTS  # what its makers recommend
    vocab_size: int = 0  # 0: unknown
    heads: int = 0  # of attention, for queries; 0: unknown
    activation_bytes: int = 0  # of one token in a forward pass, at 32 bits; 0: unknown
    attention_bytes: int = 0  # of them, what is there while attention computes its scores
    state_bytes: int = 0  # of one sequence in one recurrent layer
    recurrent_layers: int = 0
    scan_bytes: int = 0  # of one token, while a state space is scanned; 0: it isn't
    window: int = 0  # tokens that layers with a sliding window see
    latent: bool = False  # a token's keys and values are kept as one (MLA)
    sliding_bytes_per_token: int = 0  # of `cache_bytes_per_token`, what those layers have
    positions: int = 0  # rows of its table of positions, beyond which it can't read; 0: it has none
    # bytes of main memory that its process holds while it is parked; 0: unknown; None: it can't be
    parked_bytes: int | None = None
    remote: RemoteTarget | None = None  # a server answers for it: another one, or one started here
    node: NodeShare | None = None  # all paths are of this machine; None: of this one
    described: Mapping[str, str] = {}  # what its makers wrote of it: name, license, author, …

    @property
    def elsewhere(self) -> RemoteTarget | None:
        """Where another server has it; it takes no memory here then, and is loaded and configured
        there. None: it runs on this machine, in this process or one that it started.
        """
        return None if self.remote is None or self.remote.runs_here else self.remote


class LoadFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is loaded with, as lists of models show it. None: the engine has no such option,
    or finds the value itself.
    """

    cache_tokens: int | None = None  # KV cells for all requests
    cache_mode: str | None = None  # as TabbyAPI writes it: FP16, Q8; keys and values apart: Q8,Q4
    rope_scale: float | None = None  # of positions
    rope_alpha: float | None = None
    chunk_size: int | None = None  # prompt tokens in one pass
    draft_model: str | None = None  # its path
    adapters: tuple[Adapter, ...] = ()
    library: str | None = None  # what computes it, and why, where its engine has several
    # Bytes that the engine itself may keep conversations in: of main memory, of it for the states
    # of recurrent layers, where there are any, and of a disk.
    kept_memory: int = 0
    kept_states: int = 0
    kept_disk: int = 0


class Library(msgspec.Struct, frozen=True):
    """What computes a model, and why it does. `may_end`: a failed assertion of it ends the process,
    so it has one of its own if nothing else is said.
    """

    name: str
    reason: str
    may_end: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


class Installation(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine needs of a machine besides Roundhouse."""

    package: str  # the distribution whose version is the engine's
    others: tuple[str, ...] = ()  # distributions that it doesn't bring along
    needs_card: bool = False  # it does not run on CPUs
    for_cards: str | None = None  # the command that installs it for cards
    uses_shared: bool = False  # it computes on devices that share main memory, too
    ways: Mapping[Platform, Way]  # how it is installed on each platform, and what was tried there
    # Of several libraries that the engine has, that of a model with these options. None: there is
    # no choice.
    library: Callable[[ModelFiles, Any], Library | None] = lambda _files, _options: None
    described: Callable[[], str] = str  # more of what is installed, for people


# Bytes of this machine's cards, by name ("cuda:0", "vulkan:1"), in the order of their library.
Cards: TypeAlias = Mapping[str, int]
# Which part of a model each device holds; they add up to 1. What isn't on a card is on `CPU`.
Placement: TypeAlias = Mapping[str, float]


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """What models may have of this machine's devices: bytes, and the bytes a second that are read
    there. Main memory is `CPU`.
    """

    free: Mapping[str, int]
    bandwidths: Mapping[str, float] = {}


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """A model that gave way to fit into some room: `options` that say how it is loaded then, what
    it takes and where; `speed`: an estimate, as a part of what it has where nothing gives way;
    `note`: what gave way, as a sentence; `reasons`: why. `reads`: bytes of each device that a token
    is computed with.
    """

    options: EngineOptions
    need: MemoryNeed
    placement: Placement
    speed: float
    note: str
    reasons: tuple[str, ...] = ()
    reads: Mapping[str, float] = {}


# The value of an option by another name, as options of the engine. Raises ValueError, which says
# what the engine has instead.
Translation: TypeAlias = Callable[[Any], Mapping[str, Any]]


class Layout(Protocol):
    """How models of one kind lie in memory."""

    def estimate(self, files: ModelFiles, options: EngineOptions) -> MemoryNeed:
        """What the model will take, by its headers. Raises BackendError."""
        ...

    def placements(
        self, files: ModelFiles | None, options: EngineOptions, cards: Cards
    ) -> Sequence[Placement]:
        """The ways in which a model with these options can lie on this machine's cards, the one
        wanted most first; one alone, where the options say it. `files`: None: nothing is known of
        it but its size.
        """
        ...

    def placed(self, options: EngineOptions, placement: Placement, cards: Cards) -> EngineOptions:
        """`options`, which say now that the model is to lie so; see `placements`."""
        ...

    def fit(
        self, files: ModelFiles, options: EngineOptions, cards: Cards, room: Room
    ) -> Fitted | None:
        """The model as it fits into `room`. None: nothing has to give way for it, the options leave
        no choice, or there is no way in which it fits.
        """
        ...


class FilesModule(Layout, Protocol):
    """What `backends/<name>/files.py` offers."""

    SUFFIX: re.Pattern[str] | None
    """What the names of its model files end in besides the model's own name. None: models are
    folders.
    """

    COMPANIONS: tuple[str, ...]
    """Patterns of the files that every quantization in a repository needs besides its own."""

    LOAD_OPTIONS: Mapping[str, Translation]
    """TabbyAPI's load options that the engine has, with `vision` where it can do without and
    `draft_model` where it takes one.
    """

    INSTALLATION: Installation | None
    """None: it comes with Roundhouse."""

    def recognise(self, path: Path) -> ModelFiles | None:
        """The model at `path` (a file or a folder), or None if it isn't one of ours. Reads headers
        only.
        """
        ...

    def fitted(self, files: ModelFiles, options: EngineOptions) -> ModelFiles:
        """The model as `options` make it: what it can do with them, and the files they name.

        Raises LoadFailed for files that can't be used.
        """
        ...

    def facts(self, options: EngineOptions) -> LoadFacts: ...

    def vocabulary(self, path: Path) -> Mapping[str, bytes]:
        """The files that `ContainerModule.tokenizer` needs, by their names and without weights, of
        the model whose `ModelInfo.tokenizer_path` this is: for a machine that doesn't have it.
        Raises LoadFailed.
        """
        ...


class CommandFilesModule(FilesModule, Protocol):
    """What the engine of models that are commands offers besides: they need no files."""

    def named(self, name: str, path: Path | None) -> ModelFiles:
        """See `Catalog.named`."""
        ...


class ContainerModule(Protocol):
    """What `backends/<name>/container.py` offers. That of commands loads an `UpstreamModel`, since
    a server answers for them (`ModelFiles.remote`).
    """

    async def load(
        self, files: ModelFiles, options: EngineOptions, report: Report
    ) -> ModelContainer:
        """Load off the event loop. Cancellable. Raises LoadFailed and leaves nothing behind."""
        ...

    async def load_encoder(
        self, files: ModelFiles, options: EngineOptions, report: Report
    ) -> EncoderContainer:
        """As `load`, what makes vectors or ranks. Only where `files` recognises such models."""
        ...

    def preload(self) -> None:
        """Import what `load` imports, in a process that is forked for each load from then on (see
        `backends.engines.worker`). Nothing where the import itself uses a device.
        """
        ...

    def tokenizer(self, info: ModelInfo) -> Tokenizer:
        """That of a model which is loaded elsewhere, by what its container says of it. Takes its
        time, and no device. Raises LoadFailed.
        """
        ...


class Backend(msgspec.Struct, frozen=True):
    """One engine's folder. `package`: None: the one of its name in `backends.engines`, of a command
    in `backends.places`.
    """

    name: str
    options: type[EngineOptions]
    package: str | None = None

    @property
    def folder(self) -> str:
        """Its package's name."""
        room = "places" if self.name == COMMAND else "engines"
        return self.package or f"backends.{room}.{self.name}"

    @property
    def files(self) -> FilesModule:
        return cast(FilesModule, self._module("files"))

    @property
    def container(self) -> ContainerModule:
        """Its import takes seconds. Raises ImportError where the engine is missing."""
        return cast(ContainerModule, self._module("container"))

    def library(self, files: ModelFiles, options: EngineOptions) -> Library | None:
        """See `Installation.library`; None for a model on another node, too."""
        if files.node is not None or (installation := self.files.INSTALLATION) is None:
            return None
        return installation.library(files, options)

    def _module(self, name: str) -> ModuleType:
        """In its folder; a backend without an engine to import is one module, which is both."""
        backend = import_module(self.folder)
        return (
            import_module(f"{backend.__name__}.{name}") if hasattr(backend, "__path__") else backend
        )


def renamed(option: str) -> Translation:
    """The same value as our `option`."""
    return lambda value: {option: value}


def alike(*options: str) -> Mapping[str, Translation]:
    """Those that are called the same here."""
    return {option: renamed(option) for option in options}


_MODES: Mapping[object, str] = {"disabled": "off", "ngram": "ngram", "model": "model"}


def _drafting_mode(mode: object) -> Mapping[str, Any]:
    if mode not in _MODES:
        raise ValueError(f"the modes are {', '.join(map(str, _MODES))}")
    return {"speculation": {"mode": _MODES[mode]}}


# TabbyAPI's options of drafts where they are drafted by `backends.engines.speculation`
DRAFT_LOAD_OPTIONS: Mapping[str, Translation] = {
    "draft_model": lambda model: {"draft": {"model": model}},
    "draft_num_tokens": lambda tokens: {"draft": {"tokens": tokens}},
    "draft_mode": _drafting_mode,
}


def adapters(
    paths: Mapping[str, str], scaling: Mapping[str, float] | None = None
) -> tuple[Adapter, ...]:
    """LoRA adapters by their options: where they lie, and their scales where these aren't 1."""
    return tuple(
        Adapter(name=name, scale=(scaling or {}).get(name, 1.0), file=Path(path).name)
        for name, path in paths.items()
    )


def loadable_adapters(
    paths: Mapping[str, str], scaling: Mapping[str, float]
) -> tuple[Adapter, ...]:
    """As `adapters`. Raises LoadFailed for a scale of one that isn't there."""
    if unknown := scaling.keys() - paths.keys():
        raise LoadFailed(f"adapter_scaling: unknown adapter {min(unknown)!r}")
    return adapters(paths, scaling)


def as_it_is(
    files: ModelFiles,  # noqa: ARG001 - all four are the protocol's
    options: EngineOptions,  # noqa: ARG001
    cards: Cards,  # noqa: ARG001
    room: Room,  # noqa: ARG001
) -> Fitted | None:
    """`FilesModule.fit` of an engine whose models give way to nothing."""
    return None


def divided(parts: Sequence[float], cards: Iterable[str]) -> Placement:
    """Numbers for the first cards, as parts of the whole; one of them at least isn't 0."""
    numbers = {card: part for card, part in zip(cards, parts, strict=False) if part}
    whole = sum(numbers.values())
    return {card: number / whole for card, number in numbers.items()}


def smallest_first(cards: Cards) -> Iterator[Placement]:
    """Every set of cards, each of which takes a part by its size: fewer cards before more; of as
    many, those with more memory, which mostly compute faster, too.
    """
    for count in range(1, len(cards) + 1):
        sets = list(islice(combinations(cards, count), MOST_SETS))
        for names in sorted(sets, key=lambda names: -sum(cards[name] for name in names)):
            yield divided([cards[name] for name in names], names)


class Catalog(dict[str, Backend]):
    """Backends by name, in the order of recognition."""

    def __init__(self, backends: Iterable[Backend]) -> None:
        super().__init__((backend.name, backend) for backend in backends)
        self.configured_only = configured_only({one.name: one.options for one in self.values()})

    @property
    def companions(self) -> tuple[str, ...]:
        """See `FilesModule.COMPANIONS`."""
        return tuple(pattern for one in self.values() for pattern in one.files.COMPANIONS)

    def bare_name(self, file: str) -> str:
        """What the model in `file` is called: without its engine's suffixes of file names."""
        for backend in self.values():
            if (suffix := backend.files.SUFFIX) is not None:
                file = suffix.sub("", file)
        return file

    def named(self, name: str, path: Path | None) -> ModelFiles:
        """The model called `name`, which a command serves. `path`: what it reads, if anything.
        Raises LoadFailed where that isn't there.
        """
        return cast(CommandFilesModule, self[COMMAND].files).named(name, path)

    def recognise(self, path: Path, backend: str | None = None) -> ModelFiles:
        """The model at `path`, by the first backend that knows it, or by `backend` alone.

        Raises UnsupportedModel, which says what was scanned, LoadFailed for a broken model.
        """
        if not path.exists():
            raise LoadFailed(f"file or folder not found: {path}")
        candidates = [self[backend]] if backend else list(self.values())
        for candidate in candidates:
            if (files := _recognised(candidate, path)) is not None:
                return files
        names = ", ".join(candidate.name for candidate in candidates)
        raise UnsupportedModel(f"{path} is not a model that {names} can read")


def _recognised(candidate: Backend, path: Path) -> ModelFiles | None:
    """Raises LoadFailed for whatever goes wrong with files of which nothing may be taken as given:
    text where a number belongs, lists in lists without end.
    """
    try:
        return candidate.files.recognise(path)
    except (BackendError, OSError):
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise LoadFailed(f"{path} can't be read as a model: {reason[:LONGEST_REASON]}") from error


BACKENDS = Catalog(Backend(name, options) for name, options in ENGINES.items())
recognise = BACKENDS.recognise
