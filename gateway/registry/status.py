"""The registry's answers: leases, states, reports and events."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Self, TypeAlias, cast

import msgspec

from backends.contract.catalog import ModelFiles
from backends.contract.encoder import EncoderContainer
from backends.contract.protocol import (
    MemoryNeed,
    Modality,
    ModelContainer,
    ModelInfo,
    Progress,
    Slots,
    Task,
)
from backends.places.upstream.upstream import Container, UpstreamModel
from config.engines import EngineOptions
from gateway.registry.entry import ModelEntry
from gateway.registry.protocol import Bytes, WhyUnload
from gateway.terms.errors import InvalidRequest
from gateway.terms.tasks import Signal

# Names of models whose state may have changed, for watchers that read when they can.


class Changes:
    """Names, not states: however slow its reader is, it holds each model once at most."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._ended = False
        self._news = Signal()

    def note(self, name: str) -> None:
        """The state of a model may have changed, or the model come or gone."""
        self._names.add(name)
        self._news.give()

    def end(self) -> None:
        """There will be no more; what was noted is still read."""
        self._ended = True
        self._news.give()

    async def read(self) -> frozenset[str]:
        """The names noted since the last call; waits until there is one. Empty: the end."""
        while not (self._names or self._ended):
            await self._news.wait()
        names, self._names = frozenset(self._names), set()
        return names


class Watchers:
    """All watchers of the models' states."""

    def __init__(self) -> None:
        self._all: set[Changes] = set()
        self._told: list[Callable[[], None]] = []
        self._ended = False

    def __len__(self) -> int:
        return len(self._all)

    @contextmanager
    def watching(self) -> Iterator[Changes]:
        """For as long as the context lasts, whose state changes, until the server stops."""
        changes = Changes()
        if self._ended:
            changes.end()
        self._all.add(changes)
        try:
            yield changes
        finally:
            self._all.discard(changes)

    def note(self, name: str) -> None:
        """See `Changes.note`."""
        for changes in self._all:
            changes.note(name)

    def tell_end(self, call: Callable[[], None]) -> None:
        """`call` is called at each `end`."""
        self._told.append(call)

    def end(self) -> None:
        """The server stops: streams without an end of their own must end."""
        self._ended = True
        for call in self._told:
            call()
        for changes in self._all:
            changes.end()


State: TypeAlias = Literal["unloaded", "loading", "loaded", "draining", "failed"]


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """The right to use a loaded model until the context it came from ends."""

    name: str
    container: Container
    entry: ModelEntry
    queued_seconds: float  # waited for a turn
    load_seconds: float  # waited for the load

    def called(self, preset: ModelEntry) -> Self:
        """The same lease, as that of a preset of its model."""
        return msgspec.structs.replace(self, name=preset.name, entry=preset.over(self.entry))

    @property
    def local(self) -> ModelContainer:
        """The container of a model that writes, and runs here. Raises InvalidRequest for any
        other.
        """
        container = self.tokenizer
        require_task(self.entry, "generate")
        return cast(ModelContainer, container)

    @property
    def encoder(self) -> EncoderContainer:
        """The container of a model that makes vectors or ranks, and runs here. Raises
        InvalidRequest for any other.
        """
        container = self.tokenizer
        if self.entry.files.task == "generate":
            raise InvalidRequest.at("model", f"{self.name} writes texts.")
        return cast(EncoderContainer, container)

    @property
    def tokenizer(self) -> ModelContainer | EncoderContainer:
        """The container of any model that runs here. Raises InvalidRequest for any other."""
        if isinstance(self.container, UpstreamModel):
            text = f"{self.name} runs on another server, and its tokens are known there alone."
            raise InvalidRequest(text, param="model")
        return self.container


def slots_of(container: Container, entry: ModelEntry) -> Slots | None:
    """The slots of a model that writes, and runs here."""
    if isinstance(container, UpstreamModel) or entry.files.task != "generate":
        return None
    return cast(ModelContainer, container).slots


class ModelStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A model at this moment."""

    id: str
    state: State
    aliases: tuple[str, ...] = ()
    progress: Progress | None = None  # while it loads
    why_failed: str | None = None
    files: ModelFiles | None = None  # None: they can't be used
    unusable: Path | None = None  # where those lie
    entry: ModelEntry | None = None  # None, as `files`
    in_use: int = 0  # leases
    waiting: int = 0  # callers in its line
    idle_seconds: float | None = None  # since its last lease ended; None unless loaded and unused
    remaining_seconds: float | None = (
        None  # until it is unloaded for idleness; None: never, or not idle
    )
    need: MemoryNeed | None = None
    devices: Bytes = {}  # what it takes of each, or would as it is planned now
    arithmetic: str = ""
    missing: int | None = None  # bytes that its load would have to take from other models
    info: ModelInfo | None = None  # while it is loaded
    slots: Slots | None = None  # while it is loaded here, and writes
    options: EngineOptions | None = None  # it is loaded with, or would be

    @property
    def is_replica(self) -> bool:
        """It is one of several that a model is loaded as, and named by administrators alone."""
        return self.entry is not None and bool(self.entry.replica_of)

    @property
    def task(self) -> Task:
        """What it is for, as far as is known here."""
        return self.files.task if self.files is not None else "generate"

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """What it takes as it is loaded, or would be as the config has it."""
        if self.info is not None:
            return self.info.modalities
        return self.files.modalities if self.files is not None else ("text",)


class UnloadReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an unload did. `was_loaded` is false where there was nothing to do."""

    name: str
    was_loaded: bool
    aborted: int  # answers that were cut off
    seconds: float
    promised: Bytes  # bytes for the remaining models, per device
    held: Bytes  # bytes this process really has now, per device: CUDA's context stays


TASKS: Mapping[Task, str] = {
    "generate": "it can't chat or complete texts",
    "embed": "it can't make embeddings (a GGUF file can in an entry of its own, with `pooling`)",
    "rank": "it can't rank documents",
}
KINDS: Mapping[Task, str] = {
    "generate": "writes texts",
    "embed": "is an embedding model",
    "rank": "is a reranker",
}


def require_task(entry: ModelEntry, task: Task) -> None:
    """Raises InvalidRequest for a model that is for something else. Of another server's model the
    task is unknown.
    """
    files = entry.files
    if files.remote is None and files.task != task:
        text = f"{entry.name} {KINDS[files.task]} ({files.backend}): {TASKS[task]}."
        raise InvalidRequest.at("model", text)


class ModelLoaded(msgspec.Struct, frozen=True):
    """A load ended well."""

    model: str
    seconds: float


class ModelLoadFailed(msgspec.Struct, frozen=True):
    """A load failed, or was cancelled (`reason` None), and its memory is free. `free`: of each
    device, where memory ran out; `moved`: the node that it was to lie on is gone.
    """

    model: str
    seconds: float
    reason: str | None
    free: Bytes | None = None
    moved: bool = False


class ModelUnloaded(msgspec.Struct, frozen=True):
    """A model is gone, and why it had to go. `parked`: what it holds all the same, since its
    process or its files stay in memory.
    """

    model: str
    seconds: float
    why: WhyUnload
    parked: Bytes | None = None


class ModelProgressed(msgspec.Struct, frozen=True):
    """A load goes on."""

    model: str
    progress: Progress


ModelEvent: TypeAlias = ModelLoaded | ModelLoadFailed | ModelUnloaded | ModelProgressed
