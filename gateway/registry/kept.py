"""Conversations that outlive their model: the store of computed beginnings, as the registry has it.

It says how much memory the store may have (what is configured, and never what models need), and
gives each model's engine its view of it. The store itself is `backends.places.kept`.
"""

from pathlib import Path

import structlog
from anyio import to_thread

from backends.contract.catalog import CPU, ModelFiles, command
from backends.contract.identity import identity_if_there
from backends.places.kept.files import Folder, Seal, salt_in
from backends.places.kept.store import KeptStore
from backends.places.upstream.upstream import Container
from config.engines import EngineOptions
from config.errors import ConfigError
from config.settings import KeptConfig
from gateway.registry.ledger import MemoryLedger

log = structlog.get_logger(__name__)

SHARE = 0.25  # of the memory for models, where nothing else is configured


class Conversations:
    """Of one registry. `room` is its ledger."""

    def __init__(self, config: KeptConfig, room: MemoryLedger) -> None:
        """Raises ConfigError where files can't be encrypted."""
        self._room = room
        self._memory = config.memory
        folder = None
        if config.folder is not None:
            path = Path(config.folder)
            folder = Folder(path, None if config.encrypt is None else _seal(config, path))
        self.store = KeptStore(memory=self._limit(), folder=folder, disk=config.size)
        room.kept = lambda: self.store.memory

    def apply(self, config: KeptConfig) -> None:
        """From now on so much memory may be taken."""
        self._memory = config.memory
        self.settle()

    def settle(self) -> None:
        """Models may have come or gone: no more is kept than they leave."""
        self.store.allow(self._limit())

    def _limit(self) -> int:
        budget = self._room.budgets.get(CPU, 0)
        wanted = int(budget * SHARE) if self._memory == "auto" else self._memory
        return max(0, min(wanted, self._room.free(CPU)))

    async def adopt(self, files: ModelFiles, options: EngineOptions, container: Container) -> None:
        """A model was loaded: its conversations go on, and are kept."""
        if container.info.task != "generate" or not container.info.build:
            return
        if files.node is not None:
            there = container.info.identity
            own = f"{there} of {files.node.node.address}" if there else ""
        else:
            own = await to_thread.run_sync(identity_if_there, files, options, container.info)
        if not own:
            return
        container.keep_in(self.store.beginnings(own, str(files.path)))


def _seal(config: KeptConfig, folder: Path) -> Seal:
    assert config.encrypt is not None
    try:
        return Seal(config.encrypt, salt_in(folder))
    except OSError as error:
        problem = f"the folder can't be used: {error}"
        raise ConfigError("the configuration", "$.kept.folder", problem) from error
    except ImportError as error:
        problem = f"the package `cryptography` is missing. Install it: {command('encryption')}"
        raise ConfigError("the configuration", "$.kept.encrypt", problem) from error
