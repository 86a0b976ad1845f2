"""The loader, which brings models into memory through their backends' modules, imported late.

It chooses no model and no moment.
"""

from collections.abc import Sequence

from anyio import to_thread

from backends.contract.catalog import (
    BACKENDS,
    Cards,
    Catalog,
    Layout,
    ModelFiles,
    Placement,
    as_it_is,
)
from backends.contract.errors import BackendMissing, LoadFailed
from backends.contract.protocol import MemoryNeed, Report
from backends.places.nodes import node
from backends.places.upstream.upstream import Container
from backends.places.worker import Workers
from config.engines import EngineOptions
from config.nodes import HERE

NOTHING = MemoryNeed(weights=0, cache=0, engine=0)  # of this machine's


class Elsewhere:
    """The `Layout` of models that lie on other machines."""

    def estimate(self, files: ModelFiles, options: EngineOptions) -> MemoryNeed:
        return NOTHING

    def placements(
        self, files: ModelFiles | None, options: EngineOptions, cards: Cards
    ) -> Sequence[Placement]:
        return ({},)

    def placed(self, options: EngineOptions, placement: Placement, cards: Cards) -> EngineOptions:
        return options

    fit = staticmethod(as_it_is)


class Loader:
    """Loads each model with its own backend, as the catalog has them."""

    def __init__(self, catalog: Catalog = BACKENDS) -> None:
        self._catalog = catalog
        self._workers = Workers()

    def layout(self, files: ModelFiles) -> Layout:
        """How such a model lies in this machine's memory."""
        is_here = files.node is None and files.elsewhere is None
        return self._catalog[files.backend].files if is_here else Elsewhere()

    def is_experimental(self, files: ModelFiles) -> bool:
        """Whether it runs on an engine that no test of this project ran anywhere."""
        if files.elsewhere is not None:
            return False
        installation = self._catalog[files.backend].files.INSTALLATION
        return installation is not None and not any(way.tried for way in installation.ways.values())

    def may_end(self, files: ModelFiles, options: EngineOptions) -> bool:
        """See `backends.contract.catalog.Library.may_end`."""
        if files.elsewhere is not None:
            return False
        library = self._catalog[files.backend].library(files, options)
        return library is not None and library.may_end

    def end(self) -> None:
        """No more is loaded, and nothing is in memory."""
        self._workers.close()

    async def load(self, files: ModelFiles, options: EngineOptions, report: Report) -> Container:
        """Load off the event loop. Raises LoadFailed; leaves nothing behind then, or cancelled."""
        backend = self._catalog[files.backend]
        if files.node is not None:
            return await node.load(backend, files, options, report)
        if options.host not in (None, *HERE):  # of an administrator's load
            raise LoadFailed(f"host: {options.host}: only the configuration can name a node")
        is_command = files.remote is not None  # a process of its own
        if options.host == "worker" and not is_command:
            return await self._workers.load(backend, files, options, report)
        try:  # the first import of an engine takes seconds
            container = await to_thread.run_sync(lambda: backend.container)
        except ImportError as error:
            raise BackendMissing(f"{backend.name} can't be used here: {error}") from error
        load = container.load if files.task == "generate" else container.load_encoder
        return await load(files, options, report)
