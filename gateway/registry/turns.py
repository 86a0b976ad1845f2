"""Turn-taking: which absent models are loaded now, and which ones are evicted for them.

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

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from config.settings import SwapConfig
from gateway.registry.memory import MemoryLedger
from gateway.registry.record import NEVER, Bytes, Load, ModelRecord


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
    for candidate in sorted(candidates, key=lambda one: one.value):
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
    values = [one.value for one in candidates if one.name in names]
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
        loaded = [one for one in self._records.values() if one.phase == "loaded"]
        evictable = [one for one in loaded if not one.model.pinned]
        names = choose_victims([candidate(one, now) for one in evictable], missing)
        for record in evictable:
            if names is None or record.model.name in names:
                record.phase, record.leaving = "draining", "budget"

    def keep_pinned(self, now: float) -> None:
        """What was pinned since it began to drain stays, whatever it drains for: others go in its
        place.
        """
        stayers = [one for one in self._records.values() if one.is_kept]
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

        return sorted((one for one in self._records.values() if one.is_claim), key=rank)

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
        swap = self._cheapest(needs, list(self._candidates(claim, now, used=False)))
        if swap is None and now >= turn_comes_at(claim, self._rules) and not self._draining():
            swap = self._cheapest(needs, list(self._candidates(claim, now, used=True)))
        if swap is not None:
            claim.chosen, victims = swap
            self._begin(claim, victims)

    def _cheapest(
        self, needs: Sequence[Bytes], candidates: Sequence[EvictionCandidate]
    ) -> tuple[Bytes, tuple[str, ...]] | None:
        """For which of `needs` room is made at the least cost, the first of equals, and who goes
        for it; None: for none of them.
        """
        swaps = [(need, choose_victims(candidates, self._room.missing(need))) for need in needs]
        possible = [(need, names) for need, names in swaps if names is not None]
        return min(possible, key=lambda swap: cost(candidates, swap[1]), default=None)

    def _candidates(
        self, claim: ModelRecord, now: float, *, used: bool
    ) -> Iterator[EvictionCandidate]:
        """Models that may be evicted for `claim`: none that is pinned, and none just loaded unless
        `claim` insists.
        """
        for record in self._records.values():
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
            victim.phase = "loaded"
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
