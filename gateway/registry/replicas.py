"""A model that is loaded several times, on devices of their own: which replica a request goes to,
and when one is loaded besides.

To the scheduler each replica is a model by itself, with its own line and memory, so that a swap, a
crash or a lost node concerns one of them alone. Which is asked next,
`backends.places.upstream.replicas` decides, as it does for servers elsewhere: one in memory first,
then the least busy, and for a conversation the one that has it in its cache.

A request loads one replica. The others follow when that is there, with a later request, and when
memory becomes free or a machine joins, if nothing has to go for them and nobody waits for another
model. One that left since it was idle, or on request, stays away until answers overlap.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import msgspec

from backends.contract.remote import RemoteStanding, RemoteState
from backends.places.upstream.replicas import Balance, Replica
from gateway.registry.entry import ModelEntry
from gateway.registry.orders import RegistryParts
from gateway.registry.planning import LoadPlan
from gateway.registry.protocol import WhyUnload
from gateway.registry.record import ModelRecord

NEVER_OUT = 1_000_000  # failures until no request goes to one: the scheduler knows who rests
LEFT_ALONE: tuple[WhyUnload, ...] = ("idle", "asked")


class Replicas(RegistryParts, kw_only=True):
    """Of all models of one registry. `load`: begins to load the one called so."""

    load: Callable[[str], None]
    _balances: dict[str, Balance] = msgspec.field(default_factory=dict)  # by model
    _away: set[str] = msgspec.field(default_factory=set)  # those that stay away for now

    def choose(
        self, model: ModelEntry, conversation: int | None, besides: Collection[str] = ()
    ) -> str:
        """The name of the replica to ask; `besides`: those that were asked already, but for whom
        there must be one.
        """
        balance = self._balance(model)
        tried = [one for one in balance.replicas if one.url in besides]
        chosen = balance.choose(conversation, tried, model.name)
        assert chosen is not None, "one is left that was not asked"
        return chosen.url

    @contextmanager
    def asked(self, model: ModelEntry, name: str, conversation: int | None) -> Iterator[None]:
        """A request goes to the replica called so, and ends with the context."""
        balance = self._balance(model)
        replica = next(one for one in balance.replicas if one.url == name)
        if replica.load:
            self._away.difference_update(model.replicas)
        self._fill(model)
        balance.began(replica)
        try:
            yield
            balance.returns_to(replica, conversation)
        finally:
            balance.ended(replica)

    def is_better_off(self, model: ModelEntry, name: str) -> bool:
        """Whether a request in the line of the replica called so had better go to another one."""
        there = {other: self.scheduler.phase(other) == "loaded" for other in model.replicas}
        return any(there.values()) and not there.get(name, False)

    def changed(self, name: str) -> None:
        """The state of a model has: whoever waits for another replica may go there now."""
        for sibling in self._siblings(name):
            record = self.scheduler.residency(sibling)
            if record is not None and record.phase != "loaded":
                for number in record.line:
                    self.places[number].nudge()

    def left(self, name: str, why: WhyUnload) -> None:
        """A model was unloaded, and its memory is free."""
        if why in LEFT_ALONE:
            self._away.add(name)
        self.fill()

    def fill(self) -> None:
        """Load the replicas that there is room for, of models of which one is in memory."""
        for name in self._balances:
            model = self.names.entries().get(name)
            if model is not None and model.replicas:
                self._fill(model)

    def _fill(self, model: ModelEntry) -> None:
        phases = {name: self.scheduler.phase(name) for name in model.replicas}
        if "loaded" not in phases.values() or "loading" in phases.values():
            return
        absent = [name for name in phases if phases[name] == "absent" and name not in self._away]
        if not absent or any(record.is_claim for record in self.scheduler.records()):
            return
        if (name := next(filter(self._fits, absent), None)) is not None:
            self.load(name)  # the next when that is there

    def _fits(self, name: str) -> bool:
        """It could be loaded now, and nothing would have to go."""
        plan = self._plan(name)
        if plan is None or self._rests(self.scheduler.residency(name)):
            return False
        return self.scheduler.room.has_room(self.planner.facts(plan))

    def _rests(self, record: ModelRecord | None) -> bool:
        failure = None if record is None else record.failure
        return failure is not None and self.clock.now() < failure.retry_at

    def _siblings(self, name: str) -> tuple[str, ...]:
        """All replicas of the model that the one called so is one of; none, if it is none."""
        record = self.scheduler.residency(name)
        of = record.model.apart if record is not None else ""
        balance = self._balances.get(of)
        return () if balance is None else tuple(one.url for one in balance.replicas)

    def _balance(self, model: ModelEntry) -> Balance:
        """With the replicas as they are now."""
        balance = self._balances.get(model.name)
        if balance is None or tuple(one.url for one in balance.replicas) != model.replicas:
            replicas = [Replica(url=name) for name in model.replicas]
            balance = self._balances[model.name] = Balance(replicas, NEVER_OUT, self.clock.now)
        for replica in balance.replicas:
            replica.listed({model.name: self._standing(replica.url)})
        return balance

    def _standing(self, name: str) -> RemoteStanding:
        record = self.scheduler.residency(name)
        if record is None:
            return RemoteStanding(state="unloaded", missing=self._missing(name))
        state = self._state(record)
        return RemoteStanding(
            state=state,
            missing=self._missing(name) if state == "unloaded" else 0,
            in_use=len(record.users),
            waiting=record.waiting,
        )

    def _state(self, record: ModelRecord) -> RemoteState:
        """One that drains is asked as late as one that failed: it has yet to go, and come back."""
        match record.phase:
            case "loaded" | "loading" as phase:
                return phase
            case "absent" | "parked":
                if self._rests(record):
                    return "failed"
                return "loading" if record.is_claim else "unloaded"
            case _:
                return "failed"

    def _missing(self, name: str) -> int:
        """Bytes that would have to become free for it."""
        plan, room = self._plan(name), self.scheduler.room
        return room.shortfall(room.fitting(plan.needs)) if plan is not None else 0

    def _plan(self, name: str) -> LoadPlan | None:
        entry = self.names.entries().get(name)
        return None if entry is None else self.planner.known(entry)
