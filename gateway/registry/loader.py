"""How models get into memory: through their backends' modules, which are imported late.

It chooses no model and no moment.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Protocol

from anyio import to_thread

from backends.catalog import BACKENDS, ModelFiles
from backends.errors import BackendMissing
from backends.protocol import MemoryNeed, ModelContainer, Report
from config.engines import EngineOptions


class Loader(Protocol):
    """What the registry wants of the backends."""

    def estimate(self, files: ModelFiles, options: EngineOptions) -> MemoryNeed:
        """What the model will take, by its headers. Raises BackendError."""
        ...

    def placement(
        self, files: ModelFiles, options: EngineOptions, cards: Mapping[str, int]
    ) -> Mapping[str, float]:
        """See `backends.catalog.FilesModule.placement`."""
        ...

    async def load(
        self, files: ModelFiles, options: EngineOptions, report: Report
    ) -> ModelContainer:
        """Load off the event loop. Raises LoadFailed; leaves nothing behind then, or cancelled."""
        ...


class CatalogLoader:
    """Each model with its own backend, as the catalog has them."""

    def estimate(self, files: ModelFiles, options: EngineOptions) -> MemoryNeed:
        return BACKENDS[files.backend].files.estimate(files, options)

    def placement(
        self, files: ModelFiles, options: EngineOptions, cards: Mapping[str, int]
    ) -> Mapping[str, float]:
        return BACKENDS[files.backend].files.placement(options, cards)

    async def load(
        self, files: ModelFiles, options: EngineOptions, report: Report
    ) -> ModelContainer:
        backend = BACKENDS[files.backend]
        try:  # the first import of an engine takes seconds
            await to_thread.run_sync(import_module, f"backends.{backend.name}.container")
        except ImportError as error:
            raise BackendMissing(f"{backend.name} can't be used here: {error}") from error
        return await backend.container.load(files, options, report)
