"""Resolves names to models: one that the library lists, after another scan where it is unknown, or
one in memory whose files are gone.
"""

import time
from collections.abc import Callable, Mapping

import anyio
import structlog
from anyio import to_thread
from anyio.abc import TaskGroup

from backends.machine.supervision import Supervisor
from config.values import hub_id
from gateway.keys.access import ADMIN, Access
from gateway.registry.entry import ModelEntry
from gateway.registry.library import DEFAULT_NAMES, LATEST, ModelLibrary
from gateway.terms.errors import GatewayError, ModelNotFound, ModelUnavailable

log = structlog.get_logger(__name__)
SCAN_PATIENCE = 2.0  # seconds that a scan of the folders waits for lists of upstreams
SCAN_LIMIT = 10.0  # seconds that a request waits for a scan: the folders may lie on a share


class ModelNames:
    """The models that a request may name. `present`: those in memory, as they were loaded;
    `library`: what is configured now.
    """

    def __init__(self, library: ModelLibrary, changed: Callable[[str], None]) -> None:
        """`changed` is called with each model that a scan finds changed."""
        self.present: dict[str, ModelEntry] = {}
        self.library = library
        self._changed = changed
        self._scan: anyio.Event | None = None  # of the next one, which has not begun
        self._one_scans = anyio.Lock()  # a share that hangs takes one thread
        self._unknown = dict(library.unknown_names())  # they are reported at the start

    def begin(self, tasks: TaskGroup, supervisor: Supervisor) -> None:
        """Scans run in `tasks`."""
        self._tasks, self._supervisor = tasks, supervisor

    def entries(self) -> Mapping[str, ModelEntry]:
        """All models, by id."""
        return {entry.name: entry for entry in self.library.entries()} | self.present

    def loaded(self, entry: ModelEntry) -> tuple[ModelEntry, ...]:
        """What is loaded when `entry` is asked for."""
        base, known = entry.base, self.entries() if entry.base.replicas else {}
        return tuple(known[name] for name in base.replicas if name in known) or (base,)

    def resolve(self, name: str, access: Access = ADMIN) -> ModelEntry:
        """See `Registry.resolve`."""
        try:
            return self.library.resolve(name, access)
        except GatewayError:
            if (entry := self._resident(name)) is None or not access.allows(entry.name):
                raise
            return entry  # its files are gone, but it is in memory

    def _resident(self, name: str) -> ModelEntry | None:
        """The model in memory that is called `name`, by id or alias, or is the default."""
        if name in DEFAULT_NAMES:
            name = self.library.default_name() or next(iter(self.present), "")
        spelled = {name, hub_id(name), name.removesuffix(LATEST)}
        present = self.present.values()
        return next((entry for entry in present if spelled & {entry.name, *entry.aliases}), None)

    async def find(self, name: str, access: Access = ADMIN) -> ModelEntry:
        """As `resolve`, but folders are scanned first where it is not known, or not usable."""
        try:
            return self.resolve(name, access)
        except (ModelNotFound, ModelUnavailable):
            await self.scanned()
            return self.resolve(name, access)

    async def scanned(self) -> None:
        """A scan that began after this call has ended, or hangs."""
        with anyio.move_on_after(SCAN_LIMIT):
            await self.scan_soon().wait()

    def scan_soon(self) -> anyio.Event:
        """Set when a scan of the folders has ended that begins after this call; all callers before
        it begins share it. Scans are as rare as `Library.due` says.
        """
        if self._scan is None:
            self._scan = anyio.Event()
            work = self._scan_when_due
            self._tasks.start_soon(self._supervisor.attempt, "folders", work, self._scan)
        return self._scan

    async def _scan_when_due(self, done: anyio.Event) -> None:
        try:
            await anyio.sleep(max(0.0, self.library.due - time.monotonic()))
            async with self._one_scans:
                self._scan = None
                await self._refresh()
        finally:
            done.set()

    async def refresh(self) -> None:
        """Scan the model folders again, off the event loop, and request the lists of upstreams."""
        async with self._one_scans:
            await self._refresh()

    async def _refresh(self) -> None:
        with anyio.move_on_after(SCAN_PATIENCE):
            await self.library.fleet.refresh()
        before = self.library.known()
        await to_thread.run_sync(self.library.refresh, abandon_on_cancel=True)
        after = self.library.known()
        self._warn_of_unknown()
        for name in before.keys() | after.keys():
            if before.get(name) is not after.get(name):
                self._changed(name)

    def _warn_of_unknown(self) -> None:
        """Upstreams list their models after the start; what nobody has then is a mistake."""
        before, self._unknown = self._unknown, dict(self.library.unknown_names())
        for option, problem in self._unknown.items():
            if option not in before:
                log.warning("check the configuration", option=option, problem=problem)
