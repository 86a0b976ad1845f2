"""How a model gets into memory: its backend's container module, imported off the event loop. Schedules nothing."""

from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import TypeAlias

from anyio import to_thread

from backends.catalog import BACKENDS, MemoryNeed, ModelFiles
from backends.errors import BackendMissing
from backends.protocol import ModelContainer, Report
from config.engines import EngineOptions

Loader: TypeAlias = Callable[[ModelFiles, EngineOptions, Report], Awaitable[ModelContainer]]
Estimate: TypeAlias = Callable[[ModelFiles, EngineOptions], MemoryNeed]


async def load(files: ModelFiles, options: EngineOptions, report: Report) -> ModelContainer:
    """Load with the model's own backend. Raises LoadFailed.

    The first import of an engine takes seconds, so it happens in a worker thread.
    """
    backend = BACKENDS[files.backend]
    try:
        await to_thread.run_sync(import_module, f"backends.{backend.name}.container")
    except ImportError as error:
        raise BackendMissing(f"{files.backend} can't be used here: {error}") from error
    return await backend.container.load(files, options, report)


def estimate(files: ModelFiles, options: EngineOptions) -> MemoryNeed:
    """What the model's own backend thinks it takes."""
    return BACKENDS[files.backend].files.estimate(files, options)
