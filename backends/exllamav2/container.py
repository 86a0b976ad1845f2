"""Loads a folder with exllamav2: see `backends.catalog.ContainerModule`."""

from collections.abc import Callable

from backends.catalog import ModelFiles
from backends.exllama.container import driven
from backends.exllamav2.library import ExLlamaV2Library, installed
from backends.huggingface.vocabulary import tokenizer_of
from backends.protocol import ModelContainer, ModelInfo, Report, Tokenizer
from config.engines import EngineOptions, ExLlamaV2Options


async def load(files: ModelFiles, options: EngineOptions, report: Report) -> ModelContainer:
    """Loads on a thread of its own. When cancelled, exllamav2 stops at its next module."""
    return await load_with(installed, files, options, report)


async def load_with(
    library: Callable[[], ExLlamaV2Library],
    files: ModelFiles,
    options: EngineOptions,
    report: Report,
) -> ModelContainer:
    """As `load`, with the library that `library` gives on the loading thread."""
    assert isinstance(options, ExLlamaV2Options)
    return await driven("backends.exllamav2.loading", library, files, options, report)


def tokenizer(info: ModelInfo) -> Tokenizer:
    """See `ContainerModule.tokenizer`."""
    return tokenizer_of(info)
