"""Chooses who leaves for another model: the least valuable that hold enough together.

Pure: it knows what each holds, what its load takes and how long it has been idle.
"""

from collections.abc import Collection, Iterable, Sequence

import msgspec

from gateway.registry.protocol import Bytes
from gateway.registry.record import ModelRecord


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
    rest = lacking(chosen, missing)
    for candidate in sorted(candidates, key=lambda each: each.value):
        if any(candidate.holds.get(device, 0) > 0 for device in rest):
            chosen.append(candidate)
            rest = lacking(chosen, missing)
    if rest:
        return None
    for candidate in reversed(chosen):
        others = [other for other in chosen if other is not candidate]
        if not lacking(others, missing):
            chosen = others
    return tuple(candidate.name for candidate in chosen)


def cost(
    candidates: Iterable[EvictionCandidate], names: Collection[str]
) -> tuple[bool, float, int]:
    """Of the eviction of those called so: whether one of them is in use, and their values."""
    values = [candidate.value for candidate in candidates if candidate.name in names]
    return any(used for used, _ in values), sum(value for _, value in values), len(values)


def lacking(chosen: Sequence[EvictionCandidate], missing: Bytes) -> Bytes:
    """What is still missing when `chosen` have gone."""
    rest = {
        device: size - sum(candidate.holds.get(device, 0) for candidate in chosen)
        for device, size in missing.items()
    }
    return {device: size for device, size in rest.items() if size > 0}


def candidate(record: ModelRecord, now: float) -> EvictionCandidate:
    """The cost of this model's eviction."""
    return EvictionCandidate(
        name=record.model.name,
        holds=record.held,
        load_seconds=record.model.load_seconds,
        idle_seconds=now - record.idle_since if record.is_idle else None,
    )
