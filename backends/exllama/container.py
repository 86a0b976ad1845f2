"""A container over a model that one of the two libraries loads.

torch takes seconds to import and the libraries, the first time, minutes to compile, so all of them
are imported on the loading thread, not on the event loop's.
"""

import asyncio
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from backends.catalog import ModelFiles
from backends.driver import DrivenContainer, run_abandonable
from backends.protocol import ModelContainer, Progress, Report
from config.engines import EngineOptions

if TYPE_CHECKING:
    from backends.exllama.engine import ExLlamaEngine
    from backends.exllama.loading import ExLlamaModel


async def driven(
    loading: str,
    library: Callable[[], Any],
    files: ModelFiles,
    options: EngineOptions,
    report: Report,
) -> ModelContainer:
    """The module `loading` loads on a thread of its own, with what `library` gives there, and stops
    when the load is cancelled.
    """
    loop = asyncio.get_running_loop()

    def work(wanted: Callable[[], bool]) -> "ExLlamaEngine":
        def report_step(progress: Progress) -> bool:
            loop.call_soon_threadsafe(report, progress)
            return wanted()

        found = library()  # before anything that imports torch
        loaded: ExLlamaModel = import_module(loading).load(files, options, found, report_step)
        made: ExLlamaEngine = import_module("backends.exllama.engine").ExLlamaEngine(loaded)
        return made

    return DrivenContainer(await run_abandonable(work, lambda engine: engine.close()))
