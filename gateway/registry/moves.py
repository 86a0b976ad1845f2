"""Carries out loads and unloads, and holds what is in memory or on its way. It decides nothing.

Each move runs in its own task of the registry's group and ends in exactly one `Outcome`.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

import anyio
import msgspec
import structlog
from anyio import to_thread
from anyio.abc import TaskGroup
from msgspec.structs import replace

from backends.catalog import CPU
from backends.errors import LoadFailed, OutOfMemory
from backends.protocol import MemoryNeed, Progress
from backends.remote import Container
from config.engines import EngineOptions
from gateway.registry.gauges import Gauge
from gateway.registry.history import History, Measurement
from gateway.registry.library import FileIdentity, ModelEntry, identity
from gateway.registry.line import Clock, Place
from gateway.registry.loading import Loader, LoadPlan
from gateway.registry.memory import arithmetic, placed
from gateway.registry.record import Bytes, Load, Unload, WhyUnload
from gateway.registry.status import Lease

log = structlog.get_logger(__name__)


class Arrived(msgspec.Struct, frozen=True, kw_only=True):
    """The model is in memory. `measured`: bytes it takes, see `_measured`; None: not known."""

    name: str
    seconds: float
    measured: int | None


class LoadFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The load failed; `memory`: because memory ran out."""

    name: str
    seconds: float
    reason: str
    memory: bool


class Gone(msgspec.Struct, frozen=True, kw_only=True):
    """Its memory is free. `why` is None for a load that was cancelled."""

    name: str
    seconds: float
    why: WhyUnload | None


class Progressed(msgspec.Struct, frozen=True):
    """A load got further."""

    name: str
    progress: Progress


Outcome: TypeAlias = Arrived | LoadFailure | Gone | Progressed


class Loading(msgspec.Struct, kw_only=True):
    """A load in progress. Its scope is shielded: only `Moves.cancel` stops it."""

    plan: LoadPlan
    started: float
    scope: anyio.CancelScope
    identity: FileIdentity  # of the files that are read
    progress: Progress | None = None


class Resident(msgspec.Struct, frozen=True, kw_only=True):
    """A model in memory, and when its load began and ended."""

    plan: LoadPlan
    container: Container
    identity: FileIdentity
    started: float
    arrived: float


class Moves:
    """The moves of one registry. `notify` is called on the event loop, with each `Outcome`."""

    def __init__(
        self,
        *,
        tasks: TaskGroup,
        loader: Loader,
        gauge: Gauge,
        history: History,
        clock: Clock,
        notify: Callable[[Outcome], None],
    ) -> None:
        self._tasks = tasks
        self._loader = loader
        self._gauge = gauge
        self._history = history
        self._clock = clock
        self._notify = notify
        self.loading: dict[str, Loading] = {}
        self.residents: dict[str, Resident] = {}
        self._closing: set[str] = set()
        self._running = 0
        self._begun = 0

    def lease(self, place: Place) -> Lease:
        """What was granted at `place`: of a model in memory."""
        resident, arrived = self.residents[place.model], place.ticket.arrived
        load_seconds = max(0.0, resident.arrived - max(arrived, resident.started))
        return Lease(
            name=place.model,
            container=resident.container,
            entry=resident.plan.entry,
            queued_seconds=max(0.0, self._clock.now() - arrived - load_seconds),
            load_seconds=load_seconds,
        )

    def load(self, order: Load, plan: LoadPlan, options: EngineOptions) -> None:
        """Begin a load. `options`: the plan's, with where the model is to lie."""
        assert order.model not in self.loading, f"{order.model} is loading already"
        assert order.model not in self.residents, f"{order.model} is in memory already"
        loading = Loading(
            plan=plan,
            started=self._clock.now(),
            scope=anyio.CancelScope(shield=True),
            identity=identity(plan.entry.files),
        )
        self.loading[order.model] = loading
        self._tasks.start_soon(self._load, order, loading, options, name=f"load {order.model}")

    def describe(self, entry: ModelEntry) -> None:
        """What is configured of a model besides its files and options has changed: leases from now
        on have it so.
        """
        for one in (self.loading.get(entry.name), self.residents.get(entry.name)):
            if isinstance(one, Loading):
                one.plan = replace(one.plan, entry=entry)
            elif one is not None:
                plan = replace(one.plan, entry=entry)
                self.residents[entry.name] = replace(one, plan=plan)

    def cancel(self, name: str) -> None:
        """Stop a load. It ends in Gone."""
        self.loading[name].scope.cancel()

    def unload(self, order: Unload) -> None:
        """Begin to close a container that is not in use."""
        resident = self.residents.pop(order.model)
        self._closing.add(order.model)
        self._tasks.start_soon(self._unload, order, resident, name=f"unload {order.model}")

    def are_files_changed(self, name: str) -> bool:
        """The files of a model in memory are there, but not as it was loaded from them."""
        if (there := self.residents.get(name)) is None:
            return False
        now = identity(there.plan.entry.files)
        return now.keys() == there.identity.keys() and now != there.identity

    @property
    def busy(self) -> bool:
        """Something is in memory, or on its way in or out."""
        return bool(self.residents or self.loading or self._closing)

    async def _load(self, order: Load, loading: Loading, options: EngineOptions) -> None:
        outcome: Outcome = Gone(name=order.model, seconds=0.0, why=None)
        try:
            with loading.scope, self._alone() as is_alone:
                outcome = await self._bring(order, loading, options, is_alone)
        finally:
            if loading.scope.cancel_called:
                outcome = await self._turned_back(order.model, loading)
            del self.loading[order.model]
            self._notify(outcome)
        if isinstance(outcome, Arrived):
            await to_thread.run_sync(self._history.save)

    async def _bring(
        self,
        order: Load,
        loading: Loading,
        options: EngineOptions,
        is_alone: Callable[[], bool],
    ) -> Outcome:
        """Run the loader and measure it."""
        plan, name = loading.plan, order.model

        def report(progress: Progress) -> None:
            loading.progress = progress
            self._notify(Progressed(name, progress))

        before = await to_thread.run_sync(self._gauge.used)
        try:
            container = await self._loader.load(plan.entry.files, options, report)
        except LoadFailed as error:
            return self._failed(loading, name, str(error), memory=isinstance(error, OutOfMemory))
        except Exception as error:  # an engine may raise anything; the gateway must survive it
            log.exception("load failed unexpectedly", model=name)
            return self._failed(loading, name, f"{type(error).__name__}: {error}", memory=False)
        arrived = self._clock.now()
        self.residents[name] = Resident(
            plan=loading.plan,  # it may have been described anew meanwhile
            container=container,
            identity=loading.identity,
            started=loading.started,
            arrived=arrived,
        )
        await reclaim()  # what its load took besides: weights as they lay in the file, say
        after = await to_thread.run_sync(self._gauge.used)
        grown = _growth(before, after, order.need) if is_alone() else None
        measured = _measured(container.info.memory, grown)
        layers = container.info.layers
        return self._arrived(order, plan, arrived - loading.started, measured, layers)

    def _arrived(
        self,
        order: Load,
        plan: LoadPlan,
        seconds: float,
        measured: int | None,
        layers: Mapping[str, int],
    ) -> Arrived:
        self._history.put(
            plan.entry.files, plan.options, Measurement(size=measured, load_seconds=seconds)
        )
        sentence = arithmetic(
            plan.need, sum(order.free.values()), order.evicted, measured=plan.measured
        )
        log.info(
            "model loaded",
            model=order.model,
            seconds=round(seconds, 3),
            devices=placed(order.need, layers),
            memory=sentence,
        )
        return Arrived(name=order.model, seconds=seconds, measured=measured)

    def _failed(self, loading: Loading, name: str, reason: str, *, memory: bool) -> LoadFailure:
        seconds = self._clock.now() - loading.started
        log.warning("load failed", model=name, seconds=round(seconds, 3), reason=reason)
        return LoadFailure(name=name, seconds=seconds, reason=reason, memory=memory)

    async def _turned_back(self, name: str, loading: Loading) -> Gone:
        """The load was cancelled; it may have ended well, or failed, all the same."""
        if (resident := self.residents.pop(name, None)) is not None:
            await self._close(name, resident.container)
        log.info("load cancelled", model=name)
        return Gone(name=name, seconds=self._clock.now() - loading.started, why=None)

    async def _unload(self, order: Unload, resident: Resident) -> None:
        started = self._clock.now()
        with self._alone():
            await self._close(order.model, resident.container)
        self._closing.discard(order.model)
        seconds = self._clock.now() - started
        log.info("model unloaded", model=order.model, seconds=round(seconds, 3), why=order.why)
        self._notify(Gone(name=order.model, seconds=seconds, why=order.why))

    async def _close(self, name: str, container: Container) -> None:
        """Close it even when cancelled: a container half closed would hold its memory for good."""
        with anyio.CancelScope(shield=True):
            try:
                await container.aclose()
            except Exception:  # its memory counts as free; a later load finds out if it isn't
                log.exception("unload failed", model=name)
            await reclaim()

    @contextmanager
    def _alone(self) -> Iterator[Callable[[], bool]]:
        """Counts moves; yields a check of whether no other move has run since."""
        self._running += 1
        self._begun += 1
        number, alone = self._begun, self._running == 1
        try:
            yield lambda: alone and number == self._begun
        finally:
            self._running -= 1


def _measured(counted: MemoryNeed | None, grown: int | None) -> int | None:
    """What belongs to the model: by how much its cards filled up, or what its engine counts.

    Never by how much this process grew: it does for many reasons at a time.
    """
    if grown is not None:
        return grown
    return None if counted is None else counted.total


def _growth(before: Bytes, after: Bytes, devices: Bytes) -> int | None:
    """By how much more is in use on `devices`; None where one of them is no card, or can't be
    measured.
    """
    if CPU in devices or not devices.keys() <= before.keys() & after.keys():
        return None
    return sum(after[device] - before[device] for device in devices)


async def reclaim() -> None:
    """Return memory that an engine has freed to the system, in a worker thread.

    The C library keeps freed memory for the process; after many loads and unloads that is a lot,
    torn into pieces. glibc has malloc_trim(3) for it; elsewhere there is nothing to do.
    """
    await to_thread.run_sync(_trim)


def _trim() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)  # ctypes lets go of the interpreter meanwhile
