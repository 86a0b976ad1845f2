"""Loads a folder with exllamav2: see `backends.catalog.ContainerModule`.

torch takes seconds to import and exllamav2, the first time, minutes to compile, so both are
imported on the loading thread, not on the event loop's.
"""

import asyncio
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from backends.catalog import ModelFiles
from backends.driver import DrivenContainer
from backends.exllamav2.library import Library, installed
from backends.offloop import run_abandonable
from backends.protocol import ModelContainer, Progress, Report
from config.engines import EngineOptions, ExLlamaV2Options

if TYPE_CHECKING:
    from backends.exllamav2.engine import ExLlamaV2Engine


async def load(files: ModelFiles, options: EngineOptions, report: Report) -> ModelContainer:
    """Loads on a thread of its own. When cancelled, exllamav2 stops at its next module."""
    return await load_with(installed, files, options, report)


async def load_with(
    library: Callable[[], Library], files: ModelFiles, options: EngineOptions, report: Report
) -> ModelContainer:
    """As `load`, with the library that `library` gives on the loading thread."""
    assert isinstance(options, ExLlamaV2Options)
    loop = asyncio.get_running_loop()

    def work(wanted: Callable[[], bool]) -> "ExLlamaV2Engine":
        def tell(progress: Progress) -> bool:
            loop.call_soon_threadsafe(report, progress)
            return wanted()

        found = library()  # before anything that imports torch
        loading = import_module("backends.exllamav2.loading")
        engine = import_module("backends.exllamav2.engine")
        made: ExLlamaV2Engine = engine.ExLlamaV2Engine(loading.load(files, options, found, tell))
        return made

    return DrivenContainer(await run_abandonable(work, lambda engine: engine.close()))
