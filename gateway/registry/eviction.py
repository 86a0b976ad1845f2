"""Chooses who leaves for another model: the least valuable that hold enough together.

Pure: it knows what each holds, what its load takes and how long it has been idle.
"""

from collections.abc import Iterable, Sequence

from gateway.registry.protocol import Bytes
from gateway.registry.record import ModelRecord


def value(record: ModelRecord, now: float) -> tuple[bool, float]:
    """The cost of its eviction: its load time by the odds of its next use; in use, most.

    The longer it was not requested, the less likely is it that the next request is for it.
    """
    seconds = record.model.load_seconds
    if not record.is_idle:
        return True, seconds
    return False, seconds / (1.0 + now - record.idle_since)


def choose_victims(
    candidates: Iterable[ModelRecord], missing: Bytes, now: float
) -> tuple[ModelRecord, ...] | None:
    """The least valuable models that hold `missing` bytes together; None if all of them don't.

    Greedy by value, then the dearest that turn out superfluous are spared.
    """
    chosen: list[ModelRecord] = []
    rest = lacking(chosen, missing)
    for candidate in sorted(candidates, key=lambda each: value(each, now)):
        if any(candidate.held.get(device, 0) > 0 for device in rest):
            chosen.append(candidate)
            rest = lacking(chosen, missing)
    if rest:
        return None
    for candidate in reversed(chosen):
        others = [other for other in chosen if other is not candidate]
        if not lacking(others, missing):
            chosen = others
    return tuple(chosen)


def cost(victims: Sequence[ModelRecord], now: float) -> tuple[bool, float, int]:
    """Of their eviction: whether one of them is in use, their values, and how many they are."""
    values = [value(victim, now) for victim in victims]
    return any(used for used, _ in values), sum(seconds for _, seconds in values), len(values)


def lacking(chosen: Sequence[ModelRecord], missing: Bytes) -> Bytes:
    """What is still missing when `chosen` have gone."""
    rest = {
        device: size - sum(record.held.get(device, 0) for record in chosen)
        for device, size in missing.items()
    }
    return {device: size for device, size in rest.items() if size > 0}
