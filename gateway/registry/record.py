"""The scheduler's records of models: the phase of each, its leases, its line.

    absent ──Load──▶ loading ──loaded──▶ loaded ──▶ draining ──Unload─▶ leaving ──unloaded─▶ absent
                      │ └─load_failed──▶ absent (with a failure)
                      └──CancelLoad──▶ leaving

    draining ──▶ loaded, where the room it was to make is not needed after all.
    leaving ──unloaded─▶ parked: a process that gave back its device's memory, and can be woken. It
    is loaded as one that is absent is, and it may be evicted as one that is idle.

They decide nothing, and know no budget. Pure.
"""

import heapq
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias, get_args

import msgspec

from gateway.registry.nodes import ALONE, node_of, nodes_of
from gateway.registry.protocol import Bytes, Evicted, Model, Ticket, WhyUnload

Phase: TypeAlias = Literal["absent", "loading", "loaded", "draining", "leaving", "parked"]
# Others than by phase: with a line or wanted by an administrator; of those who are to be loaded;
# who leave when they have been idle for some time; who are pinned.
Group: TypeAlias = Literal["asked", "claims", "mortal", "pinned"]
PHASES: tuple[Phase, ...] = get_args(Phase)
GROUPS: tuple[Group, ...] = get_args(Group)

NEVER = float("inf")
BACKOFF_LIMIT = 300.0  # seconds; a broken model is tried again at least so often when asked for


class FailedLoads(msgspec.Struct, frozen=True, kw_only=True):
    """Why the last load failed, or what it loaded broke; how many did in a row, and from when on it
    may be tried again.
    """

    why: Literal["failed", "broken"]
    reason: str
    count: int
    retry_at: float


class ModelRecord:
    """Mutable: the scheduler's record of one model. What the indices of `records` are made of, and
    what a look at it was, is changed by its methods alone.
    """

    def __init__(self, model: Model, records: "Records") -> None:
        self._records = records
        self.phase: Phase = "absent"  # see above
        self.held: Bytes = {}  # promised to it; nothing while absent
        self.nodes = ALONE  # where it holds something
        self.wanted = False  # requested by an administrator: loaded even if no ticket waits
        self.ttl = -1.0  # in force for it now
        self.model = model  # what was said of it last
        self.shared: Bytes | None = None  # the way in which it lies beside others, if it is to
        self.whole = model  # as it was when its load was ordered, with all ways to lie
        self.speed = 1.0  # of the way in which it lies, as a part of its best
        self.is_parked = False  # its process is there, whatever becomes of it now
        self.parking: Bytes | None = None  # what it will hold when it has left
        self.line: dict[int, Ticket] = {}  # in order of arrival; see `in_turn`
        self.turns: dict[str, int] = {}  # when an owner had its last turn, by numbers that grow
        self.users: dict[int, Ticket] = {}
        self.leaving: WhyUnload = "room"  # why it drains
        self.loaded_at = 0.0
        self.idle_since = 0.0  # meaningful while it has no lease
        self.failure: FailedLoads | None = None
        self.retrying: Bytes | None = None  # memory ran out: the room to make before the last try
        self.evicted: tuple[Evicted, ...] = ()  # evicted for the load in progress
        self.chosen: Bytes | None = None  # of its needs, that for which room was last looked for
        self.looked_at: float | None = None  # when all its ways were last looked at; None: to be

    def describe(self, model: Model) -> None:
        """That is said of it now."""
        if model.need is not self.model.need or model.others is not self.model.others:
            self.looked_at = None
        self.model = model
        self._records.put(self, "pinned", belongs=model.pinned)

    def share(self, way: Bytes | None) -> None:
        """It is to lie in that way beside others it would take turns with, or as it likes."""
        if way != self.shared:
            self.shared, self.looked_at = way, None

    def enter(self, phase: Phase) -> None:
        """It is in that phase from now on."""
        before, self.phase, self.looked_at = self.phase, phase, None
        self._records.note_phase(self, before)

    def drain(self, why: WhyUnload) -> None:
        """It is to leave."""
        self.leaving = why
        self.enter("draining")

    def hold(self, held: Bytes) -> None:
        """So much is promised to it."""
        before, self.held = self.held, held
        self.nodes = nodes_of(held)
        self._records.note_held(self, before)

    def want(self, *, wanted: bool) -> None:
        """An administrator wants it loaded, or not any more."""
        if wanted != self.wanted:
            self.wanted, self.looked_at = wanted, None
            self._records.note_asked(self)

    def last(self, ttl: float) -> None:
        """So many idle seconds it stays."""
        if ttl != self.ttl:
            self.ttl = ttl
            self._records.put(self, "mortal", belongs=ttl >= 0)

    @property
    def ways(self) -> Mapping[str, Sequence[Bytes]]:
        """`needs`, by node."""
        if self.retrying is not None:
            return {node_of(self.retrying): (self.retrying,)}
        ways = self._records.ways(self.model)
        if self.shared is not None:
            node = node_of(self.shared)
            return {**ways, node: (self.shared, *ways.get(node, ()))}
        return ways

    @property
    def needs(self) -> tuple[Bytes, ...]:
        """The rooms that a load takes now: one of them."""
        if self.retrying is not None:
            return (self.retrying,)
        shared = () if self.shared is None else (self.shared,)
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
        return sum(ticket.holds for ticket in self.line.values())

    def join(self, ticket: Ticket) -> None:
        """It waits. An owner who did not wait before is the last whose turn comes."""
        if not self.line:
            self.turns.clear()
        if all(other.owner != ticket.owner for other in self.line.values()):
            self.turns[ticket.owner] = self._next_turn()
        self.line[ticket.number] = ticket
        self._records.note_asked(self)

    def give_up(self, number: int) -> None:
        """One that waited leaves the line."""
        del self.line[number]
        self._records.note_asked(self)

    def serve(self, ticket: Ticket) -> None:
        """It leaves the line, as its owner's turn."""
        self.give_up(ticket.number)
        self.turns[ticket.owner] = self._next_turn()
        if ticket.holds:
            self.users[ticket.number] = ticket

    def _next_turn(self) -> int:
        return max(self.turns.values(), default=0) + 1

    def in_turn(self) -> Sequence[Ticket]:
        """The line in the order in which it is served. Owners take turns: who holds the fewest
        leases is next, of equals the one whose last turn was longest ago. Of one owner, first come,
        first served. Leases that are given back meanwhile change it.
        """
        tickets: dict[str, deque[Ticket]] = {}
        for ticket in self.line.values():
            tickets.setdefault(ticket.owner, deque()).append(ticket)
        if len(tickets) < 2:
            return tuple(self.line.values())
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
        self.enter("parked" if self.is_parked else "loaded")

    def begin_parking(self) -> None:
        """It is about to hold `model.parks`, and holds the more of both until it does."""
        parks = self.parking = self.model.parks or {}
        both = {*self.held, *parks}
        self.hold({one: max(self.held.get(one, 0), parks.get(one, 0)) for one in both})

    def arrive(self, now: float) -> None:
        """The load succeeded."""
        self.is_parked = False
        self.enter("loaded")
        self.last(self.model.ttl)
        self.want(wanted=False)
        self.loaded_at, self.idle_since, self.failure, self.retrying = now, now, None, None

    def leave(self, parked: Bytes | None = None) -> None:
        """Its memory is free again; but for what it holds where it is `parked`."""
        self.enter("absent" if parked is None else "parked")
        self.hold(parked or {})
        self.is_parked, self.parking, self.evicted = parked is not None, None, ()

    def fail(
        self, now: float, why: Literal["failed", "broken"], reason: str, backoff: float
    ) -> FailedLoads:
        """The load failed for good, or the model broke: `backoff` seconds of rest, doubled with
        each in a row.
        """
        count = self.failure.count + 1 if self.failure else 1
        rest = min(backoff * 2 ** min(count - 1, 32), max(backoff, BACKOFF_LIMIT))
        if self.model.backoff is not None:
            rest = self.model.backoff
        self.failure = FailedLoads(why=why, reason=reason, count=count, retry_at=now + rest)
        self.want(wanted=False)
        self.retrying = None
        return self.failure


class Records(dict[str, ModelRecord]):
    """All records by name, and what would take too long to find among thousands of them: those in a
    phase, those that are asked for, and what is promised on a device.
    """

    def __init__(self) -> None:
        super().__init__()
        self._groups: dict[Phase | Group, dict[str, ModelRecord]] = {
            group: {} for group in (*PHASES, *GROUPS)
        }
        self.promised = Counter[str]()  # bytes that records hold, by device
        self._known: dict[str, tuple[Model, Mapping[str, Sequence[Bytes]]]] = {}
        self.changed: set[str] = set()  # the nodes on which something did since this was emptied

    def open(self, model: Model) -> ModelRecord:
        """That of `model`, a new one if there is none; it is up to date then."""
        record = self.get(model.name)
        if record is None:
            record = self[model.name] = ModelRecord(model, self)
            self._groups["absent"][model.name] = record
        record.describe(model)
        return record

    def forget(self, record: ModelRecord) -> None:
        """One that holds nothing and is asked for by nobody."""
        for index in (self, *self._groups.values()):
            index.pop(record.model.name, None)

    def among(self, *groups: Phase | Group) -> list[ModelRecord]:
        """Those in one of these phases or groups."""
        return [record for group in groups for record in self._groups[group].values()]

    def ways(self, model: Model) -> Mapping[str, Sequence[Bytes]]:
        """Where it may lie, by node; nodes, and the ways on each, in its order. There may be
        hundreds, so they are sorted once.
        """
        known = self._known.get(model.name)
        if known is None or known[0].need is not model.need or known[0].others is not model.others:
            nodes: dict[str, list[Bytes]] = {}
            for need in (model.need, *model.others):
                nodes.setdefault(node_of(need), []).append(need)
            known = self._known[model.name] = model, nodes
        return known[1]

    def note_phase(self, record: ModelRecord, before: Phase) -> None:
        """It was in phase `before`."""
        self._groups[before].pop(record.model.name, None)
        self._groups[record.phase][record.model.name] = record
        self.note_asked(record)

    def note_held(self, record: ModelRecord, before: Bytes) -> None:
        """It held `before`."""
        self.promised.subtract(before)
        self.promised.update(record.held)
        self.changed |= nodes_of(before) | record.nodes

    def note_asked(self, record: ModelRecord) -> None:
        """Its line changed, or whether it is wanted."""
        self.put(record, "asked", belongs=bool(record.line) or record.wanted)
        self.put(record, "claims", belongs=record.is_claim)
        self.changed |= record.nodes

    def put(self, record: ModelRecord, group: Group, *, belongs: bool) -> None:
        """It belongs to this group, or doesn't."""
        if belongs:
            self._groups[group][record.model.name] = record
        else:
            self._groups[group].pop(record.model.name, None)
