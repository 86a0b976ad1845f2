"""The scheduler: decides which models are loaded, which requests wait and which models are evicted.
Events in, orders out.

Pure: it knows no clock, no event loop and no engine. Every event method returns the orders that
follow from it, in the order they are to be carried out. The caller passes the time with each event,
and calls `tick` at `wakes_at`.

What is promised:

- A model that is used is never unloaded. It drains (takes no new work) when another model's turn
has come.
- On no device is more promised than its budget, counting the models that load and those that leave.
- Every ticket is answered exactly once: granted, refused, or cancelled by its owner.
- Within a model owners of keys take turns, `slots` leases at a time (`ModelRecord.in_turn`); an
owner's requests are served as they came. Where the lines are full, whoever has most in them gives
up its newest place to one who has less.
- No model starves. Once the first in a model's line has waited `max_wait`, the model is overdue:
  nothing behind it is loaded on its devices, and the models in its way take no new work once they
  have had their quantum (`patience.serves_until`). So it is loaded no later than `max_wait` plus,
  for itself and for each model that became overdue before it or whose swap had begun: one load
  (two, where memory runs out), one quantum, the longest running answer and one unload.
- Memory that is cleared for one model is not taken by another.

Turn-taking: which absent models are loaded now, and which ones are evicted for them.

On each node at most one swap is prepared at a time: its models drain, their memory is kept for it,
and it is finished before the next one begins there. The choice of victims may still change when
another model falls idle, and all is undone when no ticket waits for it any more.

With thousands of models on hundreds of devices most of what happens concerns one node. So a claim's
ways are all looked at when it comes and when its turn does, and in between only those on nodes on
which something changed.

A model whose files a node lacks may be loaded there all the same: the time to copy them is a cost
as that of an eviction is, and the lesser of both is taken.

The rules that balance waiting requests against served ones:

- *Linger*: an idle model that was just loaded stays for a moment: at most `min_stay`, and no longer
  than its load took, because waiting longer for a next request would cost more than loading it
  again.
- *Quantum*: a model in use that was just loaded takes new work for `WORTH` times its load time, at
  least for `min_stay`, and until those are served who waited when it was loaded; but, the
  `min_stay` apart, no longer than `max_wait`. So one swap serves many, and most of the time is
  spent answering.
- *Turn*: those in line for an absent model have waited, all together, for `WORTH` times its load
  time; or the first of them has waited for `max_wait`. From then on models in use may drain for it.

Models that take turns too often are kept together where that is better (`sharing.py`, unless
`share` is `never`): each is loaded in a way that takes less of the cards, when it would have been
loaded anyway.

It knows no tickets beyond the time they came.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache

import msgspec

from config.settings import SwapConfig
from gateway.registry.nodes import HERE, node_of, nodes_of
from gateway.registry.record import (
    NEVER,
    Bytes,
    CancelLoad,
    Evicted,
    Grant,
    Load,
    MemoryLedger,
    Model,
    ModelRecord,
    Order,
    Phase,
    Records,
    Refuse,
    Smaller,
    Ticket,
    Unload,
    WhyRefuse,
    WhyUnload,
)
from gateway.registry.sharing import Agreement, Rival, Sharing, agreed, is_outdone, on_cards


class EvictionCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """A model that may go. `idle_seconds` is None while it is in use."""

    name: str
    holds: Bytes
    load_seconds: float
    idle_seconds: float | None

    @property
    def value(self) -> tuple[bool, float]:
        """The cost of its eviction: its load time by the odds of its next use; in use, most.

        The longer it was not requested, the less likely is it that the next request is for it.
        """
        if self.idle_seconds is None:
            return True, self.load_seconds
        return False, self.load_seconds / (1.0 + self.idle_seconds)


def choose_victims(
    candidates: Iterable[EvictionCandidate], missing: Bytes
) -> tuple[str, ...] | None:
    """The least valuable models that hold `missing` bytes together; None if all of them don't.

    Greedy by value, then the dearest that turn out superfluous are spared.
    """
    chosen: list[EvictionCandidate] = []
    for candidate in sorted(candidates, key=lambda each: each.value):
        if covers(chosen, missing):
            break
        if any(candidate.holds.get(device, 0) > 0 for device in lacking(chosen, missing)):
            chosen.append(candidate)
    if not covers(chosen, missing):
        return None
    return tuple(candidate.name for candidate in spare(chosen, missing))


def cost(
    candidates: Iterable[EvictionCandidate], names: Collection[str]
) -> tuple[bool, float, int]:
    """Of the eviction of those called so: whether one of them is in use, and their values."""
    values = [candidate.value for candidate in candidates if candidate.name in names]
    return any(used for used, _ in values), sum(value for _, value in values), len(values)


def spare(chosen: list[EvictionCandidate], missing: Bytes) -> list[EvictionCandidate]:
    """`chosen` without those that aren't needed, the most valuable checked first."""
    kept = list(chosen)
    for candidate in reversed(chosen):
        rest = [other for other in kept if other is not candidate]
        if covers(rest, missing):
            kept = rest
    return kept


def covers(chosen: Iterable[EvictionCandidate], missing: Bytes) -> bool:
    """Whether `chosen` hold enough on every device."""
    return not lacking(chosen, missing)


def lacking(chosen: Iterable[EvictionCandidate], missing: Bytes) -> Mapping[str, int]:
    """What is still missing when `chosen` have gone."""
    group = list(chosen)
    rest = {
        device: size - sum(candidate.holds.get(device, 0) for candidate in group)
        for device, size in missing.items()
    }
    return {device: size for device, size in rest.items() if size > 0}


WORTH = (
    3.0  # so many load times waited for, or served, pay for a swap (benchmarks: 2 to 8 do alike)
)


ENOUGH = 8  # swaps that are compared; on further nodes there may be cheaper ones


def lingers_until(record: ModelRecord, rules: SwapConfig) -> float:
    """Until when an idle model is left alone."""
    return record.loaded_at + min(rules.min_stay, record.model.load_seconds)


def serves_until(record: ModelRecord, rules: SwapConfig) -> float:
    """Until when a model in use takes new work, whatever else waits."""
    waited_for_it = record.oldest <= record.loaded_at
    paid = rules.max_wait if waited_for_it else WORTH * record.model.load_seconds
    return record.loaded_at + max(rules.min_stay, min(rules.max_wait, paid))


def turn_comes_at(claim: ModelRecord, rules: SwapConfig) -> float:
    """From when on models in use drain for `claim`; at once, if it insists."""
    if claim.insists:
        return float("-inf")
    arrivals = [ticket.arrived for ticket in claim.line.values()]
    together = (WORTH * claim.model.load_seconds + sum(arrivals)) / len(arrivals)
    return min(overdue_at(claim, rules), together)


def overdue_at(claim: ModelRecord, rules: SwapConfig) -> float:
    """From when on nothing behind it is loaded in its way."""
    return claim.oldest + rules.max_wait


def worth(claim: ModelRecord) -> float:
    """Requests helped per second of loading. Loading in this order makes the mean wait shortest.

    (W. E. Smith, Various optimizers for single-stage production, 1956.)
    """
    return len(claim.line) / max(claim.model.load_seconds, 1e-3)


class Swap(msgspec.Struct, frozen=True, eq=False):
    """Room is made for `claim` on a node, or on several together: the models that leave for it."""

    claim: ModelRecord
    victims: tuple[ModelRecord, ...]
    nodes: frozenset[str]

    def draining(self) -> list[ModelRecord]:
        """Those that still serve."""
        return [
            victim
            for victim in self.victims
            if victim.phase == "draining" and victim.leaving == "room"
        ]


class Turns:
    """Reads and moves the scheduler's `records`: to loading, to draining, and back from there."""

    def __init__(
        self, records: Records, room: MemoryLedger, rules: SwapConfig, sharing: Sharing
    ) -> None:
        self._records = records
        self._room = room
        self._rules = rules
        self._sharing = sharing
        self._swaps: dict[str, Swap] = {}  # by the node that the claim is started on
        self._moments: dict[str, float] = {}  # by node, when more may leave it

    @property
    def rest(self) -> bool:
        """No room is being made."""
        return not self._swaps

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
            elif now >= overdue_at(claim, self._rules):
                barred.update(*(self._own(claim) or claim.needs))
            claim.looked_at = None if barred else now

    def _changed(self, now: float) -> set[str]:
        """The nodes where something did, or the time came for something."""
        changed = self._records.changed | {HERE}
        self._records.changed = set()
        for node in [node for node, time in self._moments.items() if time <= now]:
            del self._moments[node]
            changed.add(node)
        return changed

    def _open(self, claim: ModelRecord, changed: set[str], now: float) -> Sequence[Bytes]:
        """The ways of `claim` that may have become possible since they were looked at."""
        before = claim.looked_at
        times = (turn_comes_at(claim, self._rules), overdue_at(claim, self._rules))
        if before is None or any(before < time <= now for time in times):
            return claim.needs
        return [need for node, needs in claim.ways.items() if node in changed for need in needs]

    def _own(self, claim: ModelRecord) -> Sequence[Bytes]:
        """Its ways on the node where room is being made for it; none, if it isn't."""
        for node, swap in self._swaps.items():
            if swap.claim is claim:
                return claim.ways.get(node, ())
        return ()

    def _is_lost(self, claim: ModelRecord) -> bool:
        """Where room is being made for it, there can be none any more."""
        return self._room.obstacle(claim.model.name, self._own(claim) or claim.needs) is not None

    def _admitted(self, claim: ModelRecord, needs: Sequence[Bytes], now: float) -> Load | None:
        """Load it where it fits, or make room for it. One that would have to be copied to where it
        fits may rather have another one leave where it lies.
        """
        own = next((node for node, swap in self._swaps.items() if swap.claim is claim), None)
        possible = self._room.possible(needs, claim)
        need = next((need for need in possible if self._fits(need, claim)), None)
        copying = None if need is None else claim.model.copying.get(node_of(need), 0.0)
        if need is not None and own is not None and self._is_coming(claim):
            return None if copying else self._load(claim, need)
        if need is not None and (not copying or own is not None):
            return self._load(claim, need)
        if own is not None:
            ways = [way for way in needs if node_of(way) == own]
        else:
            begun = frozenset[str]().union(*(swap.nodes for swap in self._swaps.values()))
            ways = [way for way in needs if not begun or begun.isdisjoint(nodes_of(way))]
        made = self._make_room(claim, ways, now, below=copying) if ways else None
        if made is None and need is not None and not self._own(claim):
            return self._load(claim, need)
        return made

    def _fits(self, need: Bytes, claim: ModelRecord) -> bool:
        """Whether it is free, and not cleared for others."""
        turns = [*self._begun(nodes_of(need))]
        return all(self._room.fits(need, claim, turn) for turn in turns or (None,))

    def _is_coming(self, claim: ModelRecord) -> bool:
        """The room that is being made for it will be there in a moment: nobody uses it any more."""
        victims = [
            one for swap in self._swaps.values() if swap.claim is claim for one in swap.victims
        ]
        return any(one.phase == "leaving" for one in victims) and not self._waits_for_users(claim)

    def _waits_for_users(self, claim: ModelRecord) -> bool:
        """Room is being made for it, but models in use have to leave yet."""
        return any(swap.draining() for swap in self._swaps.values() if swap.claim is claim)

    def apply(self, rules: SwapConfig) -> None:
        """From now on these are the rules, and other budgets, perhaps."""
        self._rules = rules
        for claim in self._records.claims():
            claim.looked_at = None

    def shrink(self, now: float) -> None:
        """More is promised than there is, since budgets were cut: models leave until it fits, idle
        ones first, those in use as their last lease ends.
        """
        if not (missing := self._room.excess()):
            return
        loaded = [
            record
            for record in self._records.among("loaded", "parked")
            if record.phase == "loaded" or not record.is_claim
            if missing.keys() & record.held.keys()
        ]
        evictable = [record for record in loaded if not record.model.pinned]
        names = choose_victims([candidate(record, now) for record in evictable], missing)
        for record in evictable:
            if names is None or record.model.name in names:
                record.phase, record.leaving = "draining", "budget"

    def keep_pinned(self, now: float) -> None:
        """What was pinned since it began to drain stays, whatever it drains for: others go in its
        place.
        """
        stayers = [record for record in self._records.among("draining") if record.is_kept]
        for record in stayers:
            record.phase = "loaded"
        if stayers:
            self.shrink(now)

    def claims(self, now: float) -> list[ModelRecord]:
        """The absent models that are wanted, in the order of their turns.

        The begun swap, the overdue ones by age, those an administrator asked for, the most worth.
        """
        begun = [swap.claim for swap in self._swaps.values()]

        def rank(claim: ModelRecord) -> tuple[bool, bool, float, bool, float, float]:
            late = now >= overdue_at(claim, self._rules)
            age = claim.oldest if late else 0.0
            return (
                claim not in begun,
                not late,
                age,
                not claim.wanted,
                -worth(claim),
                claim.oldest,
            )

        return sorted(self._records.claims(), key=rank)

    def next_moment(self, now: float) -> float:
        """When time alone may change what `admit` does; never, if it can't."""
        claims = self._records.claims()
        if not claims:
            self._moments.clear()
            return NEVER
        times = [turn_comes_at(claim, self._rules) for claim in claims]
        times += [overdue_at(claim, self._rules) for claim in claims]
        times += self._moments.values()
        return min((time for time in times if time > now), default=NEVER)

    def _load(self, claim: ModelRecord, need: Bytes) -> Load:
        free = {device: self._room.free(device) for device in need}
        self._end(claim)
        claim.whole, claim.speed = claim.model, _speed(claim.model, need)
        claim.phase, claim.held, claim.chosen = "loading", need, need
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
        if below is None and (joint := self._together(claim, victims)) is not None:
            need, victims = joint
            if not victims and self._room.fits(need, claim, None):
                return self._load(claim, need)
        claim.chosen = need
        self._begin(claim, victims)
        return None

    def _together(
        self, claim: ModelRecord, victims: Sequence[str]
    ) -> tuple[Bytes, tuple[str, ...]] | None:
        """Where `claim` and those that would leave for it are better kept together: its way, and
        who has to leave all the same, to come back in a smaller one. None: they take turns, as
        those do that lie on other machines alone.
        """
        residents = [self._records[name] for name in victims]
        near = all(one.phase == "loaded" and HERE in one.nodes for one in residents)
        if self._rules.share == "never" or not near or claim.retrying is not None:
            return None
        if not _may_lie_here(claim):
            return None
        group = (claim, *residents)
        rivals = [self._rival(one.model.name, one.model, one) for one in group]
        rivals += self._absent({one.model.name for one in group}, rivals)
        devices = {device for rival in rivals for way in rival.ways for device in way.need}
        room = {device: self._room.within_reach(device, group) for device in devices}
        agreement = agreed(rivals, room, stay=self._rules.min_stay, worth=WORTH)
        if agreement is None:
            return None
        way = agreement.way(claim.model.name, claim.model.all_ways)
        assert way is not None, "it was chosen of these"
        leavers = [one for one in residents if not agreement.keeps(one.model.name, one.held)]
        return self._agree(claim, agreement, way.need), tuple(one.model.name for one in leavers)

    def _agree(self, claim: ModelRecord, agreement: Agreement, need: Bytes) -> Bytes:
        """From now on."""
        for name in agreement.parts:
            self.disagree(name)
        self._sharing.agree(agreement)
        claim.shared = need
        return need

    def disagree(self, name: str) -> None:
        """The agreement of that model is over."""
        for member in self._sharing.end(name):
            if (record := self._records.get(member)) is not None:
                record.shared = None

    def _absent(self, names: Collection[str], rivals: Sequence[Rival]) -> list[Rival]:
        """Models that were asked for lately and are gone: they will want the same cards again."""
        cards = {card for one in rivals for way in one.ways for card in on_cards(way.need)}
        gone = (
            (name, model)
            for name, model in self._sharing.others(names)
            if cards & on_cards(model.need).keys()
            if (record := self._records.get(name)) is None or not record.held
        )
        return [self._rival(name, model, None) for name, model in gone]

    def _rival(self, name: str, model: Model, record: ModelRecord | None) -> Rival:
        lies = None
        if record is not None and record.phase == "loaded":
            model, lies = record.whole, Smaller(record.held, record.speed)
        usage = self._sharing.usage(name)
        ways = (way for way in model.all_ways if node_of(way.need) == HERE)
        return Rival(
            name=name,
            load_seconds=model.load_seconds,
            seconds=usage.seconds,
            slots=model.slots,
            arrivals=tuple(usage.arrivals),
            ways=tuple(Smaller(way.need, _part(model, way)) for way in ways),
            lies=lies,
        )

    def place(self, record: ModelRecord) -> None:
        """A model that is asked for and absent is to lie as was agreed, if one of the others is
        here, or asked for.
        """
        name = record.model.name
        agreement = self._sharing.agreement(name)
        record.shared = None
        self._sharing.usage(name).model = record.model
        if agreement is None or not any(map(self._is_around, agreement.parts.keys() - {name})):
            return
        way = agreement.way(name, record.model.all_ways)
        if way is not None and way.need != record.model.need:
            record.shared = way.need

    def _is_around(self, name: str) -> bool:
        record = self._records.get(name)
        return record is not None and (bool(record.held) or record.is_claim)

    def _is_regretted(
        self, agreement: Agreement, group: Sequence[ModelRecord], loads: float
    ) -> bool:
        """Whether the first of `group` had better have its full room."""
        if agreement.lost[group[0].model.name] > loads:
            return True
        if agreement.spent <= loads or len(group) < len(agreement.parts):
            return False
        agreement.spent = 0.0
        rivals = [self._rival(one.model.name, one.model, one) for one in group]
        return is_outdone(rivals, stay=self._rules.min_stay, worth=WORTH)

    def regret(self, record: ModelRecord) -> None:
        """A model falls idle that is kept together with others: it gets its full room back where
        giving way has cost more than it saved.
        """
        name = record.model.name
        agreement = self._sharing.agreement(name)
        if agreement is None or record.phase != "loaded" or record.model.pinned:
            return
        others = [self._records.get(other) for other in agreement.parts.keys() - {name}]
        group = [record, *(one for one in others if one is not None and one.phase == "loaded")]
        loads = sum(one.model.load_seconds for one in group)
        if not all(one.is_idle for one in group) or not self._is_regretted(agreement, group, loads):
            return
        self.disagree(name)
        whole = record.whole
        record.model = msgspec.structs.replace(
            record.model,
            need=whole.need,
            others=whole.others,
            smaller=whole.smaller,
            speed=whole.speed,
        )
        record.wanted, record.phase, record.leaving = True, "draining", "share"

    def _may_drain(self, claim: ModelRecord, now: float) -> bool:
        """Whether models in use may leave for it: its turn has come, and none do yet."""
        return now >= turn_comes_at(claim, self._rules) and not self._waits_for_users(claim)

    def _cheapest(
        self, claim: ModelRecord, needs: Sequence[Bytes], now: float, *, used: bool
    ) -> tuple[tuple[bool, float, int], Bytes, tuple[str, ...]] | None:
        """For which of `needs` room is made at the least cost, the first of equals, and who goes
        for it; None: for none of them. What it can have of a device is computed once: many needs
        have each.
        """
        best: tuple[tuple[bool, float, int], Bytes, tuple[str, ...]] | None = None
        there: dict[frozenset[str], list[EvictionCandidate]] = {}
        most: Counter[str] = Counter()  # bytes that could become free, by device
        reach = cache(lambda device: self._room.within_reach(device, (claim,)))
        looked = 0
        for need in needs:
            if self._room.beside(need, claim.model) is not None:
                continue
            nodes = nodes_of(need)
            if nodes not in there:
                if best is not None and looked >= ENOUGH:
                    break
                there[nodes] = list(self._candidates(claim, nodes, now, used=used))
                for one in there[nodes]:
                    most.update(one.holds)
            missing = {device: size - reach(device) for device, size in need.items()}
            if any(size > max(0, most[device]) for device, size in missing.items()):
                continue
            names = choose_victims(there[nodes], missing)
            if names is None:
                continue
            looked += 1
            in_use, value, count = cost(there[nodes], names)
            price = in_use, value + claim.model.copying.get(node_of(need), 0.0), count
            if best is None or price < best[0]:
                best = price, need, names
        return best

    def _candidates(
        self, claim: ModelRecord, nodes: frozenset[str], now: float, *, used: bool
    ) -> Iterator[EvictionCandidate]:
        """Models on these nodes that may be evicted for `claim`: none that is pinned, and none just
        loaded unless `claim` insists.
        """
        for record in self._records.on(nodes):
            if record.phase == "parked" and not record.is_claim:
                yield candidate(record, now)
            if record.phase != "loaded" or record.model.pinned:
                continue
            idle = record.is_idle
            if not (used or idle):
                continue
            until = (lingers_until if idle else serves_until)(record, self._rules)
            if claim.insists or now >= until:
                yield candidate(record, now)
            else:
                for node in record.nodes:
                    self._moments[node] = min(until, self._moments.get(node, NEVER))

    def _begin(self, claim: ModelRecord, victims: tuple[str, ...]) -> None:
        self._end(claim)
        assert claim.chosen is not None
        leavers = tuple(self._records[name] for name in victims)
        self._swaps[node_of(claim.chosen)] = Swap(claim, leavers, nodes_of(claim.chosen))
        for victim in leavers:
            victim.phase, victim.leaving = "draining", "room"

    def _end(self, claim: ModelRecord) -> None:
        """No more room is needed for it: models that still drain for it go on serving."""
        for node, swap in list(self._swaps.items()):
            if swap.claim is claim:
                del self._swaps[node]
                self._records.changed |= swap.nodes
                for victim in swap.draining():
                    victim.stay()


def _may_lie_here(claim: ModelRecord) -> bool:
    """On this machine, where alone models are kept together."""
    return bool(claim.ways.get(HERE)) or any(
        node_of(way.need) == HERE for way in claim.model.smaller
    )


def _speed(model: Model, need: Bytes) -> float:
    """Of this way, as a part of the best. No object is made for each of `others`, which may be
    hundreds: Python's collector would begin within decisions.
    """
    if need == model.need or need in model.others:
        return 1.0
    slower = (_part(model, way) for way in model.smaller if way.need == need)
    return next(slower, 1.0)


def _part(model: Model, way: Smaller) -> float:
    return min(1.0, way.speed / max(model.speed, 1e-6))


def candidate(record: ModelRecord, now: float) -> EvictionCandidate:
    """The cost of this model's eviction."""
    return EvictionCandidate(
        name=record.model.name,
        holds=record.held,
        load_seconds=record.model.load_seconds,
        idle_seconds=now - record.idle_since if record.is_idle else None,
    )


SHORT_REST = 1.0  # seconds until a model is loaded again that broke after it had served
SMOOTHING = 8  # grants over which the recent wait is averaged


class Scheduler:
    """Decides for one set of devices. `budgets`: bytes per device; a device not named has none."""

    def __init__(self, budgets: Bytes, rules: SwapConfig) -> None:
        self._rules = rules
        self._records = Records()
        self._homes: dict[int, ModelRecord] = {}  # of each ticket, while it waits or holds
        self.room = MemoryLedger(budgets, self._records)
        self._sharing = Sharing()
        self._turns = Turns(self._records, self.room, rules, self._sharing)
        self._recent_wait = 0.0  # seconds, of those granted lately
        self._closing = False

    # ---------------------------------------------------------------------------- events

    def grant_at_once(self, now: float, ticket: Ticket, name: str) -> bool:
        """Whether the ticket is a lease already: its model is loaded and has room, and everything
        rests, so nothing else follows. Else it is to be `requested`.
        """
        record = self._records.get(name)
        if record is None or self._closing or len(record.users) >= record.model.slots:
            return False
        if not self._rests(record) or now >= record.expires_at():
            return False
        self._homes[ticket.number] = record
        record.users[ticket.number] = ticket
        self._sharing.asked(name, now)
        self._recent_wait -= self._recent_wait / SMOOTHING
        return True

    def give_back(self, now: float, number: int) -> float | None:
        """A lease was given back, and nothing else follows from it before the time that is
        returned. None: it is to be `released`.
        """
        record = self._homes[number]
        if not self._rests(record):
            return None
        ticket = record.users[number]
        ttl = record.model.ttl if ticket.keep_alive is None else ticket.keep_alive
        if ttl == 0 or self._sharing.agreement(record.model.name) is not None:
            return None
        del self._homes[number], record.users[number]
        self._note_answer(now, record, ticket)
        record.ttl = ttl
        if not record.users:
            record.idle_since = now
        return record.expires_at()

    def _note_answer(self, now: float, record: ModelRecord, ticket: Ticket) -> None:
        began = max(ticket.arrived, record.loaded_at)
        self._sharing.answered(record.model.name, max(0.0, now - began), record.speed)

    def _rests(self, record: ModelRecord) -> bool:
        """The model is loaded, and no other comes, goes or is waited for."""
        return (
            record.phase == "loaded"
            and self._turns.rest
            and not self._records.any_among("loading", "draining", "leaving")
            and not self._records.any_asked
        )

    def requested(self, now: float, ticket: Ticket, model: Model) -> list[Order]:
        """A ticket for a lease; or for `model` to be loaded, with one that doesn't hold."""
        orders = list(self._settle(now))
        record = self._records.open(model)
        if ticket.holds:
            self._sharing.asked(model.name, now)
        if record.phase in ("absent", "parked"):
            self._turns.place(record)
        if (refusal := self._refusal(now, ticket, record)) is not None:
            loser = self._greedier(ticket.owner) if refusal.why == "queue_full" else None
            if loser is None:
                self._forget()
                return [*orders, refusal]
            orders += self._refuse_ticket(loser, refusal)
        self._homes[ticket.number] = record
        record.join(ticket)
        record.wanted = record.wanted or not ticket.holds
        return [*orders, *self._settle(now)]

    def cancelled(self, now: float, number: int) -> list[Order]:
        """The owner of a waiting ticket left."""
        record = self._homes.pop(number)
        record.give_up(number)
        return [*self._drop_unwanted(record), *self._settle(now)]

    def released(self, now: float, number: int) -> list[Order]:
        """A lease was given back."""
        record = self._homes.pop(number)
        ticket = record.users.pop(number)
        requested = ticket.keep_alive
        record.ttl = record.model.ttl if requested is None else requested
        self._note_answer(now, record, ticket)
        if not record.users:
            record.idle_since = now
            self._turns.regret(record)
        return list(self._settle(now))

    def loaded(self, now: float, name: str, held: Bytes, seconds: float) -> list[Order]:
        """`name` is in memory: what it really takes there, and took to load."""
        record = self._records[name]
        assert record.phase == "loading", f"{name} was loaded while {record.phase}"
        record.held = held
        record.model = msgspec.structs.replace(record.model, need=held, load_seconds=seconds)
        record.arrive(now)
        served = list(self._serve(now, record))  # first: it was loaded for them
        return [*served, *self._settle(now)]

    def load_failed(
        self,
        now: float,
        name: str,
        reason: str,
        *,
        memory: bool,
        moved: bool = False,
        free: Bytes | None = None,
    ) -> list[Order]:
        """The load ended in an error; where `memory` ran out it is tried once more: in a way that
        takes less, if there is one for what is really `free`, since others have taken what was
        promised; else with more room. `moved`: where it was to lie is no place any more, so it is
        tried elsewhere, if it may lie there.
        """
        record = self._records[name]
        assert record.phase == "loading", f"{name} failed to load while {record.phase}"
        failed = record.need
        record.leave()
        self._turns.disagree(name)
        if moved and self.room.obstacle(name, record.needs) is None:
            return list(self._settle(now))
        if memory and record.retrying is None:
            record.retrying = self._smaller(record, failed, free or {}) or self.room.more(record)
            if record.retrying is not None:
                return list(self._settle(now))
        failure = record.fail(now, reason, self._rules.backoff)
        refusals = self._refuse_line(record, "failed", reason, failure.retry_at - now)
        return [*refusals, *self._settle(now)]

    def _smaller(self, record: ModelRecord, failed: Bytes, free: Bytes) -> Bytes | None:
        """The way that takes less of cards than the one which failed, and nothing from others."""
        there = sum(on_cards(failed).values())
        needs = (way.need for way in record.model.smaller)
        smaller = [need for need in needs if sum(on_cards(need).values()) < there]
        ways = list(self.room.possible(smaller, record))
        fitting = (
            need
            for need in ways
            if all(size <= free.get(device, size) for device, size in need.items())
        )
        return next(fitting, ways[-1] if ways else None)

    def unloaded(self, now: float, name: str) -> list[Order]:
        """The memory of a model that was unloaded, or whose load was cancelled, is free."""
        record = self._records[name]
        assert record.phase == "leaving", f"{name} was unloaded while {record.phase}"
        record.leave()
        return list(self._settle(now))

    def parked(self, now: float, name: str, held: Bytes) -> list[Order]:
        """A model that was to be parked is: what it holds."""
        record = self._records[name]
        assert record.phase == "leaving", f"{name} was parked while {record.phase}"
        record.park(held)
        return list(self._settle(now))

    def broke(self, now: float, name: str, reason: str, *, rest: bool = True) -> list[Order]:
        """`name` is in memory and unusable from now on: it leaves as its last lease ends. Without
        `rest` it may be loaded again at once: its node went, which says nothing of the model.

        Reported before that lease is released, so that no ticket gets another one. A model that had
        served for longer than a rest lasts comes back nearly at once: its files are sound.
        """
        record = self._records[name]
        if record.phase == "parked":  # its next load takes longer: nobody was promised less
            record.phase, record.leaving = "draining", "broken"
            return list(self._settle(now))
        assert record.phase in ("loaded", "draining"), f"{name} broke while {record.phase}"
        if record.phase == "draining" and record.leaving != "room":
            return []  # it goes anyway, or another lease reported it already
        record.phase, record.leaving = "draining", "broken"
        if not rest:
            return list(self._settle(now))  # those in line stay
        seconds = self._rules.backoff
        if now - record.loaded_at > seconds:
            seconds = min(seconds, SHORT_REST)
        failure = record.fail(now, reason, seconds)
        refusals = self._refuse_line(record, "failed", reason, failure.retry_at - now)
        return [*refusals, *self._settle(now)]

    def unload_asked(
        self, now: float, name: str, *, again: bool = False, why: WhyUnload = "asked"
    ) -> list[Order]:
        """An administrator wants it gone: running answers end, those in line are refused.

        `again`: it comes back at once, with other options, so those in line stay.
        """
        record = self._records.get(name)
        if record is None:
            return []
        record.wanted, record.failure, record.retrying = again, None, None
        self._turns.disagree(name)
        orders: list[Order] = []
        if not again:
            orders += self._refuse_line(record, "unloaded", f"{name} was unloaded on request")
        if record.phase == "loading":
            record.phase = "leaving"
            orders.append(CancelLoad(name))
        elif record.phase in ("loaded", "draining", "parked"):
            record.phase, record.leaving = "draining", why
        return [*orders, *self._settle(now)]

    def described(self, now: float, model: Model) -> list[Order]:
        """What is known of a model has changed, but not what is in memory: how long it stays, say.
        One that failed may be tried again at once.
        """
        record = self._records.get(model.name)
        if record is None:
            return []
        if model.ttl != record.model.ttl:
            record.ttl = model.ttl
        record.model, record.failure = model, None
        if record.phase in ("absent", "parked"):
            self._turns.place(record)
        return list(self._settle(now))

    def replaced(self, now: float, name: str) -> list[Order]:
        """What is in memory is not what is configured any more: it leaves as its last lease ends,
        and is loaded anew. Those in line stay.
        """
        record = self._records.get(name)
        if record is None or record.phase not in ("loading", "loaded", "draining", "parked"):
            return []
        return self.unload_asked(now, name, again=True, why="config")

    def removed(self, now: float, name: str) -> list[Order]:
        """There is no such model any more: running answers end, those in line are refused."""
        self._turns.disagree(name)
        self._sharing.forget(name)
        record = self._records.get(name)
        if record is None:
            return []
        reason = f"{name} was removed from the configuration"
        refusals = self._refuse_line(record, "removed", reason)
        return [*refusals, *self.unload_asked(now, name, why="config")]

    def apply(self, now: float, budgets: Bytes, rules: SwapConfig) -> list[Order]:
        """Other budgets and rules, from now on. Where less memory is left than models hold, some
        leave.
        """
        self._rules = rules
        self._turns.apply(rules)
        for name in self._sharing.together:
            self._turns.disagree(name)
        self.room.apply(budgets)
        self._turns.shrink(now)
        return list(self._settle(now))

    def tick(self, now: float) -> list[Order]:
        """Time passed."""
        return list(self._settle(now))

    def closing(self, now: float) -> list[Order]:
        """No more tickets: the line is refused, each model is unloaded as its last lease ends."""
        self._closing = True
        orders: list[Order] = []
        for name, record in list(self._records.items()):
            orders += self._refuse_line(record, "closing", "the server is stopping")
            orders += self.unload_asked(now, name)
        return orders

    # ---------------------------------------------------------------------------- asked

    def wakes_at(self, now: float) -> float | None:
        """When to `tick`, if nothing happens before; None: time alone changes nothing."""
        expiries = (record.expires_at() for record in self._records.mortal())
        moment = min(self._turns.next_moment(now), min(expiries, default=NEVER))
        return moment if moment < NEVER else None

    def residency(self, name: str) -> ModelRecord | None:
        """The record of a model that is in memory, wanted or failed. To be read, never changed."""
        return self._records.get(name)

    def records(self) -> tuple[ModelRecord, ...]:
        """Of all models that have one, see `residency`."""
        return tuple(self._records.values())

    def phase(self, name: str) -> Phase:
        """Where a model is between absent and loaded."""
        record = self._records.get(name)
        return "absent" if record is None else record.phase

    def waiting(self) -> int:
        """Tickets in line, over all models, that want a lease."""
        return self._records.waiting

    # ---------------------------------------------------------------------------- tickets

    def _refusal(self, now: float, ticket: Ticket, record: ModelRecord) -> Refuse | None:
        """Why this ticket can't even stand in line."""
        number, absent = ticket.number, record.phase in ("absent", "parked")
        useless = record.phase not in ("loading", "loaded")
        if self._closing:
            return Refuse(number, "closing", "the server is stopping")
        if useless and ticket.holds and record.failure and now < record.failure.retry_at:
            rest = record.failure.retry_at - now
            return Refuse(number, "failed", record.failure.reason, rest)
        if absent and (obstacle := self.room.obstacle(record.model.name, record.needs)) is not None:
            return Refuse(number, "too_large", obstacle)
        if ticket.holds and not record.is_open and self.waiting() >= self._rules.max_waiting:
            reason = f"{self._rules.max_waiting} requests are already queued"
            return Refuse(number, "queue_full", reason, max(1.0, self._recent_wait))
        return None

    def _greedier(self, owner: str) -> Ticket | None:
        """The newest of those in line, of the owner who has most there; None where that is no more
        than `owner` would have.
        """
        lines = (record.line.values() for record in self._records.asked())
        waiting = [ticket for line in lines for ticket in line if ticket.holds]
        counts = Counter(ticket.owner for ticket in waiting)
        greediest = max(counts, key=counts.__getitem__, default=owner)
        if counts[greediest] <= counts[owner] + 1:
            return None
        theirs = (ticket for ticket in waiting if ticket.owner == greediest)
        return max(theirs, key=lambda ticket: ticket.number)

    def _refuse_ticket(self, ticket: Ticket, refusal: Refuse) -> Iterator[Order]:
        """In place of another, which `refusal` was for."""
        record = self._homes.pop(ticket.number)
        record.give_up(ticket.number)
        yield msgspec.structs.replace(refusal, ticket=ticket.number)
        yield from self._drop_unwanted(record)

    def _refuse_line(
        self, record: ModelRecord, why: WhyRefuse, reason: str, retry_after: float | None = None
    ) -> list[Order]:
        numbers = record.dissolve()
        for number in numbers:
            del self._homes[number]
        return [Refuse(number, why, reason, retry_after) for number in numbers]

    def _drop_unwanted(self, record: ModelRecord) -> Iterator[Order]:
        """A load that no ticket waits for is cancelled, unless it was asked for to be there."""
        if record.line or record.wanted:
            return
        record.retrying = None
        if record.phase == "loading":
            record.phase = "leaving"
            yield CancelLoad(record.model.name)

    # ---------------------------------------------------------------------------- what follows

    def _settle(self, now: float) -> Iterator[Order]:
        """Everything that follows from the present state; draining models come before those that
        are served.
        """
        self._turns.keep_pinned(now)
        yield from self._refuse_impossible()
        served: list[Order] | None = None
        while (
            served is None or served
        ):  # a model may be free to go once those it had to stay for are served
            yield from self._turns.admit(now)
            served = [
                order for record in self._records.served() for order in self._serve(now, record)
            ]
            yield from served
        self._expire(now)
        for record in self._records.among("draining"):
            yield from self._dismiss(now, record)
        self._forget()

    def _expire(self, now: float) -> None:
        for record in self._records.mortal():
            if now >= record.expires_at():
                record.phase, record.leaving = "draining", "idle"

    def _refuse_impossible(self) -> Iterator[Order]:
        """What would not fit even alone must not wait: pinned models may have come since it did."""
        for claim in self._records.claims():
            if (obstacle := self.room.obstacle(claim.model.name, claim.needs)) is not None:
                claim.wanted, claim.retrying = False, None
                yield from self._refuse_line(claim, "too_large", obstacle)

    def _serve(self, now: float, record: ModelRecord) -> Iterator[Order]:
        record.wanted = False
        for ticket in record.in_turn() if record.serves else ():
            if not record.serves:
                break
            if ticket.holds and not record.is_open:
                continue
            record.serve(ticket)
            if ticket.holds:
                self._recent_wait += (now - ticket.arrived - self._recent_wait) / SMOOTHING
            else:
                del self._homes[ticket.number]
            yield Grant(ticket.number)

    def _dismiss(self, now: float, record: ModelRecord) -> Iterator[Order]:
        if record.users:
            return
        name, record.phase = record.model.name, "leaving"
        for_room, claim = record.leaving == "room", self._turns.beneficiary(record)
        if for_room and claim is not None:
            claim.evicted = (*claim.evicted, Evicted(name, now - record.idle_since))
        parks = for_room and not record.is_parked and self.room.may_park(record, claim)
        if parks:
            record.begin_parking()
        yield Unload(name, record.leaving, parks)

    def _forget(self) -> None:
        """A model that is neither here nor wanted nor failed needs no record."""
        for record in self._records.among("absent"):
            if not record.is_claim and record.failure is None:
                self._records.forget(record)
