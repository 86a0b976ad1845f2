"""Takes turns: which absent models are loaded now, and which ones are evicted for them.

On each node at most one swap is prepared at a time: its models drain, their memory is kept for it,
and it is finished before the next one begins there. The choice of victims may still change when
another model falls idle, and all is undone when no ticket waits for it any more.

With thousands of models on hundreds of devices most of what happens concerns one node. So a claim's
ways are all looked at when it comes and when its turn does, and in between only those on nodes on
which something changed.

A model whose files a node lacks may be loaded there all the same: the time to copy them is a cost
as that of an eviction is, and the lesser of both is taken.

Pure. It knows no tickets beyond the time they came.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache

import msgspec

from config.settings import TURN, SwapConfig
from gateway.registry.agreements import Agreements
from gateway.registry.eviction import choose_victims, cost
from gateway.registry.ledger import MemoryLedger
from gateway.registry.nodes import HERE, node_of, nodes_of
from gateway.registry.patience import (
    lingers_until,
    overdue_at,
    serves_until,
    turn_comes_at,
    worth,
)
from gateway.registry.protocol import Bytes, Load
from gateway.registry.record import NEVER, ModelRecord, Records

ENOUGH = 8  # swaps that are compared; on further nodes there may be cheaper ones


class Swap(msgspec.Struct, frozen=True, eq=False):
    """Room is made for `claim` on a node, or on several together: the models that leave for it."""

    claim: ModelRecord
    victims: tuple[ModelRecord, ...]
    node: str  # that the claim is started on
    nodes: frozenset[str]

    def draining(self) -> list[ModelRecord]:
        """Those that still serve."""
        return [
            victim
            for victim in self.victims
            if victim.phase == "draining" and victim.leaving == "room"
        ]

    @property
    def is_coming(self) -> bool:
        """The room will be there in a moment: nobody uses it any more."""
        return any(one.phase == "leaving" for one in self.victims) and not self.draining()


class Turns(msgspec.Struct):
    """Reads and moves the scheduler's `records`: to loading, to draining, and back from there."""

    records: Records
    room: MemoryLedger
    rules: SwapConfig
    agreements: Agreements
    _swaps: dict[str, Swap] = {}  # by the claim's name
    _moments: dict[str, float] = {}  # by node, when more may leave it

    def beneficiary(self, victim: ModelRecord) -> ModelRecord | None:
        """The claim that room is being made for where `victim` lies."""
        return next(self._begun(victim.nodes), None)

    def _begun(self, nodes: frozenset[str]) -> Iterator[ModelRecord]:
        """The claims that room is being made for on one of these."""
        swaps = self._swaps.values()
        return (swap.claim for swap in swaps if not swap.nodes.isdisjoint(nodes))

    def admit(self, now: float) -> Iterator[Load]:
        """Load what fits, make room for the first claim that doesn't.

        While a claim is overdue, nothing behind it is loaded on its devices.
        """
        for swap in list(self._swaps.values()):
            if not swap.claim.is_claim or self._is_lost(swap.claim):
                self._end(swap.claim)
        changed = self._changed(now)
        barred: set[str] = set()
        for claim in self.claims(now):
            needs = self._open(claim, changed, now)
            if barred:
                needs = [need for need in needs if not barred & need.keys()]
            if (load := self._admitted(claim, needs, now)) is not None:
                yield load
            elif now >= overdue_at(claim, self.rules):
                barred.update(*(self._own(claim) or claim.needs))
            claim.looked_at = None if barred else now

    def _changed(self, now: float) -> set[str]:
        """The nodes where something did, or the time came for something."""
        changed = self.records.changed | {HERE}
        self.records.changed = set()
        for node in [node for node, time in self._moments.items() if time <= now]:
            del self._moments[node]
            changed.add(node)
        return changed

    def _open(self, claim: ModelRecord, changed: set[str], now: float) -> Sequence[Bytes]:
        """The ways of `claim` that may have become possible since they were looked at."""
        before = claim.looked_at
        times = (turn_comes_at(claim, self.rules), overdue_at(claim, self.rules))
        came = before is None or any(before < time <= now for time in times)
        if came or any(device.startswith(TURN) for device in claim.model.need):
            return claim.needs
        return [need for node, needs in claim.ways.items() if node in changed for need in needs]

    def _swap(self, claim: ModelRecord) -> Swap | None:
        return self._swaps.get(claim.model.name)

    def _own(self, claim: ModelRecord) -> Sequence[Bytes]:
        """Its ways on the node where room is being made for it; none, if it isn't."""
        swap = self._swap(claim)
        return () if swap is None else claim.ways.get(swap.node, ())

    def _is_lost(self, claim: ModelRecord) -> bool:
        """Where room is being made for it, there can be none any more."""
        return self.room.obstacle(claim.model.name, self._own(claim) or claim.needs) is not None

    def _admitted(self, claim: ModelRecord, needs: Sequence[Bytes], now: float) -> Load | None:
        """Load it where it fits, or make room for it. One that would have to be copied to where it
        fits may rather have another one leave where it lies.
        """
        own = self._swap(claim)
        possible = self.room.possible(needs, claim.model, claim.held)
        need = next((need for need in possible if self._is_nobodys(need, claim)), None)
        copying = None if need is None else claim.model.copying.get(node_of(need), 0.0)
        if need is not None and own is not None and own.is_coming:
            return None if copying else self._load(claim, need)
        if need is not None and (not copying or own is not None):
            return self._load(claim, need)
        if own is not None:
            ways = [way for way in needs if node_of(way) == own.node]
        else:
            begun = frozenset[str]().union(*(swap.nodes for swap in self._swaps.values()))
            ways = [way for way in needs if not begun or begun.isdisjoint(self._nodes(way))]
        made = self._make_room(claim, ways, now, below=copying) if ways else None
        if made is None and need is not None and not self._own(claim):
            return self._load(claim, need)
        return made

    def _is_nobodys(self, need: Bytes, claim: ModelRecord) -> bool:
        """Whether what is free is not cleared for others."""
        turns = (turn for turn in self._begun(nodes_of(need)) if turn is not claim)
        return all(self.room.spares(need, claim, turn) for turn in turns)

    def apply(self, rules: SwapConfig) -> None:
        """From now on these are the rules, and other budgets, perhaps."""
        self.rules = rules
        for claim in self.records.among("claims"):
            claim.looked_at = None

    def shrink(self, now: float) -> None:
        """More is promised than there is, since budgets were cut: models leave until it fits, idle
        ones first, those in use as their last lease ends.
        """
        if not (missing := self.room.excess()):
            return
        loaded = [
            record
            for record in self.records.among("loaded", "parked")
            if record.phase == "loaded" or not record.is_claim
            if missing.keys() & record.held.keys()
        ]
        evictable = [record for record in loaded if not record.model.pinned]
        victims = choose_victims(evictable, missing, now)
        for record in evictable if victims is None else victims:
            record.drain("budget")

    def keep_pinned(self, now: float) -> None:
        """What was pinned since it began to drain stays, whatever it drains for: others go in its
        place.
        """
        stayers = [record for record in self.records.among("draining") if record.is_kept]
        for record in stayers:
            record.enter("loaded")
        if stayers:
            self.shrink(now)

    def claims(self, now: float) -> list[ModelRecord]:
        """The absent models that are wanted, in the order of their turns.

        The begun swap, the overdue ones by age, those an administrator asked for, the most worth.
        """

        def rank(claim: ModelRecord) -> tuple[bool, bool, float, bool, float, float]:
            late = now >= overdue_at(claim, self.rules)
            age = claim.oldest if late else 0.0
            begun = claim.model.name in self._swaps
            return not begun, not late, age, not claim.wanted, -worth(claim), claim.oldest

        return sorted(self.records.among("claims"), key=rank)

    def next_moment(self, now: float) -> float:
        """When time alone may change what `admit` does; never, if it can't."""
        claims = self.records.among("claims")
        if not claims:
            self._moments.clear()
            return NEVER
        times = [turn_comes_at(claim, self.rules) for claim in claims]
        times += [overdue_at(claim, self.rules) for claim in claims]
        times += self._moments.values()
        return min((time for time in times if time > now), default=NEVER)

    def _load(self, claim: ModelRecord, need: Bytes) -> Load:
        free = {device: self.room.free(device) for device in need}
        self._end(claim)
        claim.whole, claim.speed = claim.model, claim.model.speed_at(need)
        claim.enter("loading")
        claim.hold(need)
        claim.chosen = need
        return Load(claim.model.name, need, free, claim.evicted)

    def _make_room(
        self, claim: ModelRecord, needs: Sequence[Bytes], now: float, *, below: float | None
    ) -> Load | None:
        """Begin the turn of `claim`, if room can be made for one of its `needs`: idle models go at
        any time, used in turn. `below`: only idle ones, and at less than that cost. Where it is
        kept together with others it may fit at once.

        For a swap that has begun, idle models may step in for used ones that still drain.
        """
        swap = self._cheapest(claim, needs, now, used=False)
        if below is not None:
            if swap is not None and swap[0][1] >= below:
                return None
        elif swap is None and self._may_drain(claim, now):
            swap = self._cheapest(claim, needs, now, used=True)
        if swap is None:
            return None
        _, need, victims = swap
        if below is None and (joint := self.agreements.together(claim, victims)) is not None:
            need, victims = joint
            if not victims and [*self.room.possible([need], claim.model, claim.held)]:
                return self._load(claim, need)
        claim.chosen = need
        self._begin(claim, victims)
        return None

    def _may_drain(self, claim: ModelRecord, now: float) -> bool:
        """Whether models in use may leave for it: its turn has come, and none do yet."""
        swap = self._swap(claim)
        return now >= turn_comes_at(claim, self.rules) and not (swap and swap.draining())

    def _cheapest(
        self, claim: ModelRecord, needs: Sequence[Bytes], now: float, *, used: bool
    ) -> tuple[tuple[bool, float, int], Bytes, tuple[ModelRecord, ...]] | None:
        """For which of `needs` room is made at the least cost, the first of equals, and who goes
        for it; None: for none of them. What it can have of a device is computed once: many needs
        have each.
        """
        best: tuple[tuple[bool, float, int], Bytes, tuple[ModelRecord, ...]] | None = None
        there: dict[frozenset[str], list[ModelRecord]] = {}
        most: Counter[str] = Counter()  # bytes that could become free, by device
        reach = cache(lambda device: self.room.within_reach(device, (claim,)))
        looked = 0
        for need in needs:
            if self.room.beside(need, claim.model) is not None:
                continue
            nodes = self._nodes(need)
            if nodes not in there:
                if best is not None and looked >= ENOUGH:
                    break
                there[nodes] = list(self._candidates(claim, nodes, now, used=used))
                for one in there[nodes]:
                    most.update(one.held)
            missing = {device: size - reach(device) for device, size in need.items()}
            if any(size > max(0, most[device]) for device, size in missing.items()):
                continue
            victims = choose_victims(there[nodes], missing, now)
            if victims is None:
                continue
            looked += 1
            in_use, value, count = cost(victims, now)
            price = in_use, value + claim.model.copying.get(node_of(need), 0.0), count
            if best is None or price < best[0]:
                best = price, need, victims
        return best

    def _nodes(self, need: Bytes) -> frozenset[str]:
        """Those that it is on, and those of who has its turn."""
        turns = {device for device in need if device.startswith(TURN)}
        records = self.records.values() if turns else ()
        holders = (record for record in records if turns & record.held.keys())
        return nodes_of(need).union(*(record.nodes for record in holders))

    def _candidates(
        self, claim: ModelRecord, nodes: frozenset[str], now: float, *, used: bool
    ) -> Iterator[ModelRecord]:
        """Models on these nodes that may be evicted for `claim`: none that is pinned, and none just
        loaded unless `claim` insists.
        """
        for record in self.records.among("loaded", "parked"):
            if record.nodes.isdisjoint(nodes):
                continue
            if record.phase == "parked" and not record.is_claim:
                yield record
            if record.phase != "loaded" or record.model.pinned:
                continue
            idle = record.is_idle
            if not (used or idle):
                continue
            until = (lingers_until if idle else serves_until)(record, self.rules)
            if claim.insists or now >= until:
                yield record
            else:
                for node in record.nodes:
                    self._moments[node] = min(until, self._moments.get(node, NEVER))

    def _begin(self, claim: ModelRecord, victims: tuple[ModelRecord, ...]) -> None:
        self._end(claim)
        assert claim.chosen is not None
        self._swaps[claim.model.name] = Swap(
            claim, victims, node_of(claim.chosen), self._nodes(claim.chosen)
        )
        for victim in victims:
            victim.drain("room")

    def _end(self, claim: ModelRecord) -> None:
        """No more room is needed for it: models that still drain for it go on serving."""
        if (swap := self._swaps.pop(claim.model.name, None)) is not None:
            self.records.changed |= swap.nodes
            for victim in swap.draining():
                victim.stay()
