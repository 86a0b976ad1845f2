"""Loads a folder with exllamav3: see `backends.contract.catalog.ContainerModule`.

The parts of exllamav3 that are used are one value, `ExLlamaV3Library`, which is passed to
everything else here; tests pass a stand-in.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from backends.contract.catalog import ModelFiles
from backends.contract.protocol import ModelContainer, Report
from backends.engines.exllama.adapters import tell_apart
from backends.engines.exllama.container import ExLlamaLibrary, driven, imported
from backends.engines.vocabulary import tokenizer_of
from config.engines import ExLlamaV3Options

LOADING = "backends.engines.exllamav3.loading"  # imported late, as it imports torch


class ExLlamaV3Library(ExLlamaLibrary, frozen=True):
    """What is used of exllamav3 1.6.5."""

    cache: Any  # Cache
    quantized: Any  # CacheLayer_quant
    steps: Any  # the module exllamav3.generator.sampler, which holds CustomSampler and SS_…
    unset_memory_fraction: Callable[[list[int]], None]


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


async def load(files: ModelFiles, options: ExLlamaV3Options, report: Report) -> ModelContainer:
    """Loads on a thread of its own. When cancelled, exllamav3 stops at its next module."""
    return await driven(LOADING, installed, files, options, report)


def preload() -> None:
    """See `ContainerModule.preload`: the library opens the cards when it is imported."""


tokenizer = tokenizer_of
