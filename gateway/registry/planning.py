"""Plans loads: each model's options, the memory it will take and where it will lie."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import msgspec
from msgspec.structs import replace

from backends.contract.catalog import CPU, Cards, Fitted, Placement, Room, divided
from backends.contract.errors import BackendError
from backends.contract.protocol import MemoryNeed
from backends.places.cluster.nodes import ClusterNodes
from config.check import convert
from config.engines import EngineOptions, Host
from config.errors import ConfigError, Source
from config.models import over
from config.settings import Parking
from gateway.registry.entry import ModelEntry
from gateway.registry.history import NOTICED, History, Measurement, paced
from gateway.registry.ledger import MemoryLedger
from gateway.registry.loaders import NOTHING, Loader
from gateway.registry.memory import arithmetic, covered, shares
from gateway.registry.nodes import HERE as THIS_MACHINE
from gateway.registry.nodes import bare, fewest, in_order, named, node_of
from gateway.registry.protocol import Bytes, Evicted, Model, Smaller
from gateway.terms.errors import InvalidRequest, ModelUnavailable

SHORTEST = 256  # tokens of a context that a refusal proposes
STEPS = 8  # in which a model gives up cards
UNLIKE = 1.25  # by how much a device is read faster or slower than was estimated with
CORRECTIONS = 3  # times that a placement is sought again, where real bytes don't fit the room
REMOTE_BACKOFF = 1.0  # seconds after a load that only checked the upstream
SLOTS_PER_STREAM = 2  # leases per job that an engine computes at once: the next one stands ready
# What planning raises where files that it reads were changed or are gone.
UNREADABLE = (BackendError, OSError, ValueError)
READING_SPEED = 1e9  # bytes a second; a guess at a load's time before the first was measured


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A model as it is to be loaded."""

    entry: ModelEntry
    options: EngineOptions  # the entry's own, or what an administrator asked for
    estimate: MemoryNeed
    fitted: Fitted | None = None  # where something of it gave way
    need: MemoryNeed = NOTHING  # the estimate, or what an earlier load took
    measured: bool = False
    placements: tuple[Placement, ...] = ()  # the ways in which it can lie, the best first
    load_seconds: float = 0.0  # of the last load, or a guess
    pace: float | None = None  # steps a second that were measured as it lies
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
        """What gave way, and how fast it was then; "" where nothing did."""
        if self.fitted is None:
            return ""
        return self.fitted.note + ("" if self.pace is None else paced(self.pace))

    def arithmetic(self, free: int, evicting: Sequence[Evicted]) -> str:
        """What it needs of so many free bytes, see `memory.arithmetic`."""
        return arithmetic(self.need, free, evicting, measured=self.measured, note=self.note)

    @property
    def reads(self) -> Mapping[str, float]:
        """Bytes of each device that a token is computed with; nothing where that isn't known."""
        if self.fitted is not None:
            return self.fitted.reads
        weights, place = self.entry.files.weights, self.placements[0]
        return {} if weights is None or len(place) != 1 else dict.fromkeys(place, weights.read)

    @cached_property
    def needs(self) -> tuple[Bytes, ...]:
        """`need` per device, in each of these ways, and its turn, as if that were a device: there
        may be hundreds, so once.
        """
        return tuple({**shares(self.need, way), **self.entry.turn} for way in self.placements)

    @cached_property
    def others(self) -> tuple[Bytes, ...]:
        """All `needs` but the first, the same object each time: it is compared by that."""
        return self.needs[1:]

    def has(self, devices: Bytes) -> bool:
        """Whether this is one of the ways in which it can lie."""
        return devices in self.needs or any(plan.has(devices) for plan in self.smaller)

    def at(self, devices: Bytes) -> "LoadPlan":
        """As it lies on `devices`, and in no other way."""
        for plan in self.smaller:
            if devices not in self.needs and devices in plan.needs:
                return plan.at(devices)
        there = [
            placement
            for placement, need in zip(self.placements, self.needs, strict=True)
            if need.keys() == devices.keys()
        ]
        return replace(self, placements=tuple(there[:1]) or self.placements[:1])


class LoadPlanner(msgspec.Struct):
    """`cards`: this machine's, `bandwidths` theirs and main memory's. `room`: the ledger."""

    loader: Loader
    history: History
    cards: Cards
    room: MemoryLedger
    bandwidths: Mapping[str, float]
    cluster: ClusterNodes | None = None
    parking: Parking = "auto"
    _reading: Mapping[str, float] = {}
    _present: set[str] = set()  # in memory, as they were planned
    _hints: dict[str, tuple[LoadPlan, str]] = {}
    _told: dict[str, LoadPlan] = {}  # as the scheduler has them
    _whole: dict[str, LoadPlan] = {}  # as it had them of absent models, with all ways
    _options: dict[str, EngineOptions] = {}
    _plan: dict[str, LoadPlan] = {}
    _parked: dict[str, Bytes] = {}  # what models held when they were parked last
    _pinned: dict[str, bool] = {}  # in place of what entries say

    def __post_init__(self) -> None:
        self._reading = self._read_speeds()

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
        return self.room.attainable(name, (CPU, *self.cards))

    def _is_refused_by_measurement(self, plan: LoadPlan) -> bool:
        """Whether only an earlier measurement keeps it from being loaded."""
        name, estimated = plan.entry.name, replace(plan, need=plan.estimate)
        return (
            plan.measured
            and self.room.obstacle(name, plan.needs) is not None
            and self.room.obstacle(name, estimated.needs) is None
        )

    def forget_measurements(self, entries: Iterable[ModelEntry]) -> tuple[str, ...]:
        """Forget the measurements of `entries`; returns whose were known."""
        known = tuple(entry for entry in entries if self.history.forget_sizes(entry.files))
        for entry in known:
            if (plan := self._plan.get(entry.name)) is not None:
                self._plan[entry.name] = self._informed(plan)
        return tuple(entry.name for entry in known)

    def known(self, entry: ModelEntry) -> LoadPlan | None:
        """As `plan`, but None where it can't be estimated."""
        with suppress(ModelUnavailable):
            return self.plan(entry)
        return None

    def planned(self, name: str, need: Bytes) -> LoadPlan:
        """The plan of the load that the scheduler ordered under this name: of those last made known
        to it, the one that has this way.
        """
        known = [self._told.get(name), self._whole.get(name), self._plan.get(name)]
        plans = [plan for plan in known if plan is not None]
        having = (plan for plan in plans if plan.has(need))
        return next(having, plans[0]).at(need)

    def model(self, entry: ModelEntry) -> Model:
        """`entry` as the scheduler is told of it now. Raises as `plan`."""
        plan = self._told[entry.name] = self.plan(entry)
        if entry.name not in self._present:
            self._whole[entry.name] = plan
        return self.facts(plan)

    def facts(self, plan: LoadPlan) -> Model:
        """A model as the scheduler needs it, by its plan."""
        entry = plan.entry
        return Model(
            name=entry.name,
            need=plan.needs[0],
            others=plan.others,
            copying=self._copying(entry),
            smaller=tuple(Smaller(one.needs[0], one.speed) for one in plan.smaller),
            speed=plan.speed,
            load_seconds=plan.load_seconds,
            slots=plan.options.max_concurrent * (1 if entry.files.remote else SLOTS_PER_STREAM),
            backoff=REMOTE_BACKOFF if entry.files.elsewhere else None,
            pinned=self._pinned.get(entry.name, entry.pinned),
            parks=self._parks(entry, plan),
            ttl=entry.ttl,
            apart=entry.replica_of,
        )

    def _copying(self, entry: ModelEntry) -> Mapping[str, float]:
        """Seconds until nodes have the files that they lack."""
        if self.cluster is None or not _may_leave(entry, self.options(entry)):
            return {}
        seconds = {node: self.cluster.copying(node, entry.files) for node in self.cluster.nodes}
        return {node: copying for node, copying in seconds.items() if copying}

    def nodes_changed(self) -> None:
        """Nodes came or went: models may lie elsewhere now."""
        for name, plan in self._plan.items():
            if _may_leave(plan.entry, plan.options):
                self._plan[name] = self._informed(plan)

    def _parks(self, entry: ModelEntry, plan: LoadPlan) -> Bytes | None:
        """What it will hold while it is parked; as much as it does now, where nobody says."""
        if entry.files.parked_bytes is None:
            return self._warms(entry, plan)
        size = entry.files.parked_bytes or plan.need.total
        return self._parked.get(entry.name, {CPU: size})

    def _warms(self, entry: ModelEntry, plan: LoadPlan) -> Bytes | None:
        """Of a model without a process: its files. Where it gives back a card's memory, if nothing
        else is configured: what lies in main memory alone would give back little.
        """
        files = entry.files
        if not files.parts or files.remote is not None or files.node is not None:
            return None
        cards = any(device != CPU for device in plan.placements[0])
        wanted = self.parking == "always" or (self.parking == "auto" and cards)
        here = all(node_of(way) == THIS_MACHINE for way in plan.placements)
        return {CPU: files.size_bytes} if wanted and here else None

    def pin(self, name: str, *, pinned: bool) -> None:
        """Whatever its entry says, from now on."""
        self._pinned[name] = pinned

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
        return self._estimated(entry, replace(entry.options, **values))

    def hint(self, name: str, plan: LoadPlan | None = None) -> str:
        """`; with context_length of 4096 it would fit`, of a model that has no room as it was told
        to the scheduler, or by `plan`; "" where no context is short enough.
        """
        plan = plan or self._told.get(name)
        if plan is None or plan.entry.files.remote is not None or plan.entry.files.node is not None:
            return ""
        if (known := self._hints.get(name)) is None or known[0] is not plan:
            known = self._hints[name] = plan, self._shorter(plan)
        return known[1]

    def _shorter(self, plan: LoadPlan) -> str:
        length = plan.options.context_length or plan.entry.files.context_length
        cells = getattr(plan.options, "cache_tokens", None)
        names = ["context_length", "cache_tokens"] if cells else ["context_length"]
        while (length := length // 2) >= SHORTEST:
            changed = replace(plan.options, **dict.fromkeys(names, length))
            with suppress(ModelUnavailable):  # too short to be loaded at all
                needs = self._estimated(plan.entry, changed).needs
                if self.room.obstacle(plan.entry.name, needs) is None:
                    return f"; with {' and '.join(names)} of {length} it would fit"
        return ""

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
        layout, place = self.loader.layout(plan.entry.files), plan.placements[0]
        if (node := node_of(place)) == THIS_MACHINE:
            options = replace(plan.loads, host=self._host(plan))
            return layout.placed(options, place, self.cards)
        there = None if self.cluster is None else self.cluster.nodes.get(node)
        options = replace(plan.options, host="worker")
        if there is None:  # it has just left, as its load will say
            return options
        return layout.placed(options, bare(place), there.cards)

    def _host(self, plan: LoadPlan) -> Host | None:
        """`auto`: a worker where models take turns on a card, whose memory an unload in the process
        doesn't return in full (CUDA's context stays), and where the engine may crash; else the
        process, which takes less memory and no more time. Nothing said: a worker for a library that
        is known to end its process.
        """
        may_end = self.loader.may_end(plan.entry.files, plan.loads)
        if plan.options.host != "auto":
            return "worker" if may_end and plan.options.host is None else plan.options.host
        cards = plan.placements[0].keys() - {CPU}
        others = (one for name, one in self._plan.items() if name != plan.entry.name)
        ways = (way for other in others for way in other.placements)
        takes_turns = any(cards & way.keys() for way in ways)
        risky = takes_turns or may_end or self.loader.is_experimental(plan.entry.files)
        return "worker" if risky else "process"

    def spoke(self, name: str, pace: float) -> None:
        """A model in memory wrote so many steps a second, with one answer at a time."""
        plan = self._plan.get(name)
        if plan is None or name not in self._present:
            return
        reads = plan.reads
        if not (reads or plan.fitted):
            return  # it would tell neither how fast a device is read nor what is left of its speed
        if plan.pace is not None and abs(pace / plan.pace - 1) < NOTICED:
            return
        known = self.history.note_pace(plan.entry.files, plan.loads, pace)
        self._plan[name] = self._told[name] = replace(plan, pace=known)
        if reads:
            self.history.note_reads(reads, pace)
            self._recalibrate()

    def _read_speeds(self) -> Mapping[str, float]:
        """As far as it is known how fast each device is read; nothing where there are no cards."""
        return {**self.bandwidths, **self.history.bandwidths} if self.bandwidths else {}

    def _recalibrate(self) -> None:
        """Models are planned anew for their next load where devices turn out to be read at other
        speeds than they were planned with: it may pay now to have them lie otherwise.
        """
        now = self._read_speeds()
        ratios = (speed / self._reading.get(device, speed) for device, speed in now.items())
        if any(not 1 / UNLIKE < ratio < UNLIKE for ratio in ratios):
            self._reading = now
            self._plan = {name: replace(plan, room={}) for name, plan in self._plan.items()}

    def left(self, name: str, parked: Bytes | None) -> None:
        """It was unloaded, and processes of its own were measured once more before. `parked`: what
        it holds all the same, with which it is planned the next time.
        """
        if parked is not None:
            self._parked[name] = parked
            return
        self._present.discard(name)
        known = self._plan.get(name)
        if known is not None and known.entry.files.remote is not None:
            self._plan[name] = self._informed(known)

    def arrived(self, plan: LoadPlan) -> Bytes:
        """What a model just loaded holds, in the one way of `plan`, as it was measured. Its next
        load is planned with that.
        """
        known, name = self._informed(plan), plan.entry.name
        self._present.add(name)
        self._plan[name] = self._told[name] = known
        last = self.history.get(plan.entry.files, plan.loads)
        if last is not None and last.devices:
            return {**last.devices, **plan.entry.turn}
        return replace(known, placements=plan.placements).needs[0]

    def _estimated(self, entry: ModelEntry, options: EngineOptions) -> LoadPlan:
        room = self._room(entry.name)
        try:
            plan = self._fitting(entry, options, room)
            return replace(plan, smaller=tuple(self._ladder(plan)), room=room)
        except UNREADABLE as error:
            raise ModelUnavailable(f"{entry.name}: {error}", param="model") from error

    def _fitting(self, entry: ModelEntry, options: EngineOptions, room: Bytes) -> LoadPlan:
        """The plan that takes no more than `room`, if there is one; where an earlier load took more
        than was estimated, for as much less room.
        """
        plan = self._plan_of(entry, options, self._fit(entry, options, room))
        free = room
        for _ in range(CORRECTIONS):
            if plan.fitted is None or covered(plan.needs[0], {**room, **entry.turn}):
                break
            part = min(0.99, plan.estimate.total / max(1, plan.need.total))
            free = {device: int(size * part) for device, size in free.items()}
            plan = self._plan_of(entry, options, self._fit(entry, options, free))
        return plan

    def _fit(self, entry: ModelEntry, options: EngineOptions, room: Bytes) -> Fitted | None:
        if self.cluster is not None and _may_leave(entry, options):
            return None  # one that may lie on several machines is not cut for this one
        there = Room(free=room, bandwidths=self._reading)
        return self.loader.layout(entry.files).fit(entry.files, options, self.cards, there)

    def _ladder(self, plan: LoadPlan) -> Iterator[LoadPlan]:
        """Ways in which it takes ever less of cards, down to none."""
        need, last = plan.needs[0], plan
        room = self._room(plan.entry.name)
        if need.keys() <= {CPU, *plan.entry.turn}:
            return
        for step in range(STEPS - 1, -1, -1):
            parts = {card: need.get(card, 0) * step // STEPS for card in room if card != CPU}
            free = {**room, **parts}
            fitted = self._fit(plan.entry, plan.options, free)
            if fitted is None:
                continue
            found = self._plan_of(plan.entry, plan.options, fitted)
            if found.needs[0] != last.needs[0] and found.speed <= plan.speed:
                last = found
                yield found

    def _plan_of(
        self, entry: ModelEntry, options: EngineOptions, fitted: Fitted | None
    ) -> LoadPlan:
        layout = self.loader.layout(entry.files)
        estimate = layout.estimate(entry.files, options) if fitted is None else fitted.need
        plan = LoadPlan(entry=entry, options=options, estimate=estimate, fitted=fitted)
        return self._informed(plan)

    def _informed(self, plan: LoadPlan) -> LoadPlan:
        """With what is known by now of earlier loads as this one."""
        files, fitted = plan.entry.files, plan.fitted
        guess = Measurement(size=None, load_seconds=files.size_bytes / READING_SPEED)
        last = self.history.get(files, plan.loads) or guess
        need = last.corrected(plan.estimate)
        ways: tuple[Placement, ...]
        if last.devices:
            ways = (divided([*last.devices.values()], last.devices) if need.total else {},)
        elif fitted is not None:
            ways = (fitted.placement,)
        else:
            try:
                ways = self._placements(plan.entry, plan.options, need)
            except UNREADABLE:  # as its next load will say; until then it lies as it did
                if not (ways := plan.placements):
                    raise
        return replace(
            plan,
            need=need,
            measured=last.size is not None,
            placements=ways,
            load_seconds=last.load_seconds,
            pace=last.pace,
        )

    def _placements(
        self, entry: ModelEntry, options: EngineOptions, need: MemoryNeed
    ) -> tuple[Placement, ...]:
        """The ways to lie here, and then those on other nodes."""
        layout = self.loader.layout(entry.files)
        own = tuple(layout.placements(entry.files, options, self.cards))
        if self.cluster is None or not _may_leave(entry, options):
            return own
        there = {name: one for name, one in self.cluster.nodes.items() if not one.draining}
        copying = {name: self.cluster.copying(name, entry.files) for name in there}
        ways = (
            named(name, way)
            for name in in_order(entry.name, copying)
            for cards in (there[name].cards,)
            for way in fewest(layout.placements(entry.files, options, cards), need.total, cards)
        )
        return (*own, *ways)


PATHS = ("adapters", "mmproj")  # options that name files of this machine; and a draft model


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
        and getattr(getattr(options, "draft", None), "model", None) is None
    )
