"""The async shell around the scheduler: leases, loads and unloads for callers.

    async with Registry(library, config) as registry:
        async with registry.lease("qwen3-8b") as lease:
            async with lease.container.generate(job) as outputs: ...

It decides nothing: every decision is the scheduler's, made synchronously, and its orders are
carried out by `Orders` in this registry's own task group. A lease is given back without an await,
so no cancellation can lose it.
"""

from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, Self

import anyio
import structlog
from anyio import to_thread

from backends.contract.catalog import CPU
from backends.contract.errors import LoadFailed
from backends.contract.protocol import Task
from backends.machine.supervision import Supervisor
from backends.places.cluster.nodes import ClusterFailed, ClusterNode, ClusterNodes
from backends.places.upstream.fleet import Fleet
from config.errors import ConfigError
from config.nodes import NodeConfig
from config.settings import Config
from config.values import alike
from gateway.keys.access import ADMIN, Access
from gateway.registry.entry import ModelEntry, check_files
from gateway.registry.gauges import KEPT_FREE, Gauge, bandwidths
from gateway.registry.history import History, default_path
from gateway.registry.kept import Conversations
from gateway.registry.library import CacheOfModels, ModelLibrary
from gateway.registry.line import Alarm, Clock, Place, Places, Waiting
from gateway.registry.loaders import Loader
from gateway.registry.moves import Moves
from gateway.registry.names import ModelNames
from gateway.registry.nodes import HERE, named, node_of, nodes_of, without_turns
from gateway.registry.orders import Orders, RegistryParts
from gateway.registry.overview import Overview
from gateway.registry.planning import LoadPlanner
from gateway.registry.protocol import Bytes, Wish
from gateway.registry.reconfiguration import PreparedModels, Reconfiguration, prepared
from gateway.registry.replicas import Replicas
from gateway.registry.scheduler import Scheduler
from gateway.registry.status import (
    Lease,
    ModelEvent,
    ModelLoaded,
    ModelStatus,
    ModelUnloaded,
    UnloadReport,
    Watchers,
)
from gateway.terms.errors import (
    Forbidden,
    GatewayError,
    ModelNotFound,
    ModelUnavailable,
    ShuttingDown,
    translated,
)
from gateway.terms.tasks import companions

log = structlog.get_logger(__name__)


class Registry:
    """All models of one server. Leaving its context aborts all answers and frees all memory."""

    def __init__(
        self,
        library: ModelLibrary,
        config: Config,
        *,
        loader: Loader | None = None,
        gauge: Gauge | None = None,
        history: History | None = None,
        clock: Clock | None = None,
        watch: Callable[[ModelEvent], None] = lambda _: None,
    ) -> None:
        self._library = library
        self._config = config
        self._loader = loader or Loader()
        self._gauge = gauge or Gauge()
        self._history = history or History(default_path())
        self._clock = clock or Clock()
        self._watch = watch
        self.cluster = None if config.cluster is None else _cluster(config.cluster, config)
        self._places = Places()
        self.watchers = Watchers()
        self.supervisor = Supervisor()
        self._names = ModelNames(library, self.watchers.note)
        self.is_closing = False  # it answers nobody any more
        self._exits = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._free = await to_thread.run_sync(self._gauge.free)
        self._scheduler = Scheduler(self._budgets(), self._config.swap)
        sizes = await to_thread.run_sync(self._gauge.total)
        cards = {name: size for name, size in sizes.items() if name != CPU}
        self._history.begin(cards)
        self._planner = LoadPlanner(
            self._loader,
            self._history,
            cards,
            self._scheduler.room,
            await to_thread.run_sync(bandwidths, cards),
            self.cluster,
            self._config.swap.park,
        )
        await self._exits.enter_async_context(self._library.fleet)
        self.kept = Conversations(self._config.kept, self._scheduler.room)
        await to_thread.run_sync(self.kept.store.open)
        # Behind the last unload.
        self._exits.push_async_callback(to_thread.run_sync, self.kept.store.close)
        self._tasks = await self._exits.enter_async_context(companions())
        self._names.begin(self._tasks, self.supervisor)
        self._moves = Moves(
            tasks=self._tasks,
            supervisor=self.supervisor,
            loader=self._loader,
            fleet=self._library.fleet,
            kept=self.kept,
            gauge=self._gauge,
            history=self._history,
            clock=self._clock,
            cluster=self.cluster,
        )
        parts = RegistryParts(
            names=self._names,
            planner=self._planner,
            scheduler=self._scheduler,
            places=self._places,
            moves=self._moves,
            clock=self._clock,
        )
        self._replicas = alike(Replicas, parts)(load=self._load_soon)
        self._orders = alike(Orders, parts)(
            alarm=Alarm(self._clock), changed=self._changed, watch=self._happened
        )
        self._orders.begin(self._tasks)
        self.overview = alike(Overview, parts)(
            orders=self._orders, gauge=self._gauge, kept=lambda: self.kept.store.memory
        )
        self._reconfiguration = alike(Reconfiguration, parts)(orders=self._orders)
        if self.cluster is not None:
            nodes = self.cluster.running(self.supervisor, self._nodes_changed)
            await self._exits.enter_async_context(nodes)
        self._tasks.start_soon(
            self._library.fleet.watch,
            self.supervisor,
            self._names.scan_soon,
            self.watchers.note,
            name="watch upstreams",
        )
        for entry in self._library.entries():
            if entry.preload:
                self._load_soon(entry.name)
        return self

    def _budgets(self) -> Bytes:
        """What models may have of each device: here, and on the nodes that take any."""
        nodes = self.nodes()
        elsewhere = {
            device: 0 if node.draining else int(size * (1 - KEPT_FREE))
            for name, node in nodes.items()
            for device, size in named(name, node.free).items()
        }
        configured = {
            device: size
            for device, size in self._config.swap.memory.items()
            if node_of((device,)) == HERE or elsewhere.get(device)
        }
        return {**self._free, **elsewhere, **configured, **self._turns()}

    def _turns(self) -> Bytes:
        return {name: size for one in self._config.models for name, size in one.turn.items()}

    def nodes(self) -> Mapping[str, ClusterNode]:
        """The other machines, by name."""
        return {} if self.cluster is None else self.cluster.nodes

    def named_nodes(self) -> Iterator[tuple[NodeConfig, Bytes]]:
        """The machines that the configuration names, and the bytes of their devices, as far as they
        have told.
        """
        shares = [entry.files.node for entry in self._library.entries()]
        told = {share.node: named(share.node.name, share.total) for share in shares if share}
        return ((node, told.get(node, {})) for node in self._config.nodes)

    def models_at(self, node: str) -> Mapping[str, Bytes]:
        """The models in memory there, or on their way in or out, and what each has of its
        devices.
        """
        held = {name: one.held_there for name, one in self._moves.residents.items()}
        for one in self._scheduler.records():
            if devices := without_turns(one.held):
                held[one.model.name] = devices
        return {name: devices for name, devices in held.items() if node in nodes_of(devices)}

    def _nodes_changed(self) -> None:
        """Nodes joined, left, or are to take no models any more."""
        if self.is_closing:
            return
        self._planner.nodes_changed()
        self._budget_again()
        draining = {name for name, node in self.nodes().items() if node.draining}
        for record in self._scheduler.records():
            leaves = not record.nodes.isdisjoint(draining)
            if leaves and (record.model.pinned or record.phase == "loading"):
                name = record.model.name
                self._orders.carry_out(self._scheduler.replaced(self._clock.now(), name), name)
        self._replicas.fill()

    async def __aexit__(self, *_: object) -> None:
        self.cut_off()
        with anyio.CancelScope(shield=True):
            while self._places or any(one.phase != "absent" for one in self._scheduler.records()):
                await self._orders.ended.wait()
        try:
            await self._exits.aclose()
        finally:
            self._loader.end()

    def cut_off(self) -> None:
        """Refuse all tickets, old and new, abort running answers, unload all. Returns at once."""
        self.is_closing = True
        self.watchers.end()
        self._orders.carry_out(self._scheduler.closing(self._clock.now()))
        self._places.abort()

    def prepare(self, config: Config, cache: CacheOfModels | None) -> PreparedModels:
        """The models as `config` has them. Changes nothing; blocks to scan the disk. Raises
        ConfigError.
        """
        return prepared(self._library, self._library.successor(config, cache))

    def apply(self, models: PreparedModels, config: Config) -> None:
        """From now on these are the models, budgets and rules. Running answers go on, leases have
        what they began with; what is not mentioned in the changes stays in memory as it is.
        """
        if self.is_closing:
            return
        known = self._library.known()
        self._config, self._library = config, models.library
        self.fleet.apply(models.library.roster)
        self._scheduler.room.budgets |= self._turns()  # before models wait for one
        self._reconfiguration.apply(models, known)
        for entry in models.library.entries():
            if entry.preload and entry.name in models.changes.added:
                self._load_soon(entry.name)
        self._planner.parking = config.swap.park
        self._budget_again()
        self.kept.apply(config.kept)

    def _budget_again(self) -> None:
        """Budgets and rules are as they are now; and what is in memory is planned so for its next
        load, and its leave: a request that gets a lease at once plans nothing. Replicas that wait
        may lie elsewhere now.
        """
        self._orders.carry_out(
            self._scheduler.apply(self._clock.now(), self._budgets(), self._config.swap)
        )
        entries = self._names.entries()
        names = [
            one.model.name
            for one in self._scheduler.records()
            if one.phase == "loaded" or (one.model.apart and one.is_claim)
        ]
        self._orders.describe([entries[name] for name in names if name in entries])

    @asynccontextmanager
    async def lease(
        self,
        name: str,
        *,
        keep_alive: float | None = None,
        on_wait: Callable[[Waiting], None] | None = None,
        access: Access = ADMIN,
        conversation: int | None = None,
    ) -> AsyncIterator[Lease]:
        """The model, for as long as the context lasts; it is loaded first where it must be. Of
        several replicas one, `conversation`'s if that has been there.

        `on_wait` is called in this task with each change of place or progress. `keep_alive`: idle
        seconds the model stays after this lease, -1 for good. Raises ModelNotFound (also where
        `access` doesn't reach), QueueFull, ModelUnavailable, ShuttingDown, and Forbidden where a
        load would be needed that `access` denies. The body is cancelled and ModelUnavailable (or
        ShuttingDown) raised, if the model is unloaded by force.
        """
        requested = await self.find(name, access)
        entry = requested.base
        if not entry.replicas:
            entry = await self._as_on_disk(entry)
        if not access.autoload and self.overview.status(entry).state not in ("loading", "loaded"):
            text = f"{entry.name} is not loaded, and this key may not load it"
            raise Forbidden(text, param="model")
        wish = Wish(keep_alive=keep_alive, owner=access.owner)
        with ExitStack() as held:
            if entry.replicas:
                place = await self._placed(held, entry, wish, conversation, on_wait)
            else:
                place = held.enter_context(self._in_line(entry, wish))
                if not place.is_lease:
                    await _waited(place, on_wait)
            with place.scope:
                lease = self._moves.lease(place)
                yield lease.called(requested) if requested.of or entry.replicas else lease
                if (pace := lease.container.pace) is not None:
                    self._planner.spoke(place.model, pace)
            if place.scope.cancelled_caught:
                raise self._aborted(entry.name)

    async def _placed(
        self,
        held: ExitStack,
        model: ModelEntry,
        wish: Wish,
        conversation: int | None,
        on_wait: Callable[[Waiting], None] | None,
    ) -> Place:
        """A lease of one of a model's replicas, held by `held`. Where one is no use, or leaves
        while others are there, the next is asked. Raises as the last of them.
        """
        tried: set[str] = set()
        while True:
            name = self._replicas.choose(model, conversation, tried)
            with ExitStack() as line:
                try:
                    entry = await self._as_on_disk(self._names.resolve(name))
                    line.enter_context(self._replicas.asked(model, name, conversation))
                    place = line.enter_context(self._in_line(entry, wish))
                    moves = partial(self._replicas.is_better_off, model, name)
                    if place.is_lease or await _waited(place, on_wait, moves):
                        held.push(line.pop_all())
                        return place
                except (ModelUnavailable, ModelNotFound):
                    tried.add(name)
                    if tried.issuperset(model.replicas):
                        raise

    @asynccontextmanager
    async def loading(
        self, name: str, *, options: Mapping[str, Any] | None = None
    ) -> AsyncIterator[Place]:
        """Load a model; the context yields reports of it, which end when it is loaded.

        Callers of one load share it. One that leaves early doesn't stop it. `options` go over the
        model's own until it is unloaded on request, or a load fails; a model loaded with others is
        loaded again. Raises as `lease`, and InvalidRequest for options its backend doesn't know; a
        failed load raises ModelUnavailable from the iteration.
        """
        entry, *others = self._names.loaded(await self.find(name))
        if options is not None:
            for other in others:
                self._reconfiguration.change_options(other, options)
        for other in others:
            self._load_soon(other.name)
        entry = await self._as_on_disk(entry)
        if options is not None:
            self._reconfiguration.change_options(entry, options)
        elif self._is_unloaded_there(entry):
            self._reconfiguration.load_again(entry.name)
        with self._in_line(entry, Wish(holds=False)) as place:
            place.raise_refusal()  # that it can never fit is known at once
            yield place

    async def load(self, name: str, *, options: Mapping[str, Any] | None = None) -> ModelStatus:
        """As `loading`, without reports."""
        async with self.loading(name, options=options) as news:
            async for _ in news:
                pass
        return self.status(name)

    async def unload(self, name: str, *, force: bool = False) -> UnloadReport:
        """Unload a model and wait until its memory is free.

        Those in line for it are refused. Running answers end first; `force` aborts them. A caller
        that leaves meanwhile doesn't call it back. A model that can't be used isn't loaded: nothing
        is left to do. Raises ModelNotFound.
        """
        entry: ModelEntry | None = None
        with suppress(ModelUnavailable):
            entry = (await self.find(name)).base
        going = [one.name for one in self._names.loaded(entry)] if entry is not None else []
        started, was_loaded = self._clock.now(), not self._moves.residents.keys().isdisjoint(going)
        aborted = 0
        for one in going:
            self._planner.forget_options(one)
            self._orders.carry_out(self._scheduler.unload_asked(self._clock.now(), one), one)
            aborted += self._places.abort(one) if force else 0
        for one in going:
            await self._orders.departed(one)
        if entry is not None and (remote := entry.files.elsewhere) is not None:
            with translated():
                was_loaded |= await self.fleet.unload(remote, force=force)
        return UnloadReport(
            name=name if entry is None else entry.name,
            was_loaded=was_loaded,
            aborted=aborted,
            seconds=self._clock.now() - started,
            promised=self._scheduler.room.promised(),
            held=await to_thread.run_sync(self._gauge.held),
        )

    async def pin(self, name: str, *, pinned: bool) -> None:
        """Never evicted and never idle, or as any other, whatever the configuration says; until the
        server is started again. Raises ModelNotFound.
        """
        entries = self._names.loaded(await self.find(name))
        for entry in entries:
            self._planner.pin(entry.name, pinned=pinned)
        self._orders.describe(entries)

    @property
    def fleet(self) -> Fleet:
        """The servers elsewhere."""
        return self._library.fleet

    @property
    def server(self) -> str:
        """This server's id, by which other Roundhouses know it."""
        return self._library.roster.server

    @property
    def budgets(self) -> Bytes:
        """Bytes that models may take, per device; the cards first."""
        budgets = without_turns(self._scheduler.room.budgets)
        return dict(sorted(budgets.items(), key=lambda budget: budget[0] == CPU))

    def default_name(self) -> str | None:
        """The model for requests that name none, by its id or an alias."""
        return self._library.default_name()

    def resolve(self, name: str, access: Access = ADMIN) -> ModelEntry:
        """The model called `name`; "default" is the configured default. A request that names none
        means "": the model in use, else the default.

        Raises ModelNotFound with the nearest names, ModelUnavailable where its files are unusable.
        A model that `access` doesn't allow is none.
        """
        in_use = None if name else self.in_use(access)
        return self._names.resolve(name, access) if in_use is None else in_use

    def in_use(self, access: Access = ADMIN, task: Task = "generate") -> ModelEntry | None:
        """Of the loaded models that `access` allows, for `task`: one that answers now, else the one
        idle for the shortest time.
        """
        there = self.overview.statuses(only=self._names.present)
        usable = (status for status in there if status.state == "loaded" and status.task == task)
        known = self._names.entries()
        present = (self._names.present.get(status.id) for status in usable)  # a preset is not
        models = (known.get(one.replica_of, one) for one in present if one is not None)
        return next((one for one in models if access.allows(one.name)), None)

    async def find(self, name: str, access: Access = ADMIN) -> ModelEntry:
        """As `resolve`, but the folders are scanned first for what is not known, or could not be
        used. Raises ModelNotFound also where `access` doesn't reach, ShuttingDown at the end.
        """
        if self.is_closing:
            raise ShuttingDown("the server is stopping")
        in_use = None if name else self.in_use(access)
        return await self._names.find(name, access) if in_use is None else in_use

    def named(self, name: str, access: Access = ADMIN) -> str:
        """What a request that names `name` is answered by: that, or "", which any model may be,
        where no model is called so and `unknown_models` wants an answer all the same.
        """
        if not name or self._config.unknown_models == "refuse":
            return name
        try:
            self.resolve(name, access)
        except ModelNotFound:
            self._names.scan_soon()  # not waited for: a client sends that name each time
            return ""
        except GatewayError:
            pass  # it is there
        return name

    async def forget_measurements(self, name: str | None = None) -> tuple[str, ...]:
        """Forget the measured memory of a model, or of all, over restarts too: the next load is
        planned by its estimate and measured anew. Returns whose measurement was known.

        Raises ModelNotFound.
        """
        entries = self._library.entries()
        if name is not None:
            entries = self._names.loaded(await self.find(name))
        known = self._planner.forget_measurements(entries)
        await to_thread.run_sync(self._history.save)
        return known

    async def refresh(self) -> None:
        """See `ModelNames.refresh`."""
        await self._names.refresh()

    def statuses(self, only: Collection[str] | None = None) -> tuple[ModelStatus, ...]:
        """All models, or those that `only` names, as they are now, in the order of `in_order`.
        Never waits: changed folders are seen by the next call.
        """
        if not self.is_closing and self._library.is_stale():
            self._names.scan_soon()
        return self.overview.statuses(only)

    def status(self, name: str, access: Access = ADMIN) -> ModelStatus:
        """One model as it is now. Raises as `resolve`."""
        return self.overview.status(self.resolve(name, access))

    async def _as_on_disk(self, entry: ModelEntry) -> ModelEntry:
        """Its files are checked before each use. Raises ModelUnavailable where they can't be
        loaded.
        """
        if await self._moves.are_files_changed(entry.name):
            return await self._reconfiguration.reread(entry)
        if self._scheduler.phase(entry.name) == "absent":
            try:
                await self._moves.asked(entry.name, partial(check_files, entry))
            except LoadFailed as error:
                text = f"{entry.name} can't be loaded: {error}"
                raise ModelUnavailable(text, param="model") from error
        return entry

    def _is_unloaded_there(self, entry: ModelEntry) -> bool:
        """Whether it takes requests here, but the Roundhouse that runs it would have to load it
        first.
        """
        remote = entry.files.elsewhere
        if remote is None or self._scheduler.phase(entry.name) != "loaded":
            return False
        standing = self.fleet.standing(remote)
        return standing is not None and standing.state in ("unloaded", "failed")

    @contextmanager
    def _in_line(self, entry: ModelEntry, wish: Wish) -> Iterator[Place]:
        """A place in line that is given up, or the lease it became given back, without an await."""
        record = self._scheduler.residency(entry.name)
        # Where one is free at once nothing is planned.
        model = record.model if record and record.is_open else self._planner.model(entry)
        place = self._places.take(entry.name, self._clock.now(), wish)
        try:
            orders = self._scheduler.requested(place.ticket.arrived, place.ticket, model)
            self._orders.carry_out(orders, entry.name)
            yield place
        finally:
            del self._places[place.ticket.number]
            ends = self._scheduler.released if place.answered else self._scheduler.cancelled
            if place.is_lease or not place.answered:
                orders = ends(self._clock.now(), entry.name, place.ticket.number)
                self._orders.carry_out(orders, entry.name)
            self._orders.ended.give()

    def _changed(self, name: str) -> None:
        """A model is in another state, or its line has moved."""
        self.watchers.note(name)
        record = self._scheduler.residency(name)
        if record is not None and record.model.apart:
            self.watchers.note(record.model.apart)
            self._replicas.changed(name)

    def _happened(self, event: ModelEvent) -> None:
        if isinstance(event, ModelUnloaded):
            self.kept.settle()
            self._replicas.left(event.model, event.why)
        if isinstance(event, ModelLoaded):
            self._replicas.fill()
        self._watch(event)

    def _aborted(self, name: str) -> GatewayError:
        if self.is_closing:
            return ShuttingDown("the server is stopping")
        return ModelUnavailable(f"{name} was unloaded by an administrator", param="model")

    def preload_obstacle(self) -> str | None:
        """Why a model that is to be loaded at the start never could be; None: all could."""
        fits = (self.overview.fit(entry) for entry in self._library.entries() if entry.preload)
        return next((fit.why for fit in fits if fit.verdict == "too_large"), None)

    def _load_soon(self, name: str) -> None:
        if not self.is_closing:
            self._tasks.start_soon(self.supervisor.attempt, "preload", self._preload, name)

    async def _preload(self, name: str) -> None:
        try:
            await self.load(name)
        except GatewayError as error:
            log.warning("preload failed", model=name, reason=error.message)


async def _waited(
    place: Place,
    on_wait: Callable[[Waiting], None] | None,
    moves: Callable[[], bool] = lambda: False,
) -> bool:
    """Report the wait until it ends; whether it was granted, and not given up where `moves` says
    that another place is better.
    """
    told: Waiting | None = None
    async for waiting in place:
        if moves():
            return False
        if on_wait is not None and waiting != told:
            on_wait(waiting)
        told = waiting
    return True


def _cluster(address: str, config: Config) -> ClusterNodes:
    """Raises ConfigError where it can't be used."""
    try:
        return ClusterNodes(address, tls=config.cluster_tls)
    except ClusterFailed as error:
        raise ConfigError("the configuration", "$.cluster", str(error)) from error
