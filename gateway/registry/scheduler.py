"""Who is resident, who waits, who goes: events in, orders out.

Pure: it knows no clock, no event loop and no engine. Every event method returns the orders that
follow from it, in the order they are to be carried out. The caller tells the time with each event,
and calls `tick` at `wakes_at`.

What is promised:

- A model that is used is never unloaded. It drains (takes no new work) when another's turn has
  come.
- On no device is more promised than its budget, counting the models that load and those that leave.
- Every ticket is answered exactly once: granted, refused, or cancelled by its owner.
- Within a model, first come, first served, `slots` leases at a time.
- Nobody starves. Once the first in a model's line has waited `max_wait`, the model is overdue:
  nothing behind it is loaded on its devices, and the models in its way take no new work once they
  have had their quantum (`patience.serves_until`). So it is loaded no later than `max_wait` plus,
  for itself and for each model that became overdue before it or whose swap had begun: one load
  (two, where memory runs out), one quantum, the longest running answer and one unload.
- Memory that is cleared for one model is not taken by another.
"""

from collections.abc import Iterator

import msgspec

from config.settings import SwapConfig
from gateway.registry.orders import (
    Bytes,
    CancelLoad,
    Evicted,
    Grant,
    Model,
    Order,
    Refuse,
    Ticket,
    Unload,
    WhyRefuse,
)
from gateway.registry.record import NEVER, Phase, Residency
from gateway.registry.room import Room
from gateway.registry.turns import Turns

SMOOTHING = 8  # grants over which the recent wait is averaged


class Scheduler:
    """Decides for one set of devices. `budgets`: bytes per device; a device not named has none."""

    def __init__(self, budgets: Bytes, rules: SwapConfig) -> None:
        self._rules = rules
        self._residents: dict[str, Residency] = {}
        self._homes: dict[int, Residency] = {}  # of each ticket, while it waits or holds
        self.room = Room(budgets, self._residents)
        self._turns = Turns(self._residents, self.room, rules)
        self._recent_wait = 0.0  # seconds, of those granted lately
        self._closing = False

    # ---------------------------------------------------------------------------- events

    def requested(self, now: float, ticket: Ticket, model: Model) -> list[Order]:
        """Someone wants a lease; or wants `model` loaded, with a ticket that doesn't hold."""
        orders = list(self._settle(now))
        resident = self._residents.setdefault(model.name, Residency(model=model))
        resident.model = model
        if (refusal := self._refusal(now, ticket, resident)) is not None:
            self._forget()
            return [*orders, refusal]
        self._homes[ticket.number] = resident
        resident.line[ticket.number] = ticket
        resident.wanted = resident.wanted or not ticket.holds
        return [*orders, *self._settle(now)]

    def cancelled(self, now: float, number: int) -> list[Order]:
        """The owner of a waiting ticket left."""
        resident = self._homes.pop(number)
        del resident.line[number]
        return [*self._drop_unwanted(resident), *self._settle(now)]

    def released(self, now: float, number: int) -> list[Order]:
        """A lease was given back."""
        resident = self._homes.pop(number)
        ticket = resident.users.pop(number)
        wished = ticket.keep_alive
        resident.ttl = resident.model.ttl if wished is None else wished
        if not resident.users:
            resident.idle_since = now
        return list(self._settle(now))

    def loaded(self, now: float, name: str, held: Bytes, seconds: float) -> list[Order]:
        """`name` is in memory: what it really takes there, and took to load."""
        resident = self._residents[name]
        assert resident.phase == "loading", f"{name} was loaded while {resident.phase}"
        resident.held = held
        resident.model = msgspec.structs.replace(resident.model, need=held, load_seconds=seconds)
        resident.arrive(now)
        served = list(self._serve(now, resident))  # before anyone else's turn: for them it came
        return [*served, *self._settle(now)]

    def load_failed(self, now: float, name: str, reason: str, *, memory: bool) -> list[Order]:
        """The load ended in an error; where `memory` ran out it is tried once more."""
        resident = self._residents[name]
        assert resident.phase == "loading", f"{name} failed to load while {resident.phase}"
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
        resident = self._residents[name]
        assert resident.phase == "leaving", f"{name} was unloaded while {resident.phase}"
        resident.leave()
        return list(self._settle(now))

    def broke(self, now: float, name: str, reason: str) -> list[Order]:
        """`name` is in memory and of no use any more: it leaves as its last lease ends.

        Told before that lease is released, so that nobody gets another one.
        """
        resident = self._residents[name]
        assert resident.phase in ("loaded", "draining"), f"{name} broke while {resident.phase}"
        if resident.phase == "draining" and resident.leaving != "room":
            return []  # it goes anyway, or another lease told it already
        resident.phase, resident.leaving = "draining", "broken"
        failure = resident.fail(now, reason, self._rules.backoff)
        refusals = self._refuse_line(resident, "failed", reason, failure.retry_at - now)
        return [*refusals, *self._settle(now)]

    def unload_asked(self, now: float, name: str, *, again: bool = False) -> list[Order]:
        """An administrator wants it gone: running answers end, those in line are refused.

        `again`: it comes back at once, with other options, so those in line stay.
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
        elif resident.phase in ("loaded", "draining"):
            resident.phase, resident.leaving = "draining", "asked"
        return [*orders, *self._settle(now)]

    def tick(self, now: float) -> list[Order]:
        """Time passed."""
        return list(self._settle(now))

    def closing(self, now: float) -> list[Order]:
        """No more tickets: the line is refused, each model is unloaded as its last lease ends."""
        self._closing = True
        orders: list[Order] = []
        for name, resident in list(self._residents.items()):
            orders += self._refuse_line(resident, "closing", "the server is stopping")
            orders += self.unload_asked(now, name)
        return orders

    # ---------------------------------------------------------------------------- asked

    def wakes_at(self, now: float) -> float | None:
        """When to `tick`, if nothing happens before; None: time alone changes nothing."""
        expiries = (resident.expires_at() for resident in self._residents.values())
        moment = min(self._turns.next_moment(now), min(expiries, default=NEVER))
        return moment if moment < NEVER else None

    def residency(self, name: str) -> Residency | None:
        """The record of a model that is in memory, wanted or failed. To be read, never changed."""
        return self._residents.get(name)

    def phase(self, name: str) -> Phase:
        """Where a model is between absent and loaded."""
        resident = self._residents.get(name)
        return "absent" if resident is None else resident.phase

    def waiting(self) -> int:
        """Tickets in line, over all models, that want a lease."""
        lines = (resident.line.values() for resident in self._residents.values())
        return sum(ticket.holds for line in lines for ticket in line)

    # ---------------------------------------------------------------------------- tickets

    def _refusal(self, now: float, ticket: Ticket, resident: Residency) -> Refuse | None:
        """Why this ticket can't even stand in line."""
        number, absent = ticket.number, resident.phase == "absent"
        useless = resident.phase not in ("loading", "loaded")
        if self._closing:
            return Refuse(number, "closing", "the server is stopping")
        if useless and ticket.holds and resident.failure and now < resident.failure.retry_at:
            rest = resident.failure.retry_at - now
            return Refuse(number, "failed", resident.failure.reason, rest)
        if (
            absent
            and (obstacle := self.room.obstacle(resident.model.name, resident.need)) is not None
        ):
            return Refuse(number, "too_large", obstacle)
        if ticket.holds and not resident.is_open and self.waiting() >= self._rules.max_waiting:
            reason = f"{self._rules.max_waiting} requests are waiting already"
            return Refuse(number, "queue_full", reason, max(1.0, self._recent_wait))
        return None

    def _refuse_line(
        self, resident: Residency, why: WhyRefuse, reason: str, retry_after: float | None = None
    ) -> list[Order]:
        numbers = list(resident.line)
        resident.line.clear()
        for number in numbers:
            del self._homes[number]
        return [Refuse(number, why, reason, retry_after) for number in numbers]

    def _drop_unwanted(self, resident: Residency) -> Iterator[Order]:
        """A load nobody waits for is cancelled, unless it was asked for to be there."""
        if resident.line or resident.wanted:
            return
        resident.retrying = None
        if resident.phase == "loading":
            resident.phase = "leaving"
            yield CancelLoad(resident.model.name)

    # ---------------------------------------------------------------------------- what follows

    def _settle(self, now: float) -> Iterator[Order]:
        """Everything that follows from the present state; who drains comes before who is served."""
        yield from self._refuse_impossible()
        served: list[Order] | None = None
        while (
            served is None or served
        ):  # a model may be free to go once those it had to stay for are served
            yield from self._turns.admit(now)
            served = [one for each in self._in_phase("loaded") for one in self._serve(now, each)]
            yield from served
        self._expire(now)
        for resident in self._in_phase("draining"):
            yield from self._dismiss(now, resident)
        self._forget()

    def _expire(self, now: float) -> None:
        for resident in self._in_phase("loaded"):
            if now >= resident.expires_at():
                resident.phase, resident.leaving = "draining", "idle"

    def _refuse_impossible(self) -> Iterator[Order]:
        """What would not fit even alone must not wait: pinned models may have come since it did."""
        for claim in [resident for resident in self._residents.values() if resident.is_claim]:
            if (obstacle := self.room.obstacle(claim.model.name, claim.need)) is not None:
                claim.wanted, claim.retrying = False, None
                yield from self._refuse_line(claim, "too_large", obstacle)

    def _serve(self, now: float, resident: Residency) -> Iterator[Order]:
        resident.wanted = False
        for number, ticket in list(resident.line.items()):
            if ticket.holds and not resident.is_open:
                continue
            del resident.line[number]
            if ticket.holds:
                resident.users[number] = ticket
                self._recent_wait += (now - ticket.arrived - self._recent_wait) / SMOOTHING
            else:
                del self._homes[number]
            yield Grant(number)

    def _dismiss(self, now: float, resident: Residency) -> Iterator[Order]:
        if resident.users:
            return
        name, resident.phase = resident.model.name, "leaving"
        if resident.leaving == "room" and (claim := self._turns.begun) is not None:
            claim.evicted = (*claim.evicted, Evicted(name, now - resident.idle_since))
        yield Unload(name, resident.leaving)

    def _forget(self) -> None:
        """A model that is neither here nor wanted nor failed needs no record."""
        for name, resident in list(self._residents.items()):
            if resident.phase == "absent" and not resident.is_claim and resident.failure is None:
                del self._residents[name]

    def _in_phase(self, phase: Phase) -> list[Residency]:
        return [resident for resident in self._residents.values() if resident.phase == phase]
