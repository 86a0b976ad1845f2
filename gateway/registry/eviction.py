"""Who must go: the cheapest models whose memory is enough. A pure decision; it orders nothing."""

from collections.abc import Iterable, Mapping

import msgspec

from gateway.registry.orders import Bytes


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A model that may go. `idle_seconds` is None while it is in use."""

    name: str
    holds: Bytes
    load_seconds: float
    idle_seconds: float | None

    @property
    def value(self) -> tuple[bool, float]:
        """What is lost when it goes: its load time by the odds of its next use; in use, most.

        The longer nobody asked for it, the less likely is it that the next request is for it.
        """
        if self.idle_seconds is None:
            return True, self.load_seconds
        return False, self.load_seconds / (1.0 + self.idle_seconds)


def choose(candidates: Iterable[Candidate], missing: Bytes) -> tuple[str, ...] | None:
    """The least valuable models that hold `missing` bytes together; None if all of them don't.

    Greedy by value, then the dearest that turn out superfluous are spared.
    """
    chosen: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda one: one.value):
        if covers(chosen, missing):
            break
        if any(candidate.holds.get(device, 0) > 0 for device in lacking(chosen, missing)):
            chosen.append(candidate)
    if not covers(chosen, missing):
        return None
    return tuple(candidate.name for candidate in spare(chosen, missing))


def spare(chosen: list[Candidate], missing: Bytes) -> list[Candidate]:
    """`chosen` without those that aren't needed, the most valuable looked at first."""
    kept = list(chosen)
    for candidate in reversed(chosen):
        rest = [other for other in kept if other is not candidate]
        if covers(rest, missing):
            kept = rest
    return kept


def covers(chosen: Iterable[Candidate], missing: Bytes) -> bool:
    """Whether `chosen` hold enough on every device."""
    return not lacking(chosen, missing)


def lacking(chosen: Iterable[Candidate], missing: Bytes) -> Mapping[str, int]:
    """What is still missing when `chosen` have gone."""
    group = list(chosen)
    rest = {
        device: size - sum(candidate.holds.get(device, 0) for candidate in group)
        for device, size in missing.items()
    }
    return {device: size for device, size in rest.items() if size > 0}
