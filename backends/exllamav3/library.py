"""The parts of exllamav3 that are used, as one value that is passed to everything else here; tests
pass a stand-in.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import msgspec

from backends.exllama.library import imported


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
