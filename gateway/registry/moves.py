"""Carries out loads and unloads, and holds what is in memory or on its way. It decides nothing.

Each move runs in its own task of the registry's group and ends in exactly one `Outcome`.

Plans loads: each model's options and the memory it will take; and the loaders.
"""

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

import anyio
import msgspec
import structlog
from anyio import to_thread
from anyio.abc import TaskGroup
from msgspec.structs import replace

from backends.catalog import (
    BACKENDS,
    CPU,
    Cards,
    Catalog,
    Fitted,
    ModelFiles,
    Placement,
    Room,
    divided,
)
from backends.cluster.nodes import ClusterNodes, NodeLost
from backends.container import PortContainer
from backends.errors import BackendError, BackendMissing, LoadFailed, OutOfMemory
from backends.protocol import MemoryNeed, ModelInfo, Parkable, Progress, Report
from backends.remote import Container
from backends.upstream.fleet import Fleet
from backends.worker import node
from backends.worker.node import NodePort
from backends.worker.port import Workers
from config.check import convert
from config.engines import EngineOptions, Host
from config.errors import ConfigError, Source
from config.models import over
from config.nodes import HERE
from gateway.errors import InvalidRequest, ModelUnavailable
from gateway.registry.gauges import Gauge
from gateway.registry.library import FileIdentity, ModelEntry, identity
from gateway.registry.line import Clock, Place
from gateway.registry.nodes import (
    HERE as THIS_MACHINE,
)
from gateway.registry.nodes import (
    NodeOffer,
    bare,
    fewest,
    in_order,
    named,
    node_of,
)
from gateway.registry.record import (
    Bytes,
    History,
    Load,
    Measurement,
    Model,
    Smaller,
    Unload,
    WhyUnload,
    arithmetic,
    placed,
    shares,
)
from gateway.registry.status import Lease

# ------------------------------------------------------------------------------------------- loader
# How models get into memory: through their backends' modules, which are imported late.
#
# It chooses no model and no moment.


class Loader(Protocol):
    """What the registry wants of the backends."""

    def estimate(self, files: ModelFiles, options: EngineOptions) -> MemoryNeed:
        """What the model will take, by its headers. Raises BackendError."""
        ...

    def placements(
        self, files: ModelFiles, options: EngineOptions, cards: Cards
    ) -> Sequence[Placement]:
        """See `backends.catalog.FilesModule.placements`."""
        ...

    def placed(
        self, files: ModelFiles, options: EngineOptions, placement: Placement, cards: Cards
    ) -> EngineOptions:
        """See `backends.catalog.FilesModule.placed`."""
        ...

    def fit(
        self, files: ModelFiles, options: EngineOptions, cards: Cards, room: Room
    ) -> Fitted | None:
        """See `backends.catalog.FilesModule.fit`."""
        ...

    def is_experimental(self, files: ModelFiles) -> bool:
        """Whether it runs on an engine that no test of this project ran anywhere."""
        ...

    async def load(self, files: ModelFiles, options: EngineOptions, report: Report) -> Container:
        """Load off the event loop. Raises LoadFailed; leaves nothing behind then, or cancelled."""
        ...

    def end(self) -> None:
        """No more is loaded, and nothing is in memory."""
        ...


NOTHING = MemoryNeed(weights=0, cache=0, engine=0)  # of this machine's


class CatalogLoader:
    """Each model with its own backend, as the catalog has them."""

    def __init__(self, catalog: Catalog = BACKENDS) -> None:
        self._catalog = catalog
        self._workers = Workers()

    def estimate(self, files: ModelFiles, options: EngineOptions) -> MemoryNeed:
        if files.node is not None:
            return NOTHING
        return self._catalog[files.backend].files.estimate(files, options)

    def placements(
        self, files: ModelFiles, options: EngineOptions, cards: Cards
    ) -> Sequence[Placement]:
        if files.node is not None:
            return ({},)
        return self._catalog[files.backend].files.placements(files, options, cards)

    def placed(
        self, files: ModelFiles, options: EngineOptions, placement: Placement, cards: Cards
    ) -> EngineOptions:
        if files.node is not None:
            return options
        return self._catalog[files.backend].files.placed(options, placement, cards)

    def fit(
        self, files: ModelFiles, options: EngineOptions, cards: Cards, room: Room
    ) -> Fitted | None:
        if files.node is not None:
            return None
        return self._catalog[files.backend].files.fit(files, options, cards, room)

    def is_experimental(self, files: ModelFiles) -> bool:
        installation = self._catalog[files.backend].files.INSTALLATION
        return installation is not None and not any(way.tried for way in installation.ways.values())

    def end(self) -> None:
        """Nothing is left that could start a worker."""
        self._workers.close()

    async def load(self, files: ModelFiles, options: EngineOptions, report: Report) -> Container:
        backend = self._catalog[files.backend]
        if files.node is not None:
            there = node.load if files.task == "generate" else node.load_encoder
            return await there(backend, files, options, report)
        if options.host not in (None, *HERE):  # of an administrator's load
            raise LoadFailed(f"host: {options.host}: only the configuration can name a node")
        is_command = files.remote is not None  # a process of its own
        if options.host == "worker" and not is_command:
            own = self._workers
            beside = own.load if files.task == "generate" else own.load_encoder
            return await beside(backend, files, options, report)
        try:  # the first import of an engine takes seconds
            container = await to_thread.run_sync(lambda: backend.container)
        except ImportError as error:
            raise BackendMissing(f"{backend.name} can't be used here: {error}") from error
        load = container.load if files.task == "generate" else container.load_encoder
        return await load(files, options, report)


class FleetLoader:
    """`local` loads what lies here; for another server's model, `fleet` checks that a replica is
    up, and a Roundhouse loads it there. A `Loader`.
    """

    def __init__(self, local: Loader, fleet: Fleet) -> None:
        self._local = local
        self._fleet = fleet

    def estimate(self, files: ModelFiles, options: EngineOptions) -> MemoryNeed:
        return NOTHING if files.elsewhere else self._local.estimate(files, options)

    def placements(
        self, files: ModelFiles, options: EngineOptions, cards: Cards
    ) -> Sequence[Placement]:
        return ({},) if files.elsewhere else self._local.placements(files, options, cards)

    def placed(
        self, files: ModelFiles, options: EngineOptions, placement: Placement, cards: Cards
    ) -> EngineOptions:
        return options if files.elsewhere else self._local.placed(files, options, placement, cards)

    def fit(
        self, files: ModelFiles, options: EngineOptions, cards: Cards, room: Room
    ) -> Fitted | None:
        return None if files.elsewhere else self._local.fit(files, options, cards, room)

    def is_experimental(self, files: ModelFiles) -> bool:
        return files.elsewhere is None and self._local.is_experimental(files)

    def end(self) -> None:
        self._local.end()

    async def load(self, files: ModelFiles, options: EngineOptions, report: Report) -> Container:
        if files.elsewhere is not None:
            return await self._fleet.load(files.elsewhere, report)
        return await self._local.load(files, options, report)


STEPS = 8  # in which a model gives up cards
CORRECTIONS = 3  # times that a placement is sought again, where real bytes don't fit the room
REMOTE_BACKOFF = 1.0  # seconds after a load that only checked the upstream
SLOTS_PER_STREAM = 2  # leases per job that an engine computes at once: the next one stands ready
Obstacle: TypeAlias = Callable[[str, Sequence[Bytes]], str | None]
READING_SPEED = 1e9  # bytes a second; a guess at a load's time before the first was measured


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A model as it is to be loaded."""

    entry: ModelEntry
    options: EngineOptions  # the entry's own, or what an administrator asked for
    estimate: MemoryNeed
    need: MemoryNeed  # the estimate, or what an earlier load took
    measured: bool
    placements: tuple[Placement, ...]  # the ways in which it can lie, the best first
    load_seconds: float  # of the last load, or a guess
    fitted: Fitted | None = None  # where something of it gave way
    smaller: tuple["LoadPlan", ...] = ()  # in which more of it gives way, the larger first
    room: Bytes = {}  # what it was fitted into

    @property
    def loads(self) -> EngineOptions:
        """The options that it is loaded with."""
        return self.options if self.fitted is None else self.fitted.options

    @property
    def speed(self) -> float:
        """An estimate, as a part of what it has where nothing gives way."""
        return 1.0 if self.fitted is None else self.fitted.speed

    @property
    def note(self) -> str:
        """What gave way; "" where nothing did."""
        return "" if self.fitted is None else self.fitted.note

    @property
    def needs(self) -> tuple[Bytes, ...]:
        """`need` per device, in each of these ways."""
        return tuple(shares(self.need, placement) for placement in self.placements)

    def at(self, devices: Bytes) -> "LoadPlan":
        """As it lies on `devices`, and in no other way."""
        for plan in self.smaller:
            if devices not in self.needs and devices in plan.needs:
                return plan.at(devices)
        there = [
            placement
            for placement in self.placements
            if shares(self.need, placement).keys() == devices.keys()
        ]
        return msgspec.structs.replace(self, placements=tuple(there[:1]) or self.placements[:1])


class LoadPlanner:
    """`cards`: this machine's, `bandwidths` theirs and main memory's. `obstacle`: why a model can
    have none of the rooms that it needs one of, or None. `room`: what a model called so could have
    of these devices, if all went that may.
    """

    def __init__(
        self,
        loader: Loader,
        history: History,
        cards: Cards,
        obstacle: Obstacle,
        room: Callable[[str, Iterable[str]], Bytes],
        bandwidths: Mapping[str, float],
        cluster: ClusterNodes | None = None,
    ) -> None:
        self._loader = loader
        self._cluster = cluster
        self._needs: dict[str, tuple[LoadPlan, tuple[Bytes, ...]]] = {}  # by model: many, so once
        self._history = history
        self._cards = cards
        self._obstacle = obstacle
        self._attainable = room
        self._bandwidths = bandwidths
        self._present: set[str] = set()  # in memory, as they were planned
        self._told: dict[str, LoadPlan] = {}  # as the scheduler has them
        self._options: dict[str, EngineOptions] = {}
        self._plan: dict[str, LoadPlan] = {}
        self._parked: dict[str, Bytes] = {}  # what models held when they were parked last
        self._behind: dict[str, tuple[tuple[Bytes, ...], tuple[Bytes, ...]]] = {}
        self._pinned: dict[str, bool] = {}  # in place of what entries say

    @property
    def cards(self) -> Cards:
        """This machine's."""
        return self._cards

    def plan(self, entry: ModelEntry) -> LoadPlan:
        """What a load of `entry` takes now. Raises ModelUnavailable where it can't be estimated."""
        options = self.options(entry)
        known = self._plan.get(entry.name)
        if (
            known is None
            or known.entry is not entry
            or known.options != options
            or (entry.name not in self._present and known.room != self._room(entry.name))
        ):
            known = self._plan[entry.name] = self._estimated(entry, options)
        if self._is_refused_by_measurement(known):
            self.forget_measurements([entry])
        return self._plan[entry.name]

    def _room(self, name: str) -> Bytes:
        return self._attainable(name, (CPU, *self._cards))

    def _is_current(self, plan: LoadPlan, entry: ModelEntry, options: EngineOptions) -> bool:
        """Of what is in memory, the room that it was fitted into counts no more."""
        if plan.entry is not entry or plan.options != options:
            return False
        return entry.name in self._present or plan.room == self._room(entry.name)

    def _is_refused_by_measurement(self, plan: LoadPlan) -> bool:
        """Whether only an earlier measurement keeps it from being loaded."""
        return (
            plan.measured
            and self._obstacle(plan.entry.name, self._needed(plan)) is not None
            and self._obstacle(plan.entry.name, self._unmeasured(plan).needs) is None
        )

    def _unmeasured(self, plan: LoadPlan) -> LoadPlan:
        """By its estimate alone, so that its next load is measured again."""
        return msgspec.structs.replace(plan, need=plan.estimate, measured=False)

    def forget_measurements(self, entries: Iterable[ModelEntry]) -> tuple[str, ...]:
        """Forget the measurements of `entries`; returns whose were known."""
        known = tuple(entry for entry in entries if self._history.forget_sizes(entry.files.path))
        for entry in known:
            if (plan := self._plan.get(entry.name)) is not None:
                self._plan[entry.name] = self._unmeasured(plan)
        return tuple(entry.name for entry in known)

    def known(self, entry: ModelEntry) -> LoadPlan | None:
        """As `plan`, but None where it can't be estimated."""
        try:
            return self.plan(entry)
        except ModelUnavailable:
            return None

    def planned(self, name: str) -> LoadPlan:
        """The plan that was last made known to the scheduler under this name."""
        return self._told.get(name) or self._plan[name]

    def model(self, entry: ModelEntry) -> Model:
        """`entry` as the scheduler needs it. Raises as `plan`."""
        plan = self._told[entry.name] = self.plan(entry)
        need, *_ = needs = self._needed(plan)
        return Model(
            name=entry.name,
            need=need,
            others=self._others(entry.name, needs),
            copying=self._copying(entry),
            smaller=tuple(Smaller(one.needs[0], one.speed) for one in plan.smaller),
            speed=plan.speed,
            load_seconds=plan.load_seconds,
            slots=plan.options.max_concurrent * (1 if entry.files.remote else SLOTS_PER_STREAM),
            backoff=REMOTE_BACKOFF if entry.files.elsewhere else None,
            pinned=self._pinned.get(entry.name, entry.pinned),
            parks=self._parks(entry, plan),
            ttl=entry.ttl,
        )

    def _needed(self, plan: LoadPlan) -> tuple[Bytes, ...]:
        """The needs of `plan`, the same objects each time."""
        known = self._needs.get(plan.entry.name)
        if known is None or known[0] is not plan:
            known = self._needs[plan.entry.name] = plan, plan.needs
        return known[1]

    def _others(self, name: str, needs: tuple[Bytes, ...]) -> tuple[Bytes, ...]:
        """All but the first, the same object each time."""
        known = self._behind.get(name)
        if known is None or known[0] is not needs:
            known = self._behind[name] = needs, needs[1:]
        return known[1]

    def _copying(self, entry: ModelEntry) -> Mapping[str, float]:
        """Seconds until nodes have the files that they lack."""
        if self._cluster is None or not _may_leave(entry, self.options(entry)):
            return {}
        seconds = {node: self._cluster.copying(node, entry.files) for node in self._cluster.nodes}
        return {node: copying for node, copying in seconds.items() if copying}

    def nodes_changed(self) -> None:
        """Nodes came or went: models may lie elsewhere now."""
        for name, plan in self._plan.items():
            if _may_leave(plan.entry, plan.options):
                places = self._placements(plan.entry, plan.options, plan.need)
                self._plan[name] = replace(plan, placements=places)

    def _parks(self, entry: ModelEntry, plan: LoadPlan) -> Bytes | None:
        """What it will hold while it is parked; as much as it does now, where nobody says."""
        if entry.files.parked_bytes is None:
            return None
        size = entry.files.parked_bytes or sum(plan.needs[0].values())
        return self._parked.get(entry.name, {CPU: size})

    def was_parked(self, name: str, held: Bytes) -> None:
        """It will be planned with that the next time."""
        self._parked[name] = held

    def pin(self, name: str, *, pinned: bool) -> None:
        """Whatever its entry says, from now on."""
        self._pinned[name] = pinned

    def last_load(self, plan: LoadPlan) -> float | None:
        """Seconds that the last load of this model with these options took."""
        last = self._history.get(plan.entry.files, plan.loads)
        return last.load_seconds if last else None

    def options(self, entry: ModelEntry) -> EngineOptions:
        """The options in force."""
        return self._options.get(entry.name, entry.options)

    def proposed(self, entry: ModelEntry, changes: Mapping[str, Any]) -> LoadPlan:
        """The plan with `changes` over the entry's options; nothing is in force yet.

        Raises InvalidRequest, naming the option at fault, and as `plan`.
        """
        kind = type(entry.options)
        try:
            new = convert(dict(changes), kind, Source(entry.name), path="$.options")
        except ConfigError as error:
            field = error.path.removeprefix("$.options").lstrip(".")
            text = f"{entry.files.backend}: {field}: {error.problem}"
            raise InvalidRequest(text, param=field or "options") from None
        values = {
            name: over(getattr(entry.options, name), getattr(new, name), value)
            for name, value in changes.items()
        }
        return self._estimated(entry, msgspec.structs.replace(entry.options, **values))

    def adopt(self, plan: LoadPlan) -> None:
        """Put the options of a proposed plan in force."""
        self._options[plan.entry.name] = plan.options
        self._plan[plan.entry.name] = plan

    def forget_options(self, name: str) -> None:
        """Back to the entry's own."""
        self._options.pop(name, None)

    def ordered(self, plan: LoadPlan) -> EngineOptions:
        """The options that have the model lie in the first of the plan's ways, in the process that
        is best there.
        """
        files = plan.entry.files
        if (node := node_of(plan.placements[0])) != THIS_MACHINE:
            return self._ordered_at(node, plan)
        options = replace(plan.loads, host=self._host(plan))
        return self._loader.placed(files, options, plan.placements[0], self._cards)

    def _ordered_at(self, node: str, plan: LoadPlan) -> EngineOptions:
        """As `ordered`, on another node: in a worker there."""
        there = None if self._cluster is None else self._cluster.nodes.get(node)
        options = replace(plan.options, host="worker")
        if there is None:  # it has just left, as its load will say
            return options
        placement = bare(plan.placements[0])
        return self._loader.placed(plan.entry.files, options, placement, there.cards)

    def _host(self, plan: LoadPlan) -> Host | None:
        """`auto`: a worker where models take turns on a card, whose memory an unload in the process
        doesn't return in full (CUDA's context stays), and where the engine may crash; else the
        process, which answers sooner.
        """
        if plan.options.host != "auto":
            return plan.options.host
        cards = plan.placements[0].keys() - {CPU}
        others = (one for name, one in self._plan.items() if name != plan.entry.name)
        ways = (way for other in others for way in other.placements)
        takes_turns = any(cards & way.keys() for way in ways)
        risky = takes_turns or self._loader.is_experimental(plan.entry.files)
        return "worker" if risky else "process"

    def left(self, name: str) -> None:
        """It was unloaded, and its processes were measured once more before."""
        self._present.discard(name)
        if (known := self._plan.get(name)) is not None:
            last = self._history.get(known.entry.files, known.loads)
            if last is not None and last.devices:
                self._plan[name] = lying(known, last.devices)

    def arrived(self, plan: LoadPlan, measured: Measurement) -> Bytes:
        """What a model just loaded holds, in the one way of `plan`. Its next load is planned with
        these figures.
        """
        held = measured.devices
        loaded = msgspec.structs.replace(
            plan,
            need=plan.need if measured.size is None else measured.corrected(plan.estimate),
            measured=plan.measured or measured.size is not None,
            load_seconds=measured.load_seconds,
        )
        self._present.add(plan.entry.name)
        if held is not None:
            self._plan[plan.entry.name] = self._told[plan.entry.name] = lying(loaded, held)
            return held
        everywhere = loaded
        if plan.fitted is None:
            placements = self._placements(plan.entry, plan.options, loaded.need)
            everywhere = msgspec.structs.replace(loaded, placements=placements)
        self._plan[plan.entry.name] = self._told[plan.entry.name] = everywhere
        return loaded.needs[0]

    def _estimated(self, entry: ModelEntry, options: EngineOptions) -> LoadPlan:
        room = self._room(entry.name)
        try:
            plan = self._fitting(entry, options, room)
            return msgspec.structs.replace(plan, smaller=tuple(self._ladder(plan)), room=room)
        except (BackendError, OSError, ValueError) as error:
            raise ModelUnavailable(f"{entry.name}: {error}", param="model") from error

    def _fitting(self, entry: ModelEntry, options: EngineOptions, room: Bytes) -> LoadPlan:
        """The plan that takes no more than `room`, if there is one; where an earlier load took more
        than was estimated, for as much less room.
        """
        plan = self._plan_of(entry, options, self._fit(entry, options, room))
        free = room
        for _ in range(CORRECTIONS):
            if plan.fitted is None or covered(plan.needs[0], room):
                break
            part = min(0.99, plan.estimate.loaded / max(1, plan.need.loaded))
            free = {device: int(size * part) for device, size in free.items()}
            plan = self._plan_of(entry, options, self._fit(entry, options, free))
        return plan

    def _fit(self, entry: ModelEntry, options: EngineOptions, room: Bytes) -> Fitted | None:
        if self._cluster is not None and _may_leave(entry, options):
            return None  # one that may lie on several machines is not cut for this one
        there = Room(free=room, bandwidths=self._bandwidths)
        return self._loader.fit(entry.files, options, self._cards, there)

    def _ladder(self, plan: LoadPlan) -> Iterator[LoadPlan]:
        """Ways in which it takes ever less of cards, down to none."""
        need, last = plan.needs[0], plan
        room = self._room(plan.entry.name)
        if need.keys() <= {CPU}:
            return
        for step in range(STEPS - 1, -1, -1):
            parts = {card: need.get(card, 0) * step // STEPS for card in room if card != CPU}
            free = {**room, **parts}
            fitted = self._fit(plan.entry, plan.options, free)
            if fitted is None:
                continue
            found = self._plan_of(plan.entry, plan.options, fitted)
            if found.needs[0] != last.needs[0] and found.speed < plan.speed:
                last = found
                yield found

    def _plan_of(
        self, entry: ModelEntry, options: EngineOptions, fitted: Fitted | None
    ) -> LoadPlan:
        loads = options if fitted is None else fitted.options
        estimate = self._loader.estimate(entry.files, options) if fitted is None else fitted.need
        last = self._history.get(entry.files, loads)
        need = last.corrected(estimate) if last else estimate
        ways = self._placements(entry, options, need) if fitted is None else (fitted.placement,)
        plan = LoadPlan(
            entry=entry,
            options=options,
            estimate=estimate,
            need=need,
            measured=last is not None and last.size is not None,
            placements=ways,
            load_seconds=last.load_seconds if last else entry.files.size_bytes / READING_SPEED,
            fitted=fitted,
        )
        return lying(plan, last.devices) if last and last.devices else plan

    def _placements(
        self, entry: ModelEntry, options: EngineOptions, need: MemoryNeed
    ) -> tuple[Placement, ...]:
        """The ways to lie here, and then those on other nodes."""
        own = tuple(self._loader.placements(entry.files, options, self._cards))
        if self._cluster is None or not _may_leave(entry, options):
            return own
        there = self._cluster
        offers = [
            NodeOffer(name=name, cards=one.cards, copying=there.copying(name, entry.files))
            for name, one in there.nodes.items()
            if not one.draining
        ]
        ways = (
            named(offer.name, way)
            for offer in in_order(entry.name, offers)
            for way in fewest(
                self._loader.placements(entry.files, options, offer.cards), need.loaded, offer.cards
            )
        )
        return (*own, *ways)


PATHS = ("adapters", "draft_model", "mmproj")  # options that name files of this machine


def _may_leave(entry: ModelEntry, options: EngineOptions) -> bool:
    """Whether a model may lie on another node: an engine here or there writes its text, and its
    options name no file besides its own, and no process.
    """
    files = entry.files
    return (
        files.task == "generate"
        and files.remote is None
        and files.node is None
        and options.host in (None, "auto", "worker")
        and not any(getattr(options, name, None) for name in PATHS)
    )


def covered(need: Bytes, room: Bytes) -> bool:
    """Whether `room` has that much on every device."""
    return all(size <= room.get(device, 0) for device, size in need.items())


def lying(plan: LoadPlan, devices: Bytes) -> LoadPlan:
    """`plan` with what processes of the model's own were measured to hold. That is theirs for
    certain, so no estimate bounds it.
    """
    size = sum(devices.values())
    return msgspec.structs.replace(
        plan,
        need=MemoryNeed(weights=0, cache=0, engine=size),
        placements=(divided([*devices.values()], devices) if size else {},),
        measured=True,
    )


log = structlog.get_logger(__name__)


class Arrived(msgspec.Struct, frozen=True, kw_only=True):
    """The model is in memory. `measured`: what that took."""

    name: str
    measured: Measurement


class Broken(msgspec.Struct, frozen=True, kw_only=True):
    """A model in memory can't be used any more. Without `rest`: since its node is gone."""

    name: str
    reason: str
    rest: bool = True


class LoadFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The load failed; `memory`: because memory ran out; `moved`: the node that it was to lie on is
    gone.
    """

    name: str
    seconds: float
    reason: str
    memory: bool
    free: Bytes = {}  # of each device then, where memory ran out
    moved: bool = False


class Gone(msgspec.Struct, frozen=True, kw_only=True):
    """Its memory is free. `why` is None for a load that was cancelled."""

    name: str
    seconds: float
    why: WhyUnload | None


class Parked(msgspec.Struct, frozen=True, kw_only=True):
    """It gave back its device's memory, and holds that."""

    name: str
    seconds: float
    why: WhyUnload
    held: Bytes


class Progressed(msgspec.Struct, frozen=True):
    """A load got further."""

    name: str
    progress: Progress


Outcome: TypeAlias = Arrived | Broken | LoadFailure | Gone | Parked | Progressed


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
        cluster: ClusterNodes | None = None,
    ) -> None:
        self._tasks = tasks
        self._cluster = cluster
        self._loader = loader
        self._gauge = gauge
        self._history = history
        self._clock = clock
        self._notify = notify
        self.loading: dict[str, Loading] = {}
        self.residents: dict[str, Resident] = {}
        self._parked: dict[str, Resident] = {}
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
        for move in (self.loading.get(entry.name), self.residents.get(entry.name)):
            if isinstance(move, Loading):
                move.plan = replace(move.plan, entry=entry)
            elif move is not None:
                plan = replace(move.plan, entry=entry)
                self.residents[entry.name] = replace(move, plan=plan)

    def cancel(self, name: str) -> None:
        """Stop a load. It ends in Gone."""
        self.loading[name].scope.cancel()

    def unload(self, order: Unload) -> None:
        """Begin to close a container that is not in use."""
        parked = self._parked.pop(order.model, None)
        resident = parked or self.residents.pop(order.model)
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
        return bool(self.residents or self._parked or self.loading or self._closing)

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
            self._watch(order.model)
            await to_thread.run_sync(self._history.save)

    def _watch(self, name: str) -> None:
        """Be told when the model breaks, in use or not."""
        if (resident := self.residents.get(name)) is None:  # it had to leave at once
            return
        container = resident.container

        def tell() -> None:
            still = self.residents.get(name) or self._parked.get(name)
            reason = container.failure
            if still is not None and still.container is container and reason is not None:
                lost = self._cluster is not None and is_unreached(container)
                if lost and self._cluster is not None:
                    self._cluster.lost(node_of(still.plan.placements[0]))
                self._notify(Broken(name=name, reason=reason, rest=not lost))

        container.on_failure(tell)
        tell()

    async def _bring(
        self,
        order: Load,
        loading: Loading,
        options: EngineOptions,
        is_alone: Callable[[], bool],
    ) -> Outcome:
        """Run the loader and measure it."""
        plan, name = loading.plan, order.model
        if plan.fitted is not None:
            log.info("model gives way", model=name, how=plan.note, why=list(plan.fitted.reasons))

        def report(progress: Progress) -> None:
            loading.progress = progress
            self._notify(Progressed(name, progress))

        before = await to_thread.run_sync(self._gauge.used)
        try:
            container = await self._woken(name)
            if container is None:
                container = await self._brought(node_of(order.need), plan, options, report)
        except OutOfMemory as error:
            free = await to_thread.run_sync(self._gauge.available)
            return replace(self._failed(loading, name, str(error), memory=True), free=free)
        except LoadFailed as error:
            failed = self._failed(loading, name, str(error), memory=False)
            return replace(failed, moved=isinstance(error, NodeLost))
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
        measurement = replace(
            _measured(
                _info_at(node_of(order.need), container.info),
                grown,
                order.need,
                by_command=bool(plan.entry.files.remote),
            ),
            load_seconds=arrived - loading.started,
        )
        layers = _info_at(node_of(order.need), container.info).layers
        return self._arrived(order, plan, measurement, layers)

    async def _brought(
        self, at: str, plan: LoadPlan, options: EngineOptions, report: Report
    ) -> Container:
        """Loaded on a node, or here."""
        files = plan.entry.files
        if at == THIS_MACHINE:
            return await self._loader.load(files, options, report)
        if self._cluster is None:
            raise NodeLost(f"node {at} is gone")
        return await self._cluster.load(at, BACKENDS[files.backend], files, options, report)

    async def _woken(self, name: str) -> Container | None:
        """The container of a parked model; None where there is none, or it can't be woken."""
        if (parked := self._parked.pop(name, None)) is None:
            return None
        container = parked.container
        assert isinstance(container, Parkable), "it was parked"
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
        layers: Mapping[str, int],
    ) -> Arrived:
        seconds, held = measurement.load_seconds, measurement.devices
        self._history.put(plan.entry.files, plan.loads, measurement)
        sentence = arithmetic(
            plan.need,
            sum(order.free.values()),
            order.evicted,
            measured=plan.measured,
            note=plan.note,
        )
        log.info(
            "model loaded",
            model=order.model,
            seconds=round(seconds, 3),
            devices=placed(order.need if held is None else held, layers),
            memory=sentence,
        )
        return Arrived(name=order.model, measured=measurement)

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
        if order.parks and (held := await self._put_aside(order.model, resident)) is not None:
            self._parked[order.model] = resident
            self._closing.discard(order.model)
            seconds = self._clock.now() - started
            log.info("model parked", model=order.model, seconds=round(seconds, 3), held=held)
            self._notify(Parked(name=order.model, seconds=seconds, why=order.why, held=held))
            return
        with self._alone():
            await self._close(order.model, resident.container)
        held = resident.container.info.held
        if held is not None and resident.plan.entry.files.remote is not None:
            await to_thread.run_sync(self._learn, resident, held)
        self._closing.discard(order.model)
        seconds = self._clock.now() - started
        log.info("model unloaded", model=order.model, seconds=round(seconds, 3), why=order.why)
        self._notify(Gone(name=order.model, seconds=seconds, why=order.why))

    async def _put_aside(self, name: str, resident: Resident) -> Bytes | None:
        """What a model holds that is parked now; None where it couldn't be."""
        held: Bytes | None = None
        with anyio.CancelScope(shield=True):
            try:
                if isinstance(resident.container, Parkable):
                    held = await resident.container.park()
            except LoadFailed as error:
                text = "a model can't be parked: it is unloaded"
                log.warning(text, model=name, reason=str(error))
        return held

    def _learn(self, resident: Resident, held: Bytes) -> None:
        """What processes of a model's own held in the end: the next load is planned with it."""
        plan = resident.plan
        known = self._history.get(plan.entry.files, plan.loads)
        if known is not None and known.devices != held:
            size = sum(held.values())
            self._history.put(plan.entry.files, plan.loads, replace(known, size=size, devices=held))
            self._history.save()

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


def is_unreached(container: Container) -> bool:
    """Whether it broke because its node is gone."""
    port = container.port if isinstance(container, PortContainer) else None
    return isinstance(port, NodePort) and port.is_unreached


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
            return Measurement(size=max(size, counted.loaded), exact=True)
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
