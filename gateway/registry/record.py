"""The scheduler's record of one model: its phase, its leases, its line.

    absent ──Load──▶ loading ──loaded──▶ loaded ──▶ draining ──Unload─▶ leaving ──unloaded─▶ absent
                      │ └─load_failed──▶ absent (with a failure)
                      └──CancelLoad──▶ leaving

    draining ──▶ loaded, where the room it was to make is not needed after all.
    leaving ──parked──▶ parked: a process that gave back its device's memory, and can be woken. It
    is loaded as one that is absent is, and it may be evicted as one that is idle.

It decides nothing; it knows no other model and no budget.

The memory ledger's arithmetic: what a model needs on which device, corrected by measurements, as
a sentence.

Pure. Sizes are bytes; in sentences they are GiB (2**30 bytes).
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias, get_args

import msgspec

from backends.catalog import CPU
from backends.protocol import MemoryNeed
from gateway.registry.nodes import ALONE, SEPARATOR, Seconds, name_at, node_of, nodes_of

# ------------------------------------------------------------------------------------------- orders
# The scheduler's vocabulary: what it is given about a model and a request, and what it orders.
#
# Pure data. Times are seconds of one clock that never goes back, sizes are bytes, devices are names
# ("cpu", "cuda:0").


Bytes: TypeAlias = Mapping[str, int]  # per device


class Smaller(msgspec.Struct, frozen=True):
    """A way in which a model takes less of cards and is slower: `speed` is a part of the full."""

    need: Bytes
    speed: float


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler knows of a model; given anew with every request, because it may change."""

    name: str
    need: Bytes  # where it would lie best
    others: tuple[Bytes, ...] = ()  # where else it may lie, the better before the worse
    copying: Seconds = {}  # until a node has its files, by node; one not named has them
    smaller: tuple[Smaller, ...] = ()  # ways in which more of it gives way, the faster first
    speed: float = 1.0  # that of `need`
    load_seconds: float  # measured at its last load, or estimated
    slots: int  # leases at once; more wait in line
    pinned: bool = False
    parks: Bytes | None = None  # what it holds while it is parked; None: it can't be
    ttl: float = -1.0  # idle seconds until it is unloaded; -1: never
    apart: str = ""  # no two models that have the same lie on one device: replicas of one
    # Seconds of rest after a failed load, however many failed. None: as the rules say, doubled.
    backoff: float | None = None

    @property
    def all_ways(self) -> tuple[Smaller, ...]:
        """Where it may lie, with how fast it is there."""
        best = (Smaller(need, self.speed) for need in (self.need, *self.others))
        return (*best, *self.smaller)

    def speed_at(self, need: Bytes) -> float:
        """How fast it is in this way, as a part of its best. No object is made for each of
        `others`, which may be hundreds: Python's collector would begin within decisions.
        """
        if need == self.need or need in self.others:
            return 1.0
        slower = (self.relative(way.speed) for way in self.smaller if way.need == need)
        return next(slower, 1.0)

    def relative(self, speed: float) -> float:
        """This speed, as a part of its best."""
        return min(1.0, speed / max(self.speed, 1e-6))


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """One request's place in line. One that `holds` wants a lease; else it only awaits the load."""

    number: int
    arrived: float
    holds: bool = True
    keep_alive: float | None = None  # in place of the model's ttl until the next lease ends
    owner: str = ""  # of the key that it came with, among which turns are shared


WhyUnload: TypeAlias = Literal["room", "idle", "asked", "broken", "budget", "config", "share"]
WhyRefuse: TypeAlias = Literal[
    "queue_full", "failed", "too_large", "unloaded", "removed", "closing"
]


class Evicted(msgspec.Struct, frozen=True):
    """A model that was evicted for another, and for how long it had been idle."""

    name: str
    idle_seconds: float


class Load(msgspec.Struct, frozen=True):
    """Load `model`: `need` is free now, of `free`. `evicted` had to go for it."""

    model: str
    need: Bytes
    free: Bytes
    evicted: tuple[Evicted, ...] = ()


class CancelLoad(msgspec.Struct, frozen=True):
    """No ticket waits for this load any more. Answered by `unloaded`, whichever way it ends."""

    model: str


class Unload(msgspec.Struct, frozen=True):
    """Close `model`: it has no lease. Answered by `unloaded`. `parks`: park it, if that works;
    answered by `parked` then.
    """

    model: str
    why: WhyUnload
    parks: bool = False


class Grant(msgspec.Struct, frozen=True):
    """The model is there. A ticket that holds is given back with `released`."""

    ticket: int


class Refuse(msgspec.Struct, frozen=True):
    """The ticket is out of line for good. After `retry_after` seconds a new one may fare better."""

    ticket: int
    why: WhyRefuse
    reason: str
    retry_after: float | None = None


Order: TypeAlias = Load | CancelLoad | Unload | Grant | Refuse


Phase: TypeAlias = Literal["absent", "loading", "loaded", "draining", "leaving", "parked"]
PHASES: tuple[Phase, ...] = get_args(Phase)

NEVER = float("inf")
BACKOFF_LIMIT = 300.0  # seconds; a broken model is tried again at least so often when asked for


class FailedLoads(msgspec.Struct, frozen=True, kw_only=True):
    """Why the last load failed, or what it loaded; how many did in a row, and from when on it may
    be tried again.
    """

    reason: str
    count: int
    retry_at: float


class ModelRecord:
    """Mutable: the scheduler's record of one model. `records` is told what its indices are made
    of.
    """

    def __init__(self, model: Model, records: "Records") -> None:
        self._records = records
        self._phase: Phase = "absent"
        self._held: Bytes = {}
        self._nodes = ALONE
        self._wanted = False
        self._ttl = -1.0
        self._model = model
        self._ways: Mapping[str, Sequence[Bytes]] | None = None
        self._shared: Bytes | None = None
        self.whole = model  # as it was when its load was ordered, with all ways to lie
        self.speed = 1.0  # of the way in which it lies, as a part of its best
        self.is_parked = False  # its process is there, whatever becomes of it now
        self.parking: Bytes | None = None  # what it will hold when it has left
        self.line: dict[int, Ticket] = {}  # in order of arrival; see `in_turn`
        self.turns: dict[str, int] = {}  # when an owner had its last turn, by numbers that grow
        self._owners: Counter[str] = Counter()  # of those in line
        self._bystanders = 0  # of those in line, who hold nothing
        self.users: dict[int, Ticket] = {}
        self.leaving: WhyUnload = "room"  # why it drains
        self.loaded_at = 0.0
        self.idle_since = 0.0  # meaningful while it has no lease
        self.failure: FailedLoads | None = None
        self.retrying: Bytes | None = None  # memory ran out: the room to make before the last try
        self.evicted: tuple[Evicted, ...] = ()  # evicted for the load in progress
        self.chosen: Bytes | None = None  # of its needs, that for which room was last looked for
        self.looked_at: float | None = None  # when all its ways were last looked at; None: to be

    @property
    def model(self) -> Model:
        """What was said of it last."""
        return self._model

    @model.setter
    def model(self, model: Model) -> None:
        if model.need is not self._model.need or model.others is not self._model.others:
            self._ways = self.looked_at = None
        self._model = model

    @property
    def ways(self) -> Mapping[str, Sequence[Bytes]]:
        """`needs`, by node."""
        if self.retrying is not None:
            return {node_of(self.retrying): (self.retrying,)}
        if self._ways is None:
            self._ways = self._records.ways(self._model)
        if self._shared is not None:
            node = node_of(self._shared)
            return {**self._ways, node: (self._shared, *self._ways.get(node, ()))}
        return self._ways

    @property
    def shared(self) -> Bytes | None:
        """The way in which it lies beside others it would take turns with, if it is to."""
        return self._shared

    @shared.setter
    def shared(self, way: Bytes | None) -> None:
        if way != self._shared:
            self._shared, self.looked_at = way, None

    @property
    def phase(self) -> Phase:
        """See above."""
        return self._phase

    @phase.setter
    def phase(self, phase: Phase) -> None:
        before, self._phase, self.looked_at = self._phase, phase, None
        self._records.note_phase(self, before)

    @property
    def held(self) -> Bytes:
        """Promised to it; nothing while absent."""
        return self._held

    @held.setter
    def held(self, held: Bytes) -> None:
        before, self._held = self._held, held
        before_at, self._nodes = self._nodes, nodes_of(held)
        self._records.note_held(self, before, before_at)

    @property
    def nodes(self) -> frozenset[str]:
        """Where it holds something."""
        return self._nodes

    @property
    def wanted(self) -> bool:
        """Requested by an administrator: loaded even if no ticket waits."""
        return self._wanted

    @wanted.setter
    def wanted(self, wanted: bool) -> None:
        if wanted != self._wanted:
            self._wanted, self.looked_at = wanted, None
            self._records.note_asked(self)

    @property
    def ttl(self) -> float:
        """In force for it now."""
        return self._ttl

    @ttl.setter
    def ttl(self, ttl: float) -> None:
        self._ttl = ttl
        self._records.note_ttl(self)

    @property
    def needs(self) -> tuple[Bytes, ...]:
        """The rooms that a load takes now: one of them."""
        if self.retrying is not None:
            return (self.retrying,)
        shared = () if self._shared is None else (self._shared,)
        return (*shared, self.model.need, *self.model.others)

    @property
    def need(self) -> Bytes:
        """The room that its load is to take: the one chosen, as long as that is among them."""
        return self.chosen if self.chosen in self.needs else self.needs[0]

    @property
    def is_kept(self) -> bool:
        """It drains to make room, but is pinned by now. What is parked serves nobody."""
        drains = self.phase == "draining" and self.leaving in ("room", "budget", "idle")
        return drains and self.model.pinned and not self.is_parked

    @property
    def is_claim(self) -> bool:
        """It is wanted and not in memory."""
        return self.phase in ("absent", "parked") and (self.wanted or bool(self.line))

    @property
    def insists(self) -> bool:
        """Its turn has come whatever others do: an administrator asked, or its load has begun."""
        return self.wanted or self.retrying is not None

    @property
    def is_idle(self) -> bool:
        """It has no lease, and no ticket is about to get one."""
        return not self.users and not self.line

    @property
    def is_open(self) -> bool:
        """A ticket would be granted at once."""
        return self.phase == "loaded" and len(self.users) < self.model.slots

    @property
    def oldest(self) -> float:
        """When the first in line came; never, if the line is empty."""
        return next((ticket.arrived for ticket in self.line.values()), NEVER)

    @property
    def waiting(self) -> int:
        """Those in line that want a lease."""
        return len(self.line) - self._bystanders

    def join(self, ticket: Ticket) -> None:
        """It waits. An owner who did not wait before is the last whose turn comes."""
        if not self.line:
            self.turns.clear()
        if not self._owners[ticket.owner]:
            self.turns[ticket.owner] = self._next_turn()
        self._owners[ticket.owner] += 1
        self._bystanders += not ticket.holds
        self.line[ticket.number] = ticket
        self._records.note_line(self, ticket, 1)

    def give_up(self, number: int) -> None:
        """One that waited leaves the line."""
        ticket = self.line.pop(number)
        self._owners[ticket.owner] -= 1
        if not self._owners[ticket.owner]:
            del self._owners[ticket.owner]
        self._bystanders -= not ticket.holds
        self._records.note_line(self, ticket, -1)

    def dissolve(self) -> list[int]:
        """All leave the line; their numbers."""
        numbers = list(self.line)
        for number in numbers:
            self.give_up(number)
        return numbers

    def serve(self, ticket: Ticket) -> None:
        """It leaves the line, as its owner's turn."""
        self.give_up(ticket.number)
        self.turns[ticket.owner] = self._next_turn()
        if ticket.holds:
            self.users[ticket.number] = ticket

    def _next_turn(self) -> int:
        return max(self.turns.values(), default=0) + 1

    @property
    def serves(self) -> bool:
        """Whether someone in line gets what it waits for now."""
        return bool(self._bystanders) or (bool(self.line) and self.is_open)

    def in_turn(self) -> Sequence[Ticket]:
        """The line in the order in which it is served. Owners take turns: who holds the fewest
        leases is next, of equals the one whose last turn was longest ago. Of one owner, first come,
        first served. Leases that are given back meanwhile change it.
        """
        if len(self._owners) < 2:
            return tuple(self.line.values())
        tickets: dict[str, deque[Ticket]] = {}
        for ticket in self.line.values():
            tickets.setdefault(ticket.owner, deque()).append(ticket)
        holds = Counter(ticket.owner for ticket in self.users.values())
        owners = [(holds[owner], self.turns[owner], owner) for owner in tickets]
        heapq.heapify(owners)
        order: list[Ticket] = []
        while owners:
            held, _, owner = owners[0]
            order.append(tickets[owner].popleft())
            if tickets[owner]:
                heapq.heapreplace(owners, (held + 1, self._next_turn() + len(order), owner))
            else:
                heapq.heappop(owners)
        return order

    def expires_at(self) -> float:
        """When an idle model is unloaded."""
        expires = self.phase == "loaded" and self.is_idle and self.ttl >= 0
        return self.idle_since + self.ttl if expires and not self.model.pinned else NEVER

    def stay(self) -> None:
        """It drained, and is not to leave after all."""
        self.phase = "parked" if self.is_parked else "loaded"

    def begin_parking(self) -> None:
        """It is about to hold `model.parks`, and holds the more of both until it does."""
        parks = self.parking = self.model.parks or {}
        both = {*self.held, *parks}
        self.held = {one: max(self.held.get(one, 0), parks.get(one, 0)) for one in both}

    def park(self, held: Bytes) -> None:
        """Its process is there, and holds that."""
        self.phase, self.held, self.evicted = "parked", held, ()
        self.is_parked, self.parking = True, None

    def arrive(self, now: float) -> None:
        """The load succeeded."""
        self.is_parked = False
        self.phase, self.loaded_at, self.idle_since = "loaded", now, now
        self.ttl, self.wanted, self.failure, self.retrying = self.model.ttl, False, None, None

    def leave(self) -> None:
        """Its memory is free again."""
        self.phase, self.held, self.evicted = "absent", {}, ()
        self.is_parked, self.parking = False, None

    def fail(self, now: float, reason: str, backoff: float) -> FailedLoads:
        """The load failed for good, or the model broke: `backoff` seconds of rest, doubled with
        each in a row.
        """
        count = self.failure.count + 1 if self.failure else 1
        rest = min(backoff * 2 ** min(count - 1, 32), max(backoff, BACKOFF_LIMIT))
        if self.model.backoff is not None:
            rest = self.model.backoff
        self.failure = FailedLoads(reason=reason, count=count, retry_at=now + rest)
        self.wanted, self.retrying = False, None
        return self.failure


class Records(Mapping[str, ModelRecord]):
    """All records by name, and what would take too long to find among thousands of them: those in a
    phase, those that are asked for, and what is promised on a device.
    """

    def __init__(self) -> None:
        self._all: dict[str, ModelRecord] = {}
        self._phases: dict[Phase, dict[str, ModelRecord]] = {phase: {} for phase in PHASES}
        self.promised_sizes: dict[str, int] = {}  # bytes that records hold, by device
        self._holders: dict[str, dict[str, ModelRecord]] = {}  # by device
        self._there: dict[str, dict[str, ModelRecord]] = {}  # by node
        self._asked: dict[str, ModelRecord] = {}
        self._claims: dict[str, ModelRecord] = {}
        self._served: dict[str, ModelRecord] = {}
        self._known: dict[str, tuple[Model, Mapping[str, Sequence[Bytes]]]] = {}
        self._mortal: dict[str, ModelRecord] = {}
        self.waiting = 0  # tickets in line that want a lease
        self.changed: set[str] = set()  # the nodes on which something did since this was emptied

    def __getitem__(self, name: str) -> ModelRecord:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def open(self, model: Model) -> ModelRecord:
        """That of `model`, a new one if there is none; it is up to date then."""
        record = self._all.get(model.name)
        if record is None:
            record = self._all[model.name] = ModelRecord(model, self)
            self._phases["absent"][model.name] = record
        record.model = model
        return record

    def forget(self, record: ModelRecord) -> None:
        """One that holds nothing and is asked for by nobody."""
        name = record.model.name
        del self._all[name]
        indices = (self._asked, self._claims, self._served, self._mortal)
        for index in (self._phases[record.phase], *indices):
            index.pop(name, None)

    # ------------------------------------------------------------------------------- asked

    def among(self, *phases: Phase) -> list[ModelRecord]:
        """Those in one of these phases."""
        return [record for phase in phases for record in self._phases[phase].values()]

    def any_among(self, *phases: Phase) -> bool:
        """Whether there is one."""
        return any(self._phases[phase] for phase in phases)

    def asked(self) -> list[ModelRecord]:
        """Those with a line, or wanted by an administrator."""
        return list(self._asked.values())

    def served(self) -> list[ModelRecord]:
        """Of those the loaded ones."""
        return list(self._served.values())

    def ways(self, model: Model) -> Mapping[str, Sequence[Bytes]]:
        """Where it may lie, by node; nodes, and the ways on each, in its order. There may be
        hundreds, so they are sorted once.
        """
        known = self._known.get(model.name)
        if known is None or known[0].need is not model.need or known[0].others is not model.others:
            known = self._known[model.name] = model, ways(model)
        return known[1]

    @property
    def any_asked(self) -> bool:
        """Whether there is one."""
        return bool(self._asked)

    def claims(self) -> list[ModelRecord]:
        """Those that are to be loaded."""
        return list(self._claims.values())

    def mortal(self) -> list[ModelRecord]:
        """Those that leave when they have been idle for some time."""
        return list(self._mortal.values())

    def promised(self, device: str) -> int:
        """Bytes of it that records hold."""
        return self.promised_sizes.get(device, 0)

    def holders(self, device: str) -> Iterable[ModelRecord]:
        """Who holds some of it."""
        return self._holders.get(device, {}).values()

    def there(self, node: str) -> Iterable[ModelRecord]:
        """Who holds something on a node; here also who is loaded and holds nothing."""
        return self._there.get(node, {}).values()

    def on(self, nodes: frozenset[str]) -> Iterable[ModelRecord]:
        """As `there`, on any of these."""
        if len(nodes) == 1:
            return self.there(next(iter(nodes)))
        return dict.fromkeys(record for node in nodes for record in self.there(node))

    # ------------------------------------------------------------------------------- told

    def note_phase(self, record: ModelRecord, before: Phase) -> None:
        """It was in phase `before`."""
        name = record.model.name
        self._phases[before].pop(name, None)
        self._phases[record.phase][name] = record
        self.note_asked(record)

    def note_held(self, record: ModelRecord, before: Bytes, before_at: Iterable[str]) -> None:
        """It held `before`, on those nodes."""
        name = record.model.name
        for device, size in before.items():
            self.promised_sizes[device] = self.promised_sizes.get(device, 0) - size
            self._holders.get(device, {}).pop(name, None)
        self.changed.update(before_at)
        for node in before_at:
            self._there.get(node, {}).pop(name, None)
        if record.held or record.phase != "absent":
            for node in record.nodes:
                self._there.setdefault(node, {})[name] = record
        for device, size in record.held.items():
            self.promised_sizes[device] = self.promised_sizes.get(device, 0) + size
            self._holders.setdefault(device, {})[name] = record
        self.note_change(record)

    def note_asked(self, record: ModelRecord) -> None:
        """Its line changed, or whether it is wanted."""
        name = record.model.name
        for index, belongs in (
            (self._asked, record.line or record.wanted),
            (self._claims, record.is_claim),
            (self._served, record.phase == "loaded" and (record.line or record.wanted)),
        ):
            if belongs:
                index[name] = record
            else:
                index.pop(name, None)
        self.note_change(record)

    def note_line(self, record: ModelRecord, ticket: Ticket, more: int) -> None:
        """A ticket came to its line, or left it."""
        if ticket.holds:
            self.waiting += more
        self.note_asked(record)

    def note_ttl(self, record: ModelRecord) -> None:
        """It stays for another time."""
        if record.ttl >= 0:
            self._mortal[record.model.name] = record
        else:
            self._mortal.pop(record.model.name, None)

    def note_change(self, record: ModelRecord) -> None:
        """Something may have another place now where it lies."""
        self.changed |= record.nodes


def ways(model: Model) -> Mapping[str, Sequence[Bytes]]:
    """See `Records.ways`."""
    nodes: dict[str, list[Bytes]] = {}
    for need in (model.need, *model.others):
        nodes.setdefault(node_of(need), []).append(need)
    return nodes


GIB = 2**30
MIB = 2**20
# What lies outside of these parts of the estimate was measured wrong: whatever else the machine did
# meanwhile must neither lock a model out nor let two of them take the same memory.
LEAST, MOST = 0.5, 1.5


def gibibytes(size: int) -> str:
    """`5.1 GiB`; small sizes in MiB, so that a small model isn't 0.0."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.1f} MiB"


def placed(devices: Bytes, layers: Mapping[str, int]) -> str:
    """`cuda:0 5.1 GiB with 29 layers, cpu 312.0 MiB with 4 layers`: where a model lies. A device
    that only layers name was not planned on; its memory isn't known.
    """
    parts = {name: f"{name} {gibibytes(size)}" for name, size in devices.items()}
    for name, count in layers.items():
        parts[name] = f"{parts.get(name, name)} with {count} layer{'s' * (count != 1)}"
    return ", ".join(parts.values())


def corrected(estimate: MemoryNeed, measured: int | None, *, exact: bool = False) -> MemoryNeed:
    """The estimate with the total that was measured after a load, within `LEAST` to `MOST` of it
    unless that is `exact`: what isn't weights or cache is the engine's. Snapshots come later.
    """
    if measured is None:
        return estimate
    total = measured
    if not exact:
        total = min(max(measured, int(estimate.loaded * LEAST)), int(estimate.loaded * MOST))
    weights = min(estimate.weights, total)
    cache = min(estimate.cache, total - weights)
    engine = total - weights - cache
    return msgspec.structs.replace(estimate, weights=weights, cache=cache, engine=engine)


def arithmetic(
    need: MemoryNeed,
    free: int,
    evicting: Sequence[Evicted] = (),
    *,
    measured: bool = False,
    note: str = "",
) -> str:
    """`needs 5.1 GiB: weights 4.4, cache 0.6, engine 0.1; free 3.2; evicting x, idle for 212 s`.
    `note`: what gave way for it to fit.
    """
    unit, name = (GIB, "GiB") if need.total >= GIB else (MIB, "MiB")
    parts = {"weights": need.weights, "cache": need.cache, "engine": need.engine}
    if need.snapshots:
        parts["snapshots"] = need.snapshots
    listed = ", ".join(f"{part} {size / unit:.1f}" for part, size in parts.items())
    source = " (measured)" if measured else ""
    leaving = [f"{gone.name}, idle for {gone.idle_seconds:.0f} s" for gone in evicting]
    tail = f"; evicting {' and '.join(leaving)}" if leaving else ""
    tail += f"; {note}" if note else ""
    return f"needs {need.total / unit:.1f} {name}{source}: {listed}; free {free / unit:.1f}{tail}"


def shares(need: MemoryNeed, parts: Mapping[str, float]) -> Bytes:
    """`need` over the devices it is spread on, by their parts of the whole (which add up to 1).
    Snapshots lie in main memory.
    """
    spread = {device: round(need.loaded * part) for device, part in parts.items()}
    main = name_at(node_of(parts), CPU)
    return spread | {main: spread.get(main, 0) + need.snapshots} if need.snapshots else spread


# --------------------------------------------------------------------------------------------- room
# The memory ledger: budgets less what is promised to models. It changes no record.


def main_devices(need: Bytes) -> set[str]:
    """What a model computes on: its cards; without any, main memory."""
    cards = {device for device in need if device.rpartition(SEPARATOR)[2] != CPU}
    return cards or set(need)


class MemoryLedger:
    """Reads the scheduler's `records`. `budgets`: bytes per device; one not named has none."""

    def __init__(self, budgets: Bytes, records: Records) -> None:
        self._budgets = dict(budgets)
        self._records = records
        # Bytes of main memory that conversations have: given up for loads, and not for parking.
        self.kept: Callable[[], int] = lambda: 0

    @property
    def budgets(self) -> Bytes:
        """Bytes for models, per device."""
        return self._budgets

    def apply(self, budgets: Bytes) -> None:
        """From now on these are the budgets."""
        self._budgets = dict(budgets)

    def excess(self) -> Bytes:
        """Bytes per device by which more is promised than there is, besides what leaves anyway."""
        over = {device: -self.free(device) - self.coming(device) for device in self._budgets}
        return {device: size for device, size in over.items() if size > 0}

    def shortfall(self, need: Bytes) -> int:
        """Bytes of `need` that aren't free, over all its devices."""
        return sum(max(0, size - max(0, self.free(device))) for device, size in need.items())

    def free(self, device: str) -> int:
        """Bytes promised to no model; negative, where a model took more than was estimated."""
        return self._budgets.get(device, 0) - self._records.promised(device)

    def promised(self) -> Bytes:
        """Bytes promised to models, per device."""
        return {device: self._records.promised(device) for device in self._budgets}

    def coming(self, device: str, *, surely: bool = False) -> int:
        """Bytes that become free soon; `surely`: of models that can't be called back."""
        leavers = (
            record
            for record in self._records.holders(device)
            if record.phase == "leaving"
            or (record.phase == "draining" and not (surely and record.leaving == "room"))
        )
        return sum(
            record.held.get(device, 0) - (record.parking or {}).get(device, 0) for record in leavers
        )

    def may_park(self, record: ModelRecord, claim: ModelRecord | None) -> bool:
        """Whether a model that leaves may keep its process: there is room for what it holds then,
        and what it leaves for has room all the same.
        """
        for device, size in (record.model.parks or {}).items():
            need = claim.need.get(device, 0) if claim is not None else 0
            free = self.free(device) - (self.kept() if device == CPU else 0)
            more = size - record.held.get(device, 0)
            if more > free or free + self.coming(device) - size < need:
                return False
        return record.model.parks is not None

    def fitting(self, needs: Sequence[Bytes]) -> Bytes:
        """The first of `needs` that is free now; of those that aren't, the one that lacks least."""
        return min(needs, key=self.shortfall)

    def fits(self, need: Bytes, claim: ModelRecord, turn: ModelRecord | None) -> bool:
        """Whether `claim` may be loaded now, out of room that isn't cleared for the `turn`'s."""
        for device, size in need.items():
            free = self.free(device) + claim.held.get(device, 0)
            if size > free:
                return False
            if turn is not None and turn is not claim:
                reserved = turn.need.get(device, 0) - self.coming(device)
                if size > free - max(0, reserved):
                    return False
        return True

    def possible(self, needs: Iterable[Bytes], claim: ModelRecord) -> Iterator[Bytes]:
        """Those of `needs` that are free, whoever it is reserved for. Few are of hundreds, so this
        is the check that most need.
        """
        budgets, promised, own = self._budgets, self._records.promised_sizes, claim.held
        for need in needs:
            for device, size in need.items():
                free = budgets.get(device, 0) - promised.get(device, 0)
                if size > free + own.get(device, 0):
                    break
            else:
                if self.beside(need, claim.model) is None:
                    yield need

    def beside(self, need: Bytes, model: Model) -> ModelRecord | None:
        """The one that has a device of `need` and that `model` must not lie beside."""
        if not model.apart:
            return None
        devices = main_devices(need)
        others = (record for device in devices for record in self._records.holders(device))
        alike = (one for one in others if one.model.apart == model.apart)
        return next(
            (
                one
                for one in alike
                if one.model.name != model.name and not devices.isdisjoint(main_devices(one.held))
            ),
            None,
        )

    def has_room(self, model: Model) -> bool:
        """Whether it could be loaded at once, and nothing else had to go."""
        return any(
            self.beside(need, model) is None
            and all(size <= self.free(device) for device, size in need.items())
            for need in (model.need, *model.others)
        )

    def within_reach(self, device: str, group: Iterable[ModelRecord]) -> int:
        """Bytes that the models of `group` could have together, if no other leaves for them besides
        those that leave anyway. A parked one has some itself.
        """
        own = sum(record.held.get(device, 0) for record in group)
        return self.free(device) + self.coming(device, surely=True) + own

    def attainable(self, name: str, devices: Iterable[str]) -> Bytes:
        """What `name` could have of each of `devices`, if all models went that may."""
        return {
            device: max(0, self._budgets.get(device, 0) - self._pinned(device, besides=name))
            for device in devices
        }

    def obstacle(self, name: str, needs: Sequence[Bytes]) -> str | None:
        """Why `name` could not be loaded even if all evictable models were unloaded, in any of the
        ways that it may lie; None: it could.
        """
        last: str | None = None
        for need in needs:
            if (last := self._obstacle(name, need)) is None:
                break
        return last

    def _obstacle(self, name: str, need: Bytes) -> str | None:
        record = self._records.get(name)
        other = None if record is None else self.beside(need, record.model)
        if other is not None and other.phase in ("loading", "loaded", "parked"):
            where = " and ".join(sorted(main_devices(need)))
            return f"{name} has no device of its own: {other.model.name} lies on {where}"
        for device, size in need.items():
            budget, pinned = self._budgets.get(device, 0), self._pinned(device, besides=name)
            if size > budget - pinned:
                taken = f", of which pinned models hold {gibibytes(pinned)}" if pinned else ""
                return (
                    f"{name} needs {gibibytes(size)} on {device}, "
                    f"which has {gibibytes(budget)} for models{taken}"
                )
        return None

    def more(self, claim: ModelRecord) -> Bytes | None:
        """The room to make after memory ran out: more than is free, a quarter more than thought.

        None: there is nothing left to evict.
        """
        wanted = dict(claim.need)
        for device, size in claim.need.items():
            most = self._budgets.get(device, 0) - self._pinned(device, besides=claim.model.name)
            wanted[device] = max(size, min(most, max(size * 5 // 4, self.free(device) + 1)))
        more = any(size > self.free(device) for device, size in wanted.items())
        return wanted if more else None

    def _pinned(self, device: str, *, besides: str) -> int:
        stayers = (
            record
            for record in self._records.holders(device)
            if record.model.name != besides
            if record.model.pinned and record.phase in ("loading", "loaded")
        )
        return sum(record.held.get(device, 0) for record in stayers)
