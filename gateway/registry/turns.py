"""Whose turn it is: which absent models are loaded now, and which ones must go for them.

At most one swap is prepared at a time: its models drain, their memory is kept for it, and it is
finished before the next one begins. It may still change its mind about whom to evict when another
model falls idle, and all is taken back when nobody waits for it any more.

Knows memory and patience; it knows no tickets beyond the time they came.
"""

from collections.abc import Iterator, Mapping

from config.settings import SwapConfig
from gateway.registry.eviction import Candidate, choose
from gateway.registry.orders import Load
from gateway.registry.patience import (
    lingers_until,
    overdue_at,
    serves_until,
    turn_comes_at,
    worth,
)
from gateway.registry.residency import NEVER, Residency
from gateway.registry.room import Room


class Turns:
    """Reads and moves the scheduler's `residents`: to loading, to draining, and back from there."""

    def __init__(self, residents: Mapping[str, Residency], room: Room, rules: SwapConfig) -> None:
        self._residents = residents
        self._room = room
        self._rules = rules
        self.begun: Residency | None = None  # the claim that room is being made for
        self._victims: tuple[Residency, ...] = ()

    def admit(self, now: float) -> Iterator[Load]:
        """Load what fits, make room for the first claim that doesn't.

        While a claim is overdue, nothing behind it is loaded on its devices.
        """
        if self.begun is not None and not self.begun.is_claim:
            self._end()
        barred: set[str] = set()
        for claim in self.claims(now):
            if barred & claim.need.keys():
                continue
            if self._room.fits(claim, self.begun):
                yield self._load(claim)
                continue
            if self.begun in (None, claim):
                self._make_room(claim, now)
            if now >= overdue_at(claim, self._rules):
                barred |= claim.need.keys()

    def claims(self, now: float) -> list[Residency]:
        """The absent models that are wanted, in the order of their turns.

        The begun swap, the overdue ones by age, those an administrator asked for, the most worth.
        """

        def rank(claim: Residency) -> tuple[bool, bool, float, bool, float, float]:
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

        return sorted((one for one in self._residents.values() if one.is_claim), key=rank)

    def next_moment(self, now: float) -> float:
        """When time alone may change what `admit` does; never, if it can't."""
        claims = [resident for resident in self._residents.values() if resident.is_claim]
        if not claims:
            return NEVER
        times = [turn_comes_at(claim, self._rules) for claim in claims]
        times += [overdue_at(claim, self._rules) for claim in claims]
        for resident in self._residents.values():
            if resident.phase == "loaded":
                times += [lingers_until(resident, self._rules), serves_until(resident, self._rules)]
        return min((time for time in times if time > now), default=NEVER)

    def _load(self, claim: Residency) -> Load:
        free = {device: self._room.free(device) for device in claim.need}
        claim.phase, claim.held = "loading", claim.need
        if claim is self.begun:
            self._end()
        return Load(claim.model.name, free, claim.evicted)

    def _make_room(self, claim: Residency, now: float) -> None:
        """Begin the turn of `claim`, if room can be made: idle models go at any time, used in turn.

        For a swap that has begun, idle models may step in for used ones that still drain.
        """
        missing = self._room.missing(claim)
        victims = choose(self._candidates(claim, now, used=False), missing)
        if victims is None and now >= turn_comes_at(claim, self._rules) and not self._draining():
            victims = choose(self._candidates(claim, now, used=True), missing)
        if victims is not None:
            self._begin(claim, victims)

    def _candidates(self, claim: Residency, now: float, *, used: bool) -> Iterator[Candidate]:
        """Who may go for `claim`: nobody pinned, and nobody just loaded unless `claim` insists."""
        for resident in self._residents.values():
            if resident.phase != "loaded" or resident.model.pinned:
                continue
            if not (used or resident.is_idle):
                continue
            until = lingers_until if resident.is_idle else serves_until
            if claim.insists or now >= until(resident, self._rules):
                yield Candidate(
                    name=resident.model.name,
                    holds=resident.held,
                    load_seconds=resident.model.load_seconds,
                    idle_seconds=now - resident.idle_since if resident.is_idle else None,
                )

    def _begin(self, claim: Residency, victims: tuple[str, ...]) -> None:
        self._end()
        self.begun, self._victims = claim, tuple(self._residents[name] for name in victims)
        for victim in self._victims:
            victim.phase, victim.leaving = "draining", "room"

    def _end(self) -> None:
        """No more room is needed: who still drains for it goes on serving."""
        for victim in self._draining():
            victim.phase = "loaded"
        self.begun, self._victims = None, ()

    def _draining(self) -> list[Residency]:
        return [
            victim
            for victim in self._victims
            if victim.phase == "draining" and victim.leaving == "room"
        ]
