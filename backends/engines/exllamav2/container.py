"""Loads a folder with exllamav2: see `backends.contract.catalog.ContainerModule`.

The parts of exllamav2 that are used are one value, `ExLlamaV2Library`, which is passed to
everything else here; tests pass a stand-in.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from backends.contract.catalog import ModelFiles
from backends.contract.protocol import ModelContainer, Report
from backends.engines.exllama.adapters import tell_apart
from backends.engines.exllama.container import ExLlamaLibrary, driven, imported
from backends.engines.vocabulary import tokenizer_of
from config.engines import ExLlamaV2Options

LOADING = "backends.engines.exllamav2.loading"  # imported late, as it imports torch


class ExLlamaV2Library(ExLlamaLibrary, frozen=True):
    """What is used of exllamav2 0.3.2."""

    caches: Mapping[str, Any]  # ExLlamaV2Cache…, by our name of the type
    vision: Any  # ExLlamaV2VisionTower
    settings: Any  # ExLlamaV2Sampler.Settings
    assert_paged: Callable[[], None]  # exllamav2.attn.assert_paged_attn


def installed() -> ExLlamaV2Library:
    """The real one. Raises BackendMissing."""
    return imported("exllamav2", _collected)


def _collected(devices: int) -> ExLlamaV2Library:
    package = import_module("exllamav2")
    tell_apart("_tensor_hash_checksum", import_module("exllamav2.generator.dynamic"))
    generator = import_module("exllamav2.generator")
    return ExLlamaV2Library(
        config=package.ExLlamaV2Config,
        model=package.ExLlamaV2,
        caches={
            "fp16": package.ExLlamaV2Cache,
            "q8": package.ExLlamaV2Cache_Q8,
            "q6": package.ExLlamaV2Cache_Q6,
            "q4": package.ExLlamaV2Cache_Q4,
        },
        tokenizer=package.ExLlamaV2Tokenizer,
        lora=package.ExLlamaV2Lora,
        vision=package.ExLlamaV2VisionTower,
        generator=guessing_later(generator.ExLlamaV2DynamicGenerator),
        job=generator.ExLlamaV2DynamicJob,
        settings=generator.ExLlamaV2Sampler.Settings,
        assert_paged=import_module("exllamav2.attn").assert_paged_attn,
        devices=devices,
    )


def guessing_later(generator: Any) -> Any:
    """The generator class, but with n-gram speculation only in steps where every sequence is long
    enough: 0.3.2's `iterate_ngram_gen` indexes past the end of one with fewer than
    `max_ngram - 1` tokens, and the IndexError would end all jobs of the step.
    """

    class Generator(generator):  # type: ignore[misc]
        def iterate_ngram_gen(self, results: list[Any]) -> Any:
            sequences = (job.sequences[0].sequence_ids for job in self.active_jobs)
            if any(len(sequence) < self.max_ngram - 1 for sequence in sequences):
                return None  # an ordinary step
            return super().iterate_ngram_gen(results)

    return Generator


async def load(files: ModelFiles, options: ExLlamaV2Options, report: Report) -> ModelContainer:
    """Loads on a thread of its own. When cancelled, exllamav2 stops at its next module."""
    return await driven(LOADING, installed, files, options, report)


def preload() -> None:
    """See `ContainerModule.preload`: the library opens the cards when it is imported."""


tokenizer = tokenizer_of
