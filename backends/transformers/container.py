"""Loads a Hugging Face folder: see `backends.catalog.ContainerModule`.

torch and transformers take seconds to import, so they are imported on the loading thread, not on
the event loop's.
"""

import asyncio
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from backends.catalog import ModelFiles
from backends.driver import DrivenContainer
from backends.errors import BackendMissing
from backends.installing import command
from backends.offloop import run_abandonable
from backends.protocol import ModelContainer, Progress, Report
from config.engines import EngineOptions, TransformersOptions

if TYPE_CHECKING:
    from backends.transformers.engine import TransformersEngine


async def load(files: ModelFiles, options: EngineOptions, report: Report) -> ModelContainer:
    """Loads on a thread of its own. When cancelled, transformers stops at its next tensor."""
    assert isinstance(options, TransformersOptions)
    loop = asyncio.get_running_loop()

    def work(wanted: Callable[[], bool]) -> "TransformersEngine":
        def progress(done: float) -> bool:
            step = Progress("weights", int(files.size_bytes * done), files.size_bytes)
            loop.call_soon_threadsafe(report, step)
            return wanted()

        return _engine(files, options, progress)

    return DrivenContainer(await run_abandonable(work, lambda engine: engine.close()))


def _engine(
    files: ModelFiles, options: TransformersOptions, progress: Callable[[float], bool]
) -> "TransformersEngine":
    try:
        loading = import_module("backends.transformers.loading")
        engine = import_module("backends.transformers.engine")
    except (ImportError, OSError) as error:  # not installed, or built for another machine
        raise BackendMissing(
            f"transformers can't be used here ({error}). Install it: {command('transformers')}"
        ) from error
    made: TransformersEngine = engine.TransformersEngine(loading.load(files, options, progress))
    return made
