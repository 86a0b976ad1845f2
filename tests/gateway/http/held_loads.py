"""Loads of scripted models that end when a test says so: whatever must happen meanwhile can't come
too late.
"""

from typing import cast

import anyio

from backends.contract.catalog import BACKENDS, Backend, Catalog, ContainerModule, ModelFiles
from backends.contract.protocol import ModelContainer, Progress, Report
from backends.engines.driver import DrivenContainer
from backends.engines.scripted import ScriptedEngine, read
from config.engines import EngineOptions, ScriptedOptions


class HeldLoads:
    """Each load reports half of its way, and ends once `go` is set. `begun`: how many there were.

    `catalog`: all backends, with this one for scripts.
    """

    def __init__(self) -> None:
        self.go = anyio.Event()
        self.begun = 0
        scripted = _HeldBackend(name="scripted", options=ScriptedOptions, held=self)
        self.catalog = Catalog((*BACKENDS.values(), scripted))

    async def load(
        self, files: ModelFiles, options: EngineOptions, report: Report
    ) -> ModelContainer:
        """See `ContainerModule.load`."""
        assert isinstance(options, ScriptedOptions)
        self.begun += 1
        report(Progress("weights", files.size_bytes // 2, files.size_bytes))
        await self.go.wait()
        return DrivenContainer(ScriptedEngine(files, read(files.path), options))


class _HeldBackend(Backend, frozen=True, kw_only=True):
    held: HeldLoads

    @property
    def container(self) -> ContainerModule:
        return cast(ContainerModule, self.held)
