"""Loads a folder with exllamav3: see `backends.catalog.ContainerModule`."""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from backends.catalog import ModelFiles
from backends.exllama.container import Tell, driven
from backends.exllamav3.library import Library, installed
from backends.protocol import ModelContainer, Report
from config.engines import EngineOptions, ExLlamaV3Options

if TYPE_CHECKING:
    from backends.exllama.loading import Loaded


async def load(files: ModelFiles, options: EngineOptions, report: Report) -> ModelContainer:
    """Loads on a thread of its own. When cancelled, exllamav3 stops at its next module."""
    return await load_with(installed, files, options, report)


async def load_with(
    library: Callable[[], Library], files: ModelFiles, options: EngineOptions, report: Report
) -> ModelContainer:
    """As `load`, with the library that `library` gives on the loading thread."""
    assert isinstance(options, ExLlamaV3Options)

    def work(tell: Tell) -> "Loaded":
        found = library()  # before anything that imports torch
        loaded: Loaded = import_module("backends.exllamav3.loading").load(
            files, options, found, tell
        )
        return loaded

    return await driven(work, report)
