"""Who is resident, who waits, who goes: events in, orders out. Pure; it knows no clock, no event loop and no engine.

Every event method returns the orders that follow from it, in the order they are to be carried out. The caller tells
the time with each event and calls `tick` at `wakes_at`.

What is promised:
- A model that is used is never unloaded. It is drained (takes no new work) when another model's turn has come.
- On no device are more bytes promised than its budget, counting models that load and models that leave.
- Every ticket is answered exactly once: granted, refused or cancelled by its owner.
- Within a model the line is first come, first served, `slots` leases at a time.
- No starvation. Once the first in a model's line has waited `max_wait`, the model is overdue: nothing younger is loaded
  on its devices before it, and the models in its way take no new work after their quantum (`patience.serves_until`).
  So it is loaded no later than `max_wait` plus, for itself and for each model overdue before it: one quantum, the
  longest running answer, one unload and one load (two, where memory runs out). A swap that has begun is finished first.
- Memory that drains for one model is not taken by another.
"""

from collections.abc import Iterator

import msgspec

from config.settings import SwapConfig
from gateway.registry.eviction import Candidate, choose
from gateway.registry.orders import (
    Bytes,
    CancelLoad,
    Evicted,
    Grant,
    Load,
    Model,
    Order,
    Refuse,
    Ticket,
    Unload,
    WhyRefuse,
)
from gateway.registry.patience import (
    lingers_until,
    overdue_at,
    serves_until,
    turn_comes_at,
    worth,
)
from gateway.registry.residency import NEVER, Phase, Residency
from gateway.registry.room import Room


class Scheduler:
    """Decides for one set of devices. `budgets` are bytes per device; a device not named has none."""

    def __init__(self, budgets: Bytes, rules: SwapConfig) -> None:
        self._rules = rules
        self._residents: dict[str, Residency] = {}
        self.room = Room(budgets, self._residents)
        self._homes: dict[int, str] = {}  # ticket to model, while it waits or holds
        self._turn: str | None = None  # the claim that room is being made for
        self._victims: frozenset[str] = frozenset()
        self._recent_wait = 0.0
        self._closing = False

    # ------------------------------------------------------------------------------------ events

    def requested(self, now: float, ticket: Ticket, model: Model) -> list[Order]:
        """Someone wants a lease (or, with a ticket that doesn't hold, wants the model loaded)."""
        orders = list(self._settle(now))
        resident = self._record(model)
        refusal = self._refusal(now, ticket, resident)
        if refusal is not None:
            self._forget()
            return [*orders, refusal]
        self._homes[ticket.number] = model.name
        resident.line[ticket.number] = ticket
        if not ticket.holds and resident.phase != "loaded":
            resident.wanted = True
        return [*orders, *self._settle(now)]

    def preload(self, now: float, model: Model) -> list[Order]:
        """Load it though nobody waits."""
        resident = self._record(model)
        resident.wanted = resident.phase != "loaded"
        return list(self._settle(now))

    def cancelled(self, now: float, number: int) -> list[Order]:
        """A waiting ticket's owner left."""
        resident = self._residents[self._homes.pop(number)]
        del resident.line[number]
        return [*self._drop_unwanted_load(resident), *self._settle(now)]

    def released(self, now: float, number: int) -> list[Order]:
        """A lease was given back."""
        resident = self._residents[self._homes.pop(number)]
        ticket = resident.users.pop(number)
        if ticket.keep_alive is not None:
            resident.ttl = ticket.keep_alive
        if not resident.users:
            resident.idle_since = now
        return list(self._settle(now))

    def loaded(self, now: float, name: str, held: Bytes, seconds: float) -> list[Order]:
        """`name` is in memory; what it really takes there, and took to load."""
        resident = self._residents[name]
        assert resident.phase == "loading", f"{name} was loaded while {resident.phase}"
        resident.held = held
        resident.model = msgspec.structs.replace(resident.model, need=held, load_seconds=seconds)
        resident.arrive(now)
        return list(self._settle(now))

    def load_failed(self, now: float, name: str, reason: str, *, memory: bool) -> list[Order]:
        """The load ended in an error; `memory`: because memory ran out."""
        resident = self._residents[name]
        resident.leave()
        if memory and resident.retrying is None:
            resident.retrying = self.room.more(resident)
            if resident.retrying is not None:
                return list(self._settle(now))
        failure = resident.fail(now, reason, self._rules.backoff)
        refusals = self._refuse_line(resident, "failed", reason, failure.retry_at - now)
        return [*refusals, *self._settle(now)]

    def unloaded(self, now: float, name: str) -> list[Order]:
        """The memory of a model that was unloaded, or whose load was cancelled, is free."""
        self._residents[name].leave()
        return list(self._settle(now))

    def unload_asked(self, now: float, name: str, *, again: bool = False) -> list[Order]:
        """An administrator wants it gone: running answers end, those in line are refused.

        `again`: it comes back with other options at once, so those in line stay.
        """
        resident = self._residents.get(name)
        if resident is None:
            return []
        resident.wanted, resident.failure, resident.retrying = again, None, None
        orders: list[Order] = []
        if not again:
            orders += self._refuse_line(resident, "unloaded", f"{name} was unloaded on request")
        if resident.phase == "loading":
            resident.phase = "leaving"
            orders.append(CancelLoad(name))
        if resident.phase in ("loaded", "draining"):
            resident.phase, resident.leaving = "draining", "asked"
        return [*orders, *self._settle(now)]

    def tick(self, now: float) -> list[Order]:
        """Time passed."""
        return list(self._settle(now))

    def closing(self, now: float) -> list[Order]:
        """No more tickets. Everything is unloaded as its last lease ends."""
        self._closing = True
        orders: list[Order] = []
        for name, resident in list(self._residents.items()):
            orders += self._refuse_line(resident, "closing", "the server is stopping")
            orders += self.unload_asked(now, name)
        return orders

    # ------------------------------------------------------------------------------------ asked

    def wakes_at(self, now: float) -> float | None:
        """When to `tick` next, if nothing else happens before; None: there is nothing to wait for."""
        times = [resident.expires_at() for resident in self._residents.values()]
        claims = [resident for resident in self._residents.values() if resident.is_claim]
        if claims:
            times += [turn_comes_at(claim, self._rules) for claim in claims]
            times += [overdue_at(claim, self._rules) for claim in claims]
            for resident in self._in_phase("loaded"):
                times += [lingers_until(resident, self._rules), serves_until(resident, self._rules)]
        return min((time for time in times if now < time < NEVER), default=None)

    def residency(self, name: str) -> Residency | None:
        """The record of a model that is in memory, in line or failed; to be read, never changed."""
        return self._residents.get(name)

    def phase(self, name: str) -> Phase:
        """Where a model is between absent and loaded."""
        resident = self._residents.get(name)
        return "absent" if resident is None else resident.phase

    def waiting(self) -> int:
        """Tickets in line, over all models, that want a lease."""
        return sum(
            ticket.holds
            for resident in self._residents.values()
            for ticket in resident.line.values()
        )

    # ------------------------------------------------------------------------------------ tickets

    def _record(self, model: Model) -> Residency:
        resident = self._residents.setdefault(model.name, Residency(model=model))
        resident.model = model
        return resident

    def _refusal(self, now: float, ticket: Ticket, resident: Residency) -> Refuse | None:
        """Why this ticket can't even stand in line."""
        number = ticket.number
        if self._closing:
            return Refuse(number, "closing", "the server is stopping")
        if ticket.holds and resident.phase == "absent" and (rest := resident.resting(now)) > 0:
            assert resident.failure is not None
            return Refuse(number, "failed", resident.failure.reason, rest)
        if resident.phase == "absent" and (obstacle := self.room.obstacle(resident)):
            return Refuse(number, "too_large", obstacle)
        if (
            ticket.holds
            and not self._serves(resident)
            and self.waiting() >= self._rules.max_waiting
        ):
            reason = f"{self._rules.max_waiting} requests are waiting already"
            return Refuse(number, "queue_full", reason, max(1.0, self._recent_wait))
        return None

    def _serves(self, resident: Residency) -> bool:
        return resident.phase == "loaded" and len(resident.users) < resident.model.slots

    def _refuse_line(
        self, resident: Residency, why: WhyRefuse, reason: str, retry_after: float | None = None
    ) -> list[Order]:
        numbers = list(resident.line)
        resident.line.clear()
        for number in numbers:
            del self._homes[number]
        return [Refuse(number, why, reason, retry_after) for number in numbers]

    def _drop_unwanted_load(self, resident: Residency) -> Iterator[Order]:
        """A load nobody waits for is cancelled, unless an administrator wanted it."""
        if resident.line or resident.wanted:
            return
        resident.retrying = None
        if resident.phase == "loading":
            resident.phase = "leaving"
            yield CancelLoad(resident.model.name)

    # ------------------------------------------------------------------------------------ what follows

    def _settle(self, now: float) -> Iterator[Order]:
        """Everything that follows from the present state. Draining is decided before grants are made."""
        self._expire(now)
        yield from self._admit(now)
        yield from self._serve(now)
        yield from self._dismiss(now)
        self._forget()

    def _expire(self, now: float) -> None:
        for resident in self._in_phase("loaded"):
            if now >= resident.expires_at():
                resident.phase, resident.leaving = "draining", "idle"

    def _admit(self, now: float) -> Iterator[Order]:
        """Load what fits; make room for the first that doesn't; keep the overdue ones' devices for them."""
        begun = self._residents.get(self._turn or "")
        if begun is None or not begun.is_claim:
            self._close_turn()
        barred: set[str] = set()
        for claim in self._claims(now):
            if barred & claim.need.keys():
                continue
            if obstacle := self.room.obstacle(claim):
                claim.wanted = False
                yield from self._refuse_line(claim, "too_large", obstacle)
            elif self.room.fits(claim, self._residents.get(self._turn or "")):
                yield self._load(claim)
            else:
                self._make_room(claim, now)
                if now >= overdue_at(claim, self._rules):
                    barred |= claim.need.keys()

    def _serve(self, now: float) -> Iterator[Order]:
        for resident in self._in_phase("loaded"):
            for number, ticket in list(resident.line.items()):
                if ticket.holds and not self._serves(resident):
                    continue
                del resident.line[number]
                if ticket.holds:
                    resident.users[number] = ticket
                    self._recent_wait += (now - ticket.arrived - self._recent_wait) / 8
                else:
                    del self._homes[number]
                yield Grant(number)

    def _dismiss(self, now: float) -> Iterator[Order]:
        for resident in self._in_phase("draining"):
            if resident.users:
                continue
            name, resident.phase = resident.model.name, "leaving"
            if resident.leaving == "room" and self._turn is not None:
                claim = self._residents[self._turn]
                claim.evicted = (*claim.evicted, Evicted(name, now - resident.idle_since))
            yield Unload(name, resident.leaving)

    def _forget(self) -> None:
        """A model that is neither here nor wanted nor failed needs no record."""
        for name, resident in list(self._residents.items()):
            if resident.phase == "absent" and not resident.is_claim and resident.failure is None:
                del self._residents[name]

    # ------------------------------------------------------------------------------------ turns

    def _claims(self, now: float) -> list[Residency]:
        """Absent models that are wanted: the begun swap, the overdue by age, the asked for, the most worth."""

        def rank(claim: Residency) -> tuple[bool, bool, float, bool, float, float]:
            late = now >= overdue_at(claim, self._rules)
            begun = claim.model.name == self._turn
            age = claim.oldest if late else 0.0
            return not begun, not late, age, not claim.wanted, -worth(claim), claim.oldest

        return sorted((one for one in self._residents.values() if one.is_claim), key=rank)

    def _load(self, claim: Residency) -> Load:
        free = {device: self.room.free(device) for device in claim.need}
        claim.phase, claim.held = "loading", claim.need
        if self._turn == claim.model.name:
            self._close_turn()
        return Load(claim.model.name, free, claim.evicted)

    def _make_room(self, claim: Residency, now: float) -> None:
        """Begin `claim`'s turn if the room for it can be made now; idle models go at any time, used ones at its turn."""
        begun = self._turn == claim.model.name
        if self._turn is not None and not begun:
            return
        missing = self.room.missing(claim)
        victims = choose(self._candidates(claim, now, used=False), missing)
        may_drain = now >= turn_comes_at(claim, self._rules)
        if victims is None and may_drain and not (begun and self._drains(self._victims)):
            victims = choose(self._candidates(claim, now, used=True), missing)
        if victims is not None:
            self._open_turn(claim, victims)

    def _candidates(self, claim: Residency, now: float, *, used: bool) -> Iterator[Candidate]:
        """Who may be evicted for `claim`: nobody pinned; nobody just loaded, unless an administrator insists."""
        insists = claim.wanted or claim.retrying is not None
        for resident in self._in_phase("loaded"):
            until = serves_until if resident.users else lingers_until
            if resident.model.pinned or (resident.users and not used):
                continue
            if insists or now >= until(resident, self._rules):
                yield Candidate(
                    name=resident.model.name,
                    holds=resident.held,
                    load_seconds=resident.model.load_seconds,
                    idle_seconds=None if resident.users else now - resident.idle_since,
                )

    def _open_turn(self, claim: Residency, victims: tuple[str, ...]) -> None:
        self._close_turn()
        self._turn, self._victims = claim.model.name, frozenset(victims)
        for name in victims:
            self._residents[name].phase, self._residents[name].leaving = "draining", "room"

    def _close_turn(self) -> None:
        """No more room is needed: who still drains for it goes on serving."""
        for resident in self._drains(self._victims):
            resident.phase = "loaded"
        self._turn, self._victims = None, frozenset()

    def _drains(self, names: frozenset[str]) -> list[Residency]:
        return [
            resident
            for resident in self._in_phase("draining")
            if resident.model.name in names and resident.leaving == "room"
        ]

    def _in_phase(self, phase: str) -> list[Residency]:
        return [resident for resident in self._residents.values() if resident.phase == phase]
