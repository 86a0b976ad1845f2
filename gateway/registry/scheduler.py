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

How it does so: `turns.py` loads, and makes room; `patience.py` has the times; `eviction.py` chooses
who leaves. Models that take turns too often are kept together where that is better
(`agreements.py`, unless `share` is `never`).
"""

from collections import Counter
from collections.abc import Iterator

import msgspec

from config.settings import SwapConfig
from gateway.registry.agreements import Agreements
from gateway.registry.ledger import MemoryLedger
from gateway.registry.protocol import (
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
    WhyUnload,
)
from gateway.registry.record import NEVER, ModelRecord, Phase, Records
from gateway.registry.sharing import on_cards
from gateway.registry.turns import Turns

SHORT_REST = 1.0  # seconds until a model is loaded again that broke after it had served
SMOOTHING = 8  # grants over which the recent wait is averaged


class Scheduler:
    """Decides for one set of devices. `budgets`: bytes per device; a device not named has none."""

    def __init__(self, budgets: Bytes, rules: SwapConfig) -> None:
        self._rules = rules
        self._records = Records()
        self.room = MemoryLedger(budgets, self._records)
        self._agreements = Agreements(self._records, self.room, rules)
        self._turns = Turns(self._records, self.room, rules, self._agreements)
        self._recent_wait = 0.0  # seconds, of those granted lately
        self._closing = False

    def requested(self, now: float, ticket: Ticket, model: Model) -> list[Order]:
        """A ticket for a lease; or for `model` to be loaded, with one that doesn't hold."""
        record = self._records.open(model)
        orders: list[Order] = []
        if ticket.holds:
            self._agreements.asked(model.name, now)
        if record.phase in ("absent", "parked"):
            self._agreements.place(record)
        if (refusal := self._refusal(now, ticket, record)) is not None:
            loser = self._greedier(ticket.owner) if refusal.why == "queue_full" else None
            if loser is None:
                return [refusal, *self._settle(now)]
            orders = [*self._refuse_ticket(loser, refusal)]
        record.join(ticket)
        if not ticket.holds:
            record.want(wanted=True)
        return [*orders, *self._settle(now)]

    def cancelled(self, now: float, name: str, number: int) -> list[Order]:
        """The owner of a ticket in the line for `name` left."""
        record = self._records[name]
        record.give_up(number)
        return [*self._drop_unwanted(record), *self._settle(now)]

    def released(self, now: float, name: str, number: int) -> list[Order]:
        """A lease of `name` was given back."""
        record = self._records[name]
        ticket = record.users.pop(number)
        record.last(record.model.ttl if ticket.keep_alive is None else ticket.keep_alive)
        began = max(ticket.arrived, record.loaded_at)
        self._agreements.answered(name, max(0.0, now - began), record.speed)
        if not record.users:
            record.idle_since = now
            self._agreements.regret(record)
        return list(self._settle(now))

    def loaded(self, now: float, name: str, held: Bytes, seconds: float) -> list[Order]:
        """`name` is in memory: what it really takes there, and took to load."""
        record = self._records[name]
        assert record.phase == "loading", f"{name} was loaded while {record.phase}"
        record.hold(held)
        record.describe(msgspec.structs.replace(record.model, need=held, load_seconds=seconds))
        record.arrive(now)
        served = list(self._serve(now, record))  # first: it was loaded for them
        return [*served, *self._settle(now)]

    def load_failed(
        self,
        now: float,
        name: str,
        reason: str,
        *,
        free: Bytes | None = None,
        moved: bool = False,
    ) -> list[Order]:
        """The load ended in an error; where memory ran out it is tried once more: in a way that
        takes less, if there is one for what is really `free`, since others have taken what was
        promised; else with more room. `moved`: where it was to lie is no place any more, so it is
        tried elsewhere, if it may lie there.
        """
        record = self._records[name]
        assert record.phase == "loading", f"{name} failed to load while {record.phase}"
        failed = record.need
        record.leave()
        self._agreements.end(name)
        if moved and self.room.obstacle(name, record.needs) is None:
            return list(self._settle(now))
        if free is not None and record.retrying is None:
            record.retrying = self._smaller(record, failed, free) or self.room.more(record)
            if record.retrying is not None:
                return list(self._settle(now))
        failure = record.fail(now, "failed", reason, self._rules.backoff)
        refusals = self._refuse_line(record, "failed", reason, failure.retry_at - now)
        return [*refusals, *self._settle(now)]

    def _smaller(self, record: ModelRecord, failed: Bytes, free: Bytes) -> Bytes | None:
        """The way that takes less of cards than the one which failed, and nothing from others."""
        there = sum(on_cards(failed).values())
        needs = (way.need for way in record.model.smaller)
        smaller = [need for need in needs if sum(on_cards(need).values()) < there]
        ways = list(self.room.possible(smaller, record.model, record.held))
        fitting = (
            need
            for need in ways
            if all(size <= free.get(device, size) for device, size in need.items())
        )
        return next(fitting, ways[-1] if ways else None)

    def unloaded(self, now: float, name: str, parked: Bytes | None = None) -> list[Order]:
        """The memory of a model that was unloaded, or whose load was cancelled, is free. `parked`:
        what it holds all the same; it goes on to leave, if that was asked for meanwhile.
        """
        record = self._records[name]
        assert record.phase == "leaving", f"{name} was unloaded while {record.phase}"
        record.leave(parked)
        if record.is_parked and record.leaving != "room":
            record.drain(record.leaving)
        return list(self._settle(now))

    def broke(self, now: float, name: str, reason: str, *, rest: bool = True) -> list[Order]:
        """`name` is in memory and unusable from now on: it leaves as its last lease ends. Without
        `rest` it may be loaded again at once: its node went, which says nothing of the model.

        Reported before that lease is released, so that no ticket gets another one. A model that had
        served for longer than a rest lasts comes back nearly at once: its files are sound.
        """
        record = self._records[name]
        if record.phase == "parked":  # its next load takes longer: nobody was promised less
            record.drain("broken")
            return list(self._settle(now))
        assert record.phase in ("loaded", "draining"), f"{name} broke while {record.phase}"
        if record.phase == "draining" and record.leaving != "room":
            return []  # it goes anyway, or another lease reported it already
        record.drain("broken")
        if not rest:
            return list(self._settle(now))  # those in line stay
        seconds = self._rules.backoff
        if now - record.loaded_at > seconds:
            seconds = min(seconds, SHORT_REST)
        failure = record.fail(now, "broken", reason, seconds)
        refusals = self._refuse_line(record, "broken", reason, failure.retry_at - now)
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
        record.want(wanted=again)
        record.failure = record.retrying = None
        self._agreements.end(name)
        orders: list[Order] = []
        if not again:
            orders += self._refuse_line(record, "unloaded", f"{name} was unloaded on request")
        if record.phase == "loading":
            record.enter("leaving")
            orders.append(CancelLoad(name))
        elif record.phase in ("loaded", "draining", "parked"):
            record.drain(why)
        elif record.phase == "leaving":  # perhaps to be parked
            record.leaving = why
        return [*orders, *self._settle(now)]

    def described(self, now: float, *models: Model) -> list[Order]:
        """What is known of models has changed, but not what is in memory: how long one stays, say.
        One that failed may be tried again at once.
        """
        for model in models:
            if (record := self._records.get(model.name)) is None:
                continue
            if model.ttl != record.model.ttl:
                record.last(model.ttl)
            record.describe(model)
            record.failure = None
            if record.phase in ("absent", "parked"):
                self._agreements.place(record)
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
        self._agreements.forget(name)
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
        self._agreements.apply(rules)
        self.room.budgets = dict(budgets)
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

    def wakes_at(self, now: float) -> float | None:
        """When to `tick`, if nothing happens before; None: time alone changes nothing."""
        expiries = (record.expires_at() for record in self._records.among("mortal"))
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
        return sum(record.waiting for record in self._records.among("asked"))

    def _refusal(self, now: float, ticket: Ticket, record: ModelRecord) -> Refuse | None:
        """Why this ticket can't even stand in line."""
        number, absent = ticket.number, record.phase in ("absent", "parked")
        useless = record.phase not in ("loading", "loaded")
        if self._closing:
            return Refuse(number, "closing", "the server is stopping")
        if useless and ticket.holds and record.failure and now < record.failure.retry_at:
            rest = record.failure.retry_at - now
            return Refuse(number, record.failure.why, record.failure.reason, rest)
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
        lines = (record.line.values() for record in self._records.among("asked"))
        waiting = [ticket for line in lines for ticket in line if ticket.holds]
        counts = Counter(ticket.owner for ticket in waiting)
        greediest = max(counts, key=counts.__getitem__, default=owner)
        if counts[greediest] <= counts[owner] + 1:
            return None
        theirs = (ticket for ticket in waiting if ticket.owner == greediest)
        return max(theirs, key=lambda ticket: ticket.number)

    def _refuse_ticket(self, ticket: Ticket, refusal: Refuse) -> Iterator[Order]:
        """In place of another, which `refusal` was for."""
        waiting = self._records.among("asked")
        record = next(one for one in waiting if ticket.number in one.line)
        record.give_up(ticket.number)
        yield msgspec.structs.replace(refusal, ticket=ticket.number)
        yield from self._drop_unwanted(record)

    def _refuse_line(
        self, record: ModelRecord, why: WhyRefuse, reason: str, retry_after: float | None = None
    ) -> list[Refuse]:
        refusals = [Refuse(number, why, reason, retry_after) for number in record.line]
        for refusal in refusals:
            record.give_up(refusal.ticket)
        return refusals

    def _drop_unwanted(self, record: ModelRecord) -> Iterator[Order]:
        """A load that no ticket waits for is cancelled, unless it was asked for to be there."""
        if record.line or record.wanted:
            return
        record.retrying = None
        if record.phase == "loading":
            record.enter("leaving")
            yield CancelLoad(record.model.name)

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
                order
                for record in self._records.among("asked")
                if record.phase == "loaded"
                for order in self._serve(now, record)
            ]
            yield from served
        self._expire(now)
        for record in self._records.among("draining"):
            yield from self._dismiss(now, record)
        for record in self._records.among("absent"):
            if not record.is_claim and record.failure is None:
                self._records.forget(record)  # neither here nor wanted nor failed

    def _expire(self, now: float) -> None:
        for record in self._records.among("mortal"):
            if now >= record.expires_at():
                record.drain("idle")

    def _refuse_impossible(self) -> Iterator[Order]:
        """What would not fit even alone must not wait: pinned models may have come since it did."""
        for claim in self._records.among("claims"):
            if (obstacle := self.room.obstacle(claim.model.name, claim.needs)) is not None:
                claim.want(wanted=False)
                claim.retrying = None
                yield from self._refuse_line(claim, "too_large", obstacle)

    def _serve(self, now: float, record: ModelRecord) -> Iterator[Order]:
        record.want(wanted=False)
        for ticket in record.in_turn():
            if record.is_open or not ticket.holds:
                record.serve(ticket)
                if ticket.holds:
                    self._recent_wait += (now - ticket.arrived - self._recent_wait) / SMOOTHING
                yield Grant(ticket.number)

    def _dismiss(self, now: float, record: ModelRecord) -> Iterator[Order]:
        if record.users:
            return
        record.enter("leaving")
        for_room, claim = record.leaving == "room", self._turns.beneficiary(record)
        if for_room and claim is not None:
            idle = now - record.idle_since
            claim.evicted = (*claim.evicted, Evicted(record.model.name, idle))
        parks = for_room and not record.is_parked and self.room.may_park(record, claim)
        if parks:
            record.begin_parking()
        yield Unload(record.model.name, record.leaving, parks)
