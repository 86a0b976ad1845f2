"""Which backends there are, and how a model's files find theirs. A new backend is a folder and one
line here.

A backend folder holds two modules. `files` is cheap and imports no engine: it recognises a model on
disk and estimates its memory. `container` is imported only when a model is loaded, because it
imports the engine.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

import msgspec

from backends.errors import UnsupportedModel
from backends.protocol import MemoryNeed, Modality, ModelContainer, Report, Sampling
from config.engines import (
    EngineOptions,
    ExLlamaV2Options,
    ExLlamaV3Options,
    LlamaCppOptions,
    ScriptedOptions,
    TransformersOptions,
)

CPU = "cpu"  # the device that main memory is


class ModelFiles(msgspec.Struct, frozen=True, kw_only=True):
    """A model on disk, as far as its headers tell. `path` is the file or folder to load."""

    path: Path
    backend: str
    format: str  # "gguf", "safetensors", "exl2", "exl3", "script"
    architecture: str
    size_bytes: int  # weights on disk
    added_bytes: int = 0  # that weights take in memory beyond those
    context_length: int  # tokens the model was trained for
    cache_bytes_per_token: int  # KV cache for one token at 16 bits
    modalities: tuple[Modality, ...] = ("text",)
    chat_template: str | None = None
    parts: tuple[Path, ...] = ()  # every file that belongs to it
    projector: Path | None = None  # a file of its own that makes it see
    generation_defaults: Sampling | None = None  # what a header says of sampling
    vocab_size: int = 0  # 0: unknown
    heads: int = 0  # of attention, for queries; 0: unknown
    activation_bytes: int = 0  # of one token in a forward pass, at 32 bits; 0: unknown
    windowed: bool = False  # some layers attend to a sliding window


class FilesModule(Protocol):
    """What `backends/<name>/files.py` offers."""

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

    def estimate(self, files: ModelFiles, options: EngineOptions) -> MemoryNeed: ...

    def placement(self, options: EngineOptions, cards: Mapping[str, int]) -> Mapping[str, float]:
        """Which part of a model with these options each device will hold; they add up to 1.

        `cards`: this machine's, by name ("cuda:0"), with their bytes, in CUDA's order. What isn't
        on a card is on `CPU`.
        """
        ...


class ContainerModule(Protocol):
    """What `backends/<name>/container.py` offers."""

    async def load(
        self, files: ModelFiles, options: EngineOptions, report: Report
    ) -> ModelContainer:
        """Load off the event loop. Cancellable. Raises LoadFailed and leaves nothing behind."""
        ...


class Backend(msgspec.Struct, frozen=True):
    """One line of the table."""

    name: str
    options: type[EngineOptions]

    @property
    def files(self) -> FilesModule:
        return cast(FilesModule, import_module(f"backends.{self.name}.files"))

    @property
    def container(self) -> ContainerModule:
        return cast(ContainerModule, import_module(f"backends.{self.name}.container"))


def divided(parts: Sequence[float], cards: Iterable[str]) -> Mapping[str, float]:
    """Numbers for the first cards, as parts of the whole; one of them at least isn't 0."""
    numbers = dict(zip(cards, parts, strict=False))
    whole = sum(numbers.values())
    return {card: number / whole for card, number in numbers.items()}


# The order is the order of recognition: the first that reads a model gets it, unless another one
# is named. exllamav2 and exllamav3 read plain safetensors too, so they come after transformers,
# which leaves them EXL2 and EXL3.
BACKENDS: Mapping[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend("scripted", ScriptedOptions),
        Backend("llamacpp", LlamaCppOptions),
        Backend("transformers", TransformersOptions),
        Backend("exllamav2", ExLlamaV2Options),
        Backend("exllamav3", ExLlamaV3Options),
    )
}


def recognise(path: Path, backend: str | None = None) -> ModelFiles:
    """The model at `path`, by the first backend that knows it, or by `backend` alone.

    Raises UnsupportedModel, which says what was looked at.
    """
    candidates = [BACKENDS[backend]] if backend else list(BACKENDS.values())
    for candidate in candidates:
        if (files := candidate.files.recognise(path)) is not None:
            return files
    names = ", ".join(candidate.name for candidate in candidates)
    raise UnsupportedModel(f"{path} is not a model that {names} can read")
