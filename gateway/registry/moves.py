"""Carries out loads and unloads, and holds what is in memory or on its way. It decides nothing.

Each move runs in its own task of the registry's group and ends in exactly one `ModelEvent`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import anyio
import msgspec
import structlog
from anyio import to_thread
from anyio.abc import TaskGroup
from msgspec.structs import replace

from backends.contract.catalog import BACKENDS, CPU
from backends.contract.errors import LoadFailed, OutOfMemory
from backends.contract.protocol import ModelInfo, Parkable, Progress, Report
from backends.machine.process_settings import trim_heap
from backends.machine.supervision import Supervisor
from backends.places.cluster.nodes import ClusterNodes, NodeLost
from backends.places.upstream.fleet import Fleet
from backends.places.upstream.upstream import Container
from backends.places.warm import WarmFiles
from config.engines import EngineOptions
from config.values import alike
from gateway.registry.entry import FileIdentity, ModelEntry, identity
from gateway.registry.gauges import Gauge
from gateway.registry.history import History, Measurement
from gateway.registry.kept import Conversations
from gateway.registry.line import Clock, Place
from gateway.registry.loaders import Loader
from gateway.registry.memory import placed, shares
from gateway.registry.nodes import HERE as THIS_MACHINE
from gateway.registry.nodes import bare, named, node_of, without_turns
from gateway.registry.planning import LoadPlan
from gateway.registry.protocol import Bytes, Load, Unload
from gateway.registry.status import (
    Lease,
    ModelEvent,
    ModelLoaded,
    ModelLoadFailed,
    ModelProgressed,
    ModelUnloaded,
)
from gateway.terms.tasks import FileSystems

log = structlog.get_logger(__name__)

T = TypeVar("T")

# Seconds that a model's file system is waited for: a model that runs needs none of it, and a disk
# that begins to turn takes some.
RUNNING, STARTING = 1.0, 10.0


class Broken(msgspec.Struct, frozen=True, kw_only=True):
    """A model in memory can't be used any more. Without `rest`: since its node is gone."""

    name: str
    reason: str
    rest: bool = True


class Loading(msgspec.Struct, kw_only=True):
    """A load in progress. Only `Moves.cancel` stops it."""

    plan: LoadPlan
    started: float
    scope: anyio.CancelScope = msgspec.field(default_factory=lambda: anyio.CancelScope(shield=True))
    identity: FileIdentity = {}  # of the files that are read
    progress: Progress | None = None


class Resident(msgspec.Struct, kw_only=True, eq=False):
    """A model in memory, and when its load began and ended."""

    plan: LoadPlan
    container: Container
    identity: FileIdentity
    started: float
    arrived: float

    @property
    def held_there(self) -> Bytes:
        """What it has of a machine that the configuration names, by what that told at its load."""
        share, held = self.plan.entry.files.node, self.container.info.held
        return {} if share is None or held is None else named(share.node.name, held)


class Moves(msgspec.Struct, kw_only=True):
    """The moves of one registry. `notify` is called on the event loop, as each ends, as a load gets
    further and where a model breaks.
    """

    tasks: TaskGroup
    supervisor: Supervisor
    loader: Loader
    fleet: Fleet
    kept: Conversations
    gauge: Gauge
    history: History
    clock: Clock
    notify: Callable[[ModelEvent | Broken], None] = lambda _: None  # set by `Orders`
    cluster: ClusterNodes | None = None
    loading: dict[str, Loading] = msgspec.field(default_factory=dict)
    residents: dict[str, Resident] = msgspec.field(default_factory=dict)
    _parked: dict[str, Resident] = msgspec.field(default_factory=dict)
    _disk: FileSystems = msgspec.field(default_factory=FileSystems)
    # Of parked models that have no process.
    _warm: dict[str, WarmFiles] = msgspec.field(default_factory=dict)
    _running: int = 0
    _begun: int = 0

    def lease(self, place: Place) -> Lease:
        """What was granted at `place`: of a model in memory."""
        resident, arrived = self.residents[place.model], place.ticket.arrived
        load_seconds = max(0.0, resident.arrived - max(arrived, resident.started))
        return Lease(
            name=place.model,
            container=resident.container,
            entry=resident.plan.entry,
            queued_seconds=max(0.0, self.clock.now() - arrived - load_seconds),
            load_seconds=load_seconds,
        )

    def load(self, order: Load, plan: LoadPlan, options: EngineOptions) -> None:
        """Begin a load. `options`: the plan's, with where the model is to lie."""
        assert order.model not in self.loading, f"{order.model} is loading already"
        assert order.model not in self.residents, f"{order.model} is in memory already"
        loading = self.loading[order.model] = Loading(plan=plan, started=self.clock.now())
        self.tasks.start_soon(self._load, order, loading, options, name=f"load {order.model}")

    def describe(self, entry: ModelEntry) -> None:
        """What is configured of a model besides its files and options has changed: leases from now
        on have it so.
        """
        for move in (self.loading.get(entry.name), self.residents.get(entry.name)):
            if move is not None:
                move.plan = replace(move.plan, entry=entry)

    def cancel(self, name: str) -> None:
        """Stop a load. It ends in ModelLoadFailed without a reason."""
        self.loading[name].scope.cancel()

    def unload(self, order: Unload) -> None:
        """Begin to close a container that is not in use."""
        parked = self._parked.pop(order.model, None)
        resident = parked or self.residents.pop(order.model)
        self.tasks.start_soon(self._unload, order, resident, name=f"unload {order.model}")

    async def are_files_changed(self, name: str) -> bool:
        """The files of a model in memory are there, but not as it was loaded from them. Where they
        can't be asked it goes on.
        """
        if (there := self.residents.get(name)) is None or not there.identity:
            return False
        try:
            now = await self._disk.ask(name, partial(identity, there.plan.entry.files), RUNNING)
        except TimeoutError:
            return False
        is_changed = now.keys() == there.identity.keys() and now != there.identity
        return is_changed and self.residents.get(name) is there

    async def asked(self, name: str, question: Callable[[], T]) -> T:
        """What the file system says of a model that is to be loaded. Raises LoadFailed."""
        try:
            return await self._disk.ask(name, question, STARTING)
        except TimeoutError:
            raise LoadFailed(f"its files don't answer for {STARTING:.0f} s") from None

    async def _load(self, order: Load, loading: Loading, options: EngineOptions) -> None:
        outcome: ModelEvent = ModelLoadFailed(order.model, 0.0, None)
        try:
            with loading.scope, self._alone() as is_alone:
                outcome = await self._bring(order, loading, options, is_alone)
        except Exception as error:  # an engine may raise anything; the gateway must survive it
            log.exception("load failed unexpectedly", model=order.model)
            await self._discard(order.model)
            reason = f"{type(error).__name__}: {error}"
            outcome = self._failed(loading, order.model, reason)
        finally:
            if loading.scope.cancel_called:
                outcome = await self._turned_back(order.model, loading)
            del self.loading[order.model]
            self._cool(order.model)  # its weights lie where they are used
            self.notify(outcome)
        if self._warm:
            self._warm_up_soon()
        if isinstance(outcome, ModelLoaded):
            self._watch(order.model)
            await self.supervisor.attempt("history", to_thread.run_sync, self.history.save)

    def _watch(self, name: str) -> None:
        """Be told when the model breaks, in use or not."""
        if (resident := self.residents.get(name)) is None:  # it had to leave at once
            return
        container = resident.container

        def tell() -> None:
            still = self.residents.get(name) or self._parked.get(name)
            reason = container.failure
            if still is not None and still.container is container and reason is not None:
                lost = self.cluster is not None and container.is_unreached
                if lost and self.cluster is not None:
                    self.cluster.lost(node_of(still.plan.placements[0]))
                self.notify(Broken(name=name, reason=reason, rest=not lost))

        container.on_failure(tell)
        tell()

    async def _bring(
        self,
        order: Load,
        loading: Loading,
        options: EngineOptions,
        is_alone: Callable[[], bool],
    ) -> ModelEvent:
        """Run the loader and measure it."""
        plan, name = loading.plan, order.model
        if plan.fitted is not None:
            log.info("model gives way", model=name, how=plan.note, why=list(plan.fitted.reasons))

        def report(progress: Progress) -> None:
            loading.progress = progress
            self.notify(ModelProgressed(name, progress))

        before = await to_thread.run_sync(self.gauge.used)
        try:
            loading.identity = await self.asked(name, partial(identity, plan.entry.files))
            container = await self._woken(name, plan)
            if container is None:
                container = await self._brought(node_of(order.need), plan, options, report)
        except OutOfMemory as error:
            free = await to_thread.run_sync(partial(self.gauge.available, anew=True))
            return replace(self._failed(loading, name, str(error)), free=free)
        except LoadFailed as error:
            failed = self._failed(loading, name, str(error))
            return replace(failed, moved=isinstance(error, NodeLost))
        arrived = self.clock.now()
        # Its plan may have been described anew meanwhile.
        self.residents[name] = alike(Resident, loading)(container=container, arrived=arrived)
        # What its load took besides: weights as they lay in the file, say.
        await to_thread.run_sync(trim_heap)
        after = await to_thread.run_sync(self.gauge.used)
        devices = shares(plan.need, plan.placements[0])
        grown = _growth(before, after, devices) if is_alone() else None
        info = _info_at(node_of(devices), container.info)
        found = _measured(info, grown, devices, by_command=bool(plan.entry.files.remote))
        measurement = replace(found, load_seconds=arrived - loading.started)
        return self._arrived(order, plan, measurement, info)

    async def _brought(
        self, at: str, plan: LoadPlan, options: EngineOptions, report: Report
    ) -> Container:
        """Loaded on a node, by another server, or here, where its conversations go on."""
        files = plan.entry.files
        if at != THIS_MACHINE:
            assert self.cluster is not None, "else no model is planned for a node"
            return await self.cluster.load(at, BACKENDS[files.backend], files, options, report)
        self.kept.settle()  # its memory is promised already: what is kept makes room
        if files.elsewhere is not None:
            return await self.fleet.load(files.elsewhere, report)
        container = await self.loader.load(files, options, report)
        try:
            await self.kept.adopt(files, options, container)
        except BaseException:
            await self._close(plan.entry.name, container)
            raise
        return container

    async def _woken(self, name: str, plan: LoadPlan) -> Container | None:
        """The container of a parked model; None where there is none, or it can't be woken, or was
        loaded otherwise than `plan` has it, or its files alone are in memory.
        """
        if (parked := self._parked.pop(name, None)) is None or name in self._warm:
            return None
        container = parked.container
        assert isinstance(container, Parkable), "it was parked"
        was = parked.plan
        if (was.entry.files, was.loads) != (plan.entry.files, plan.loads):
            await self._close(name, container)
            return None
        try:
            await container.wake()
        except LoadFailed as error:
            log.warning(
                "a parked model can't be woken: it is loaded", model=name, reason=str(error)
            )
            await self._close(name, container)
            return None
        except BaseException:
            await self._close(name, container)
            raise
        return container

    def _arrived(
        self,
        order: Load,
        plan: LoadPlan,
        measurement: Measurement,
        info: ModelInfo,
    ) -> ModelLoaded:
        seconds, held = measurement.load_seconds, measurement.devices
        self.history.put(plan.entry.files, plan.loads, measurement)
        log.info(
            "model loaded",
            model=order.model,
            seconds=round(seconds, 3),
            devices=placed(without_turns(order.need) if held is None else held, info.layers),
            memory=plan.arithmetic(sum(order.free.values()), order.evicted),
        )
        if plan.fitted is not None and info.buffers:
            log.info("model lies", model=order.model, buffers=placed(info.buffers, {}))
        return ModelLoaded(order.model, seconds)

    def _failed(self, loading: Loading, name: str, reason: str) -> ModelLoadFailed:
        seconds = self.clock.now() - loading.started
        log.warning("load failed", model=name, seconds=round(seconds, 3), reason=reason)
        return ModelLoadFailed(name, seconds, reason)

    async def _turned_back(self, name: str, loading: Loading) -> ModelLoadFailed:
        """The load was cancelled; it may have ended well, or failed, all the same."""
        await self._discard(name)
        log.info("load cancelled", model=name)
        seconds = self.clock.now() - loading.started
        return ModelLoadFailed(name, seconds, None)

    async def _discard(self, name: str) -> None:
        """What a load has brought, whose end is another."""
        if (resident := self.residents.pop(name, None)) is not None:
            await self._close(name, resident.container)

    async def _unload(self, order: Unload, resident: Resident) -> None:
        started, name = self.clock.now(), order.model
        held = await self._put_aside(name, resident) if order.parks else None
        if held is not None:
            self._parked[name] = resident
        else:
            self._cool(name)
            with self._alone():
                await self._close(name, resident.container)
            with anyio.CancelScope(shield=True):  # who is cancelled waits for the end of this
                await self.supervisor.attempt(
                    "history", to_thread.run_sync, self._remember, resident
                )
        seconds = self.clock.now() - started
        if held is None:
            log.info("model unloaded", model=name, seconds=round(seconds, 3), why=order.why)
        else:
            log.info("model parked", model=name, seconds=round(seconds, 3), held=held)
        self.notify(ModelUnloaded(name, seconds, order.why, held))

    async def _put_aside(self, name: str, resident: Resident) -> Bytes | None:
        """What a model holds that is parked now; None where it couldn't be."""
        held: Bytes | None = None
        with anyio.CancelScope(shield=True):
            try:
                if isinstance(resident.container, Parkable):
                    held = await resident.container.park()
                else:
                    held = await self._warmed(name, resident)
            except (LoadFailed, OSError) as error:
                text = "a model can't be parked: it is unloaded"
                log.warning(text, model=name, reason=str(error))
        return held

    async def _warmed(self, name: str, resident: Resident) -> Bytes:
        """Closed, but for its files in memory. Raises OSError."""
        warm = await to_thread.run_sync(WarmFiles, resident.plan.entry.files.parts)
        with self._alone():
            await self._close(name, resident.container)
        self._warm[name] = warm
        self._warm_up_soon()
        return {CPU: warm.size}

    def _warm_up_soon(self) -> None:
        self.tasks.start_soon(self.supervisor.attempt, "parked", self._warm_up, name="warm up")

    async def _warm_up(self) -> None:
        """Read what of parked models' files isn't in memory, while no load reads the same disk."""
        for name, warm in tuple(self._warm.items()):
            if self.loading:
                return
            try:
                await to_thread.run_sync(
                    warm.read_on, lambda: not self.loading, abandon_on_cancel=True
                )
            except OSError as error:
                log.warning("a parked model's files can't be read", model=name, reason=str(error))

    def _cool(self, name: str) -> None:
        if (warm := self._warm.pop(name, None)) is not None:
            warm.close()

    def _remember(self, resident: Resident) -> None:
        """What was learned of a model that is gone: how fast it was, and what processes of its own
        held in the end, with which its next load is planned. Blocks.
        """
        files, options = resident.plan.entry.files, resident.plan.loads
        held = resident.container.info.held if files.remote is not None else None
        known = self.history.get(files, options)
        if held is not None and known is not None and known.devices != held:
            found = replace(known, size=sum(held.values()), devices=held)
            self.history.put(files, options, found)
        if self.history.is_new:
            self.history.save()

    async def _close(self, name: str, container: Container) -> None:
        """Close it even when cancelled: a container half closed would hold its memory for good."""
        with anyio.CancelScope(shield=True):
            try:
                await container.aclose()
            except Exception:  # its memory counts as free; a later load finds out if it isn't
                log.exception("unload failed", model=name)
            await to_thread.run_sync(trim_heap)

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


def _info_at(node: str, info: ModelInfo) -> ModelInfo:
    """With the ledger's names of devices."""
    held = None if info.held is None else named(node, info.held)
    return replace(info, held=held, layers=named(node, info.layers))


def _measured(
    info: ModelInfo, grown: int | None, devices: Bytes, *, by_command: bool
) -> Measurement:
    """What belongs to the model: what processes of its own have, by how much its cards filled up,
    or what its engine counts. `by_command`: where it lies isn't decided here.

    Never by how much this process grew: it does for many reasons at a time.
    """
    held, counted = info.held, info.memory
    if held and by_command:
        return Measurement(size=sum(held.values()), devices=held)
    if held is not None and devices.keys() <= held.keys():
        size = sum(held[device] for device in devices)
        if CPU not in bare(devices):
            return Measurement(size=size, exact=True)
        if counted is not None:  # pages that nothing has touched yet are not there, but will be
            return Measurement(size=max(size, counted.total), exact=True)
    if grown is not None:
        return Measurement(size=grown)
    return Measurement(size=None if counted is None else counted.total)


def _growth(before: Bytes, after: Bytes, devices: Bytes) -> int | None:
    """By how much more is in use on `devices`; None where one of them is no card, or can't be
    measured.
    """
    if CPU in bare(devices) or not devices.keys() <= before.keys() & after.keys():
        return None
    return sum(after[device] - before[device] for device in devices)
