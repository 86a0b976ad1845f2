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

At most one swap is prepared at a time: its models drain, their memory is kept for it, and it is
finished before the next one begins. The choice of victims may still change when another model falls
idle, and all is undone when no ticket waits for it any more.

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

It knows no tickets beyond the time they came.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from config.settings import SwapConfig
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
    Refuse,
    Ticket,
    Unload,
    WhyRefuse,
    WhyUnload,
)


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


class Turns:
    """Reads and moves the scheduler's `records`: to loading, to draining, and back from there."""

    def __init__(
        self, records: Mapping[str, ModelRecord], room: MemoryLedger, rules: SwapConfig
    ) -> None:
        self._records = records
        self._room = room
        self._rules = rules
        self.begun: ModelRecord | None = None  # the claim that room is being made for
        self._victims: tuple[ModelRecord, ...] = ()

    def admit(self, now: float) -> Iterator[Load]:
        """Load what fits, make room for the first claim that doesn't.

        While a claim is overdue, nothing behind it is loaded on its devices.
        """
        if self.begun is not None and not self.begun.is_claim:
            self._end()
        barred: set[str] = set()
        for claim in self.claims(now):
            needs = [need for need in claim.needs if not barred & need.keys()]
            fitting = (need for need in needs if self._room.fits(need, claim, self.begun))
            if (need := next(fitting, None)) is not None:
                yield self._load(claim, need)
                continue
            if needs and self.begun in (None, claim):
                self._make_room(claim, needs, now)
            if now >= overdue_at(claim, self._rules):
                barred.update(*claim.needs)

    def apply(self, rules: SwapConfig) -> None:
        """From now on these are the rules."""
        self._rules = rules

    def shrink(self, now: float) -> None:
        """More is promised than there is, since budgets were cut: models leave until it fits, idle
        ones first, those in use as their last lease ends.
        """
        if not (missing := self._room.excess()):
            return
        loaded = [
            record
            for record in self._records.values()
            if record.phase == "loaded" or (record.phase == "parked" and not record.is_claim)
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
        stayers = [record for record in self._records.values() if record.is_kept]
        for record in stayers:
            record.phase = "loaded"
        if stayers:
            self.shrink(now)

    def claims(self, now: float) -> list[ModelRecord]:
        """The absent models that are wanted, in the order of their turns.

        The begun swap, the overdue ones by age, those an administrator asked for, the most worth.
        """

        def rank(claim: ModelRecord) -> tuple[bool, bool, float, bool, float, float]:
            late = now >= overdue_at(claim, self._rules)
            age = claim.oldest if late else 0.0
            return (
                claim is not self.begun,
                not late,
                age,
                not claim.wanted,
                -worth(claim),
                claim.oldest,
            )

        return sorted((record for record in self._records.values() if record.is_claim), key=rank)

    def next_moment(self, now: float) -> float:
        """When time alone may change what `admit` does; never, if it can't."""
        claims = [record for record in self._records.values() if record.is_claim]
        if not claims:
            return NEVER
        times = [turn_comes_at(claim, self._rules) for claim in claims]
        times += [overdue_at(claim, self._rules) for claim in claims]
        for record in self._records.values():
            if record.phase == "loaded":
                times += [lingers_until(record, self._rules), serves_until(record, self._rules)]
        return min((time for time in times if time > now), default=NEVER)

    def _load(self, claim: ModelRecord, need: Bytes) -> Load:
        free = {device: self._room.free(device) for device in need}
        claim.phase, claim.held, claim.chosen = "loading", need, need
        if claim is self.begun:
            self._end()
        return Load(claim.model.name, need, free, claim.evicted)

    def _make_room(self, claim: ModelRecord, needs: Sequence[Bytes], now: float) -> None:
        """Begin the turn of `claim`, if room can be made for one of its `needs`: idle models go at
        any time, used in turn.

        For a swap that has begun, idle models may step in for used ones that still drain.
        """
        swap = self._cheapest(claim, needs, list(self._candidates(claim, now, used=False)))
        if swap is None and now >= turn_comes_at(claim, self._rules) and not self._draining():
            swap = self._cheapest(claim, needs, list(self._candidates(claim, now, used=True)))
        if swap is not None:
            claim.chosen, victims = swap
            self._begin(claim, victims)

    def _cheapest(
        self, claim: ModelRecord, needs: Sequence[Bytes], candidates: Sequence[EvictionCandidate]
    ) -> tuple[Bytes, tuple[str, ...]] | None:
        """For which of `needs` room is made at the least cost, the first of equals, and who goes
        for it; None: for none of them.
        """
        swaps = [
            (need, choose_victims(candidates, self._room.missing(need, claim))) for need in needs
        ]
        possible = [(need, names) for need, names in swaps if names is not None]
        return min(possible, key=lambda swap: cost(candidates, swap[1]), default=None)

    def _candidates(
        self, claim: ModelRecord, now: float, *, used: bool
    ) -> Iterator[EvictionCandidate]:
        """Models that may be evicted for `claim`: none that is pinned, and none just loaded unless
        `claim` insists.
        """
        for record in self._records.values():
            if record.phase == "parked" and not record.is_claim:
                yield candidate(record, now)
            if record.phase != "loaded" or record.model.pinned:
                continue
            if not (used or record.is_idle):
                continue
            until = lingers_until if record.is_idle else serves_until
            if claim.insists or now >= until(record, self._rules):
                yield candidate(record, now)

    def _begin(self, claim: ModelRecord, victims: tuple[str, ...]) -> None:
        self._end()
        self.begun, self._victims = claim, tuple(self._records[name] for name in victims)
        for victim in self._victims:
            victim.phase, victim.leaving = "draining", "room"

    def _end(self) -> None:
        """No more room is needed: models that still drain for it go on serving."""
        for victim in self._draining():
            victim.stay()
        self.begun, self._victims = None, ()

    def _draining(self) -> list[ModelRecord]:
        return [
            victim
            for victim in self._victims
            if victim.phase == "draining" and victim.leaving == "room"
        ]


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
        self._records: dict[str, ModelRecord] = {}
        self._homes: dict[int, ModelRecord] = {}  # of each ticket, while it waits or holds
        self.room = MemoryLedger(budgets, self._records)
        self._turns = Turns(self._records, self.room, rules)
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
        if ttl == 0:
            return None
        del self._homes[number], record.users[number]
        record.ttl = ttl
        if not record.users:
            record.idle_since = now
        return record.expires_at()

    def _rests(self, record: ModelRecord) -> bool:
        """The model is loaded, and no other comes, goes or is waited for."""
        return (
            record.phase == "loaded"
            and self._turns.begun is None
            and all(
                other.phase in ("loaded", "absent", "parked")
                and not other.line
                and not other.wanted
                for other in self._records.values()
            )
        )

    def requested(self, now: float, ticket: Ticket, model: Model) -> list[Order]:
        """A ticket for a lease; or for `model` to be loaded, with one that doesn't hold."""
        orders = list(self._settle(now))
        record = self._records.setdefault(model.name, ModelRecord(model=model))
        record.model = model
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
        del record.line[number]
        return [*self._drop_unwanted(record), *self._settle(now)]

    def released(self, now: float, number: int) -> list[Order]:
        """A lease was given back."""
        record = self._homes.pop(number)
        ticket = record.users.pop(number)
        requested = ticket.keep_alive
        record.ttl = record.model.ttl if requested is None else requested
        if not record.users:
            record.idle_since = now
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

    def load_failed(self, now: float, name: str, reason: str, *, memory: bool) -> list[Order]:
        """The load ended in an error; where `memory` ran out it is tried once more."""
        record = self._records[name]
        assert record.phase == "loading", f"{name} failed to load while {record.phase}"
        record.leave()
        if memory and record.retrying is None:
            record.retrying = self.room.more(record)
            if record.retrying is not None:
                return list(self._settle(now))
        failure = record.fail(now, reason, self._rules.backoff)
        refusals = self._refuse_line(record, "failed", reason, failure.retry_at - now)
        return [*refusals, *self._settle(now)]

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

    def broke(self, now: float, name: str, reason: str) -> list[Order]:
        """`name` is in memory and unusable from now on: it leaves as its last lease ends.

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
        rest = self._rules.backoff
        if now - record.loaded_at > rest:
            rest = min(rest, SHORT_REST)
        failure = record.fail(now, reason, rest)
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
        expiries = (record.expires_at() for record in self._records.values())
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
        lines = (record.line.values() for record in self._records.values())
        return sum(ticket.holds for line in lines for ticket in line)

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
        lines = (record.line.values() for record in self._records.values())
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
        del record.line[ticket.number]
        yield msgspec.structs.replace(refusal, ticket=ticket.number)
        yield from self._drop_unwanted(record)

    def _refuse_line(
        self, record: ModelRecord, why: WhyRefuse, reason: str, retry_after: float | None = None
    ) -> list[Order]:
        numbers = list(record.line)
        record.line.clear()
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
                order for record in self._in_phase("loaded") for order in self._serve(now, record)
            ]
            yield from served
        self._expire(now)
        for record in self._in_phase("draining"):
            yield from self._dismiss(now, record)
        self._forget()

    def _expire(self, now: float) -> None:
        for record in self._in_phase("loaded"):
            if now >= record.expires_at():
                record.phase, record.leaving = "draining", "idle"

    def _refuse_impossible(self) -> Iterator[Order]:
        """What would not fit even alone must not wait: pinned models may have come since it did."""
        for claim in [record for record in self._records.values() if record.is_claim]:
            if (obstacle := self.room.obstacle(claim.model.name, claim.needs)) is not None:
                claim.wanted, claim.retrying = False, None
                yield from self._refuse_line(claim, "too_large", obstacle)

    def _serve(self, now: float, record: ModelRecord) -> Iterator[Order]:
        record.wanted = False
        for ticket in record.in_turn():
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
        for_room, claim = record.leaving == "room", self._turns.begun
        if for_room and claim is not None:
            claim.evicted = (*claim.evicted, Evicted(name, now - record.idle_since))
        parks = for_room and not record.is_parked and self.room.may_park(record, claim)
        if parks:
            record.begin_parking()
        yield Unload(name, record.leaving, parks)

    def _forget(self) -> None:
        """A model that is neither here nor wanted nor failed needs no record."""
        for name, record in list(self._records.items()):
            if record.phase == "absent" and not record.is_claim and record.failure is None:
                del self._records[name]

    def _in_phase(self, phase: Phase) -> list[ModelRecord]:
        return [record for record in self._records.values() if record.phase == phase]
