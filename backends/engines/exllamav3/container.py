"""Loads a folder with exllamav3: see `backends.contract.catalog.ContainerModule`.

The parts of exllamav3 that are used are one value, `ExLlamaV3Library`, which is passed to
everything else here; tests pass a stand-in.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import msgspec

from backends.contract.catalog import ModelFiles
from backends.contract.protocol import ModelContainer, ModelInfo, Report, Tokenizer
from backends.engines.exllama.adapters import tell_apart
from backends.engines.exllama.container import driven, imported
from backends.engines.vocabulary import tokenizer_of
from config.engines import EngineOptions, ExLlamaV3Options


class ExLlamaV3Library(msgspec.Struct, frozen=True):
    """Classes of exllamav3 1.6.5, and the few facts about the machine that depend on it."""

    config: Any  # Config
    model: Any  # Model
    cache: Any  # Cache
    quantized: Any  # CacheLayer_quant
    tokenizer: Any  # Tokenizer
    lora: Any  # LoRA
    generator: Any  # Generator
    job: Any  # Job
    steps: Any  # the module exllamav3.generator.sampler, which holds CustomSampler and SS_…
    unset_memory_fraction: Callable[[list[int]], None]
    devices: int  # CUDA cards


def installed() -> ExLlamaV3Library:
    """The real one. Raises BackendMissing."""
    return imported("exllamav3", _collected)


def _collected(devices: int) -> ExLlamaV3Library:
    package = import_module("exllamav3")
    naming = ("exllamav3.generator.pagetable", "exllamav3.generator.job")
    tell_apart("tensor_hash_checksum", *map(import_module, naming))
    return ExLlamaV3Library(
        config=package.Config,
        model=package.Model,
        cache=package.Cache,
        quantized=package.CacheLayer_quant,
        tokenizer=package.Tokenizer,
        lora=import_module("exllamav3.model.lora").LoRA,
        generator=package.Generator,
        job=package.Job,
        steps=import_module("exllamav3.generator.sampler"),
        unset_memory_fraction=import_module("exllamav3.util.memory").unset_memory_fraction,
        devices=devices,
    )


async def load(files: ModelFiles, options: EngineOptions, report: Report) -> ModelContainer:
    """Loads on a thread of its own. When cancelled, exllamav3 stops at its next module."""
    return await load_with(installed, files, options, report)


async def load_with(
    library: Callable[[], ExLlamaV3Library],
    files: ModelFiles,
    options: EngineOptions,
    report: Report,
) -> ModelContainer:
    """As `load`, with the library that `library` gives on the loading thread."""
    assert isinstance(options, ExLlamaV3Options)
    return await driven("backends.engines.exllamav3.loading", library, files, options, report)


def preload() -> None:
    """See `ContainerModule.preload`: the library opens the cards when it is imported."""


def tokenizer(info: ModelInfo) -> Tokenizer:
    """See `ContainerModule.tokenizer`."""
    return tokenizer_of(info)
