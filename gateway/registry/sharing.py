"""Judges whether models that take turns are better kept together, each with less of the cards.

Where room is made for a model, others leave for it, and come back at their next request: each time
someone waits for a load. Kept together, in ways that take less of the cards (`Smaller`), nobody
waits, but each answer is slower. Which costs more is told by what was seen: when each model was
asked for, how long its answers take at full speed, and how long its load.

What comes of it is an agreement: how much of each card each of them may have. It takes no load
besides those that a swap takes: a model that has to give way does so when it would have left
anyway, which it does idle, and comes back with its next request, in its smaller way.

It ends where it costs more than it saves. Once they lost as much time to being slow as loading them
all anew takes, it is judged again; and once one of them lost that much since another one was last
asked for, it gets its full room back.

Pure: it knows no clock, no record and no ledger.
"""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import msgspec

from backends.contract.catalog import CPU
from gateway.registry.memory import covered
from gateway.registry.nodes import name_at, node_of
from gateway.registry.protocol import Bytes, Model, Smaller

SEEN = 64  # requests of a model that are remembered
SMOOTHING = 8  # answers over which their time is averaged
ANSWERS = 8  # of each model, before their time is known
EVIDENCE = 4  # loads that turns would have taken of what was seen: both came back
GAIN = 0.8  # of what turns cost, what keeping them together may cost at most
MOST_BESIDE = 0.9  # models that compute at any time beside the busiest, on average
MOST_MODELS = 3  # that are kept together
MOST_WAYS = 12  # of a model, that are compared
SLACK = 1.02  # estimates of a way differ a little from load to load


class Usage:
    """Mutable: what was seen of one model."""

    def __init__(self) -> None:
        self.arrivals: deque[float] = deque(maxlen=SEEN)
        self.model: Model | None = None  # as it was last asked for while it was absent
        self._seconds = 0.0  # of an answer, at full speed
        self._answers = 0

    @property
    def seconds(self) -> float | None:
        """Of an answer, at full speed; None: too few were seen."""
        return self._seconds if self._answers >= ANSWERS else None

    def answered(self, seconds: float) -> None:
        """A lease was given back: what it would have taken at full speed."""
        self._answers = min(self._answers + 1, SMOOTHING)
        self._seconds += (seconds - self._seconds) / self._answers


class Rival(msgspec.Struct, frozen=True, kw_only=True):
    """One of the models that don't fit together. `ways` in which it may lie, the fastest first;
    `lies`: as it does now, None if it is absent.
    """

    name: str
    load_seconds: float
    seconds: float | None  # of an answer, at full speed; None: not known
    slots: int  # answers at once
    arrivals: Sequence[float]
    ways: tuple[Smaller, ...]
    lies: Smaller | None = None


class Agreement:
    """Mutable: what models that are kept together may have of cards. `lost`: seconds that each of
    them lost to being slow since another one of them was last asked for.
    """

    def __init__(self, parts: Mapping[str, Bytes]) -> None:
        self.parts = parts
        self.lost = dict.fromkeys(parts, 0.0)
        self.spent = 0.0  # seconds lost by all, since it was last judged

    def asked(self, name: str) -> None:
        """One of them was."""
        for other in self.lost:
            if other != name:
                self.lost[other] = 0.0

    def way(self, name: str, ways: Sequence[Smaller]) -> Smaller | None:
        """The first of the model's `ways` that keeps to it; None: none does."""
        part = self.parts[name]
        return next((way for way in ways if _within(way.need, part)), None)

    def keeps(self, name: str, held: Bytes) -> bool:
        """Whether a model keeps to it that holds so much."""
        return _within(held, self.parts[name])


def _within(need: Bytes, part: Bytes) -> bool:
    return all(size <= part.get(card, 0) * SLACK for card, size in on_cards(need).items())


def on_cards(need: Bytes) -> Bytes:
    """Without main memory."""
    main = name_at(node_of(need), CPU)
    return {device: size for device, size in need.items() if device != main}


def agreed(rivals: Sequence[Rival], room: Bytes, *, stay: float, worth: float) -> Agreement | None:
    """How `rivals` are kept together in `room`, which is all that they could have, those that lie
    there included; None where taking turns is better, or too little was seen of one of them.
    `stay`, `worth`: see `turns`.
    """
    if not 1 < len(rivals) <= MOST_MODELS or any(one.seconds is None for one in rivals):
        return None
    seen = _seen(rivals)
    loads, swapping = turns(rivals, seen, stay=stay, worth=worth)
    if loads < EVIDENCE:
        return None
    best = min(_together(rivals, seen, room), key=lambda found: found[0], default=None)
    if best is None or best[0] > GAIN * swapping:
        return None
    ways = zip(rivals, best[1], strict=True)
    return Agreement({rival.name: on_cards(way.need) for rival, way in ways})


def is_outdone(rivals: Sequence[Rival], *, stay: float, worth: float) -> bool:
    """Whether `rivals`, which are kept together as they lie, had better take turns."""
    if any(one.seconds is None for one in rivals):
        return False
    seen = _seen(rivals)
    _, swapping = turns(rivals, seen, stay=stay, worth=worth)
    speeds = [1.0 if one.lies is None else one.lies.speed for one in rivals]
    staying = _total(rivals, seen, speeds)
    return staying is None or swapping < staying


def _seen(rivals: Sequence[Rival]) -> list[tuple[float, int]]:
    """The requests for them by time, and for which. Of no time in which some are forgotten."""
    full = (rival.arrivals[0] for rival in rivals if len(rival.arrivals) == SEEN)
    begin = max(full, default=float("-inf"))
    return sorted(
        (time, number)
        for number, rival in enumerate(rivals)
        for time in rival.arrivals
        if time >= begin
    )


def turns(
    rivals: Sequence[Rival], seen: Sequence[tuple[float, int]], *, stay: float, worth: float
) -> tuple[int, float]:
    """How many loads it takes to answer what was `seen` in turns, and the seconds from each request
    to its last word, all together. A model serves for `stay` seconds at least, and for `worth`
    times its load time, unless it is idle.
    """
    times = [rival.seconds or 0.0 for rival in rivals]
    lines = [deque(time for time, of in seen if of == n) for n in range(len(rivals))]
    loads, total, free = 0, 0.0, float("-inf")
    while any(lines):
        number = min((n for n, line in enumerate(lines) if line), key=lambda n: lines[n][0])
        rival, line = rivals[number], lines[number]
        ready = max(free, line[0]) + rival.load_seconds
        until = ready + max(stay, worth * rival.load_seconds)
        others = min((other[0] for other in lines if other and other is not line), default=None)
        loads, ends = loads + 1, ready
        while line and (line[0] <= until or others is None or line[0] <= others):
            if others is not None and others < line[0] and ends < line[0]:
                break  # it is idle, and another is waited for
            arrived = line.popleft()
            total += max(arrived, ready) - arrived + times[number]
            ends = max(ends, max(arrived, ready) + times[number])
        free = ends
    return loads, total


def _together(
    rivals: Sequence[Rival], seen: Sequence[tuple[float, int]], room: Bytes
) -> Iterator[tuple[float, tuple[Smaller, ...]]]:
    """Ways of all of them that fit, and the seconds that the answers to what was `seen` take then,
    all together. While others compute on the same devices as well, an answer takes longer. Ways in
    which more would be asked for than can be answered are left out.
    """
    *firsts, last = rivals
    for chosen in product(*map(_ways, firsts)):
        rest = dict(room)
        for way in chosen:
            for device, size in way.need.items():
                rest[device] = rest.get(device, 0) - size
        if any(size < 0 for size in rest.values()):
            continue
        fitting = (way for way in _ways(last) if covered(way.need, rest))
        if (final := next(fitting, None)) is not None:
            ways = (*chosen, final)
            total = _total(rivals, seen, [way.speed for way in ways])
            if total is not None:
                yield total, ways


def _total(
    rivals: Sequence[Rival], seen: Sequence[tuple[float, int]], speeds: Sequence[float]
) -> float | None:
    """Seconds that the answers to what was `seen` take at these speeds, all together; None where
    more was asked for than could be answered, or several would compute at nearly all times: in
    turns each has the devices to itself.
    """
    counts = Counter(number for _, number in seen)
    span = max(seen[-1][0] - seen[0][0], 1e-3)
    both = zip(rivals, speeds, strict=True)
    times = [(rival.seconds or 0.0) / max(speed, 1e-6) for rival, speed in both]
    busy = [min(1.0, counts[n] * time / span) for n, time in enumerate(times)]
    if sum(busy) - max(busy) > MOST_BESIDE:
        return None
    times = [time * (1.0 + sum(busy) - busy[n]) for n, time in enumerate(times)]
    if any(counts[n] * time > span * rivals[n].slots for n, time in enumerate(times)):
        return None
    return sum(counts[n] * time for n, time in enumerate(times))


def _ways(rival: Rival) -> Sequence[Smaller]:
    """Those that are compared, the fastest first: one that lies there as well as any stays so."""
    ways = sorted(rival.ways, key=lambda way: -way.speed)[:MOST_WAYS]
    if rival.lies is None:
        return ways
    return sorted((rival.lies, *ways), key=lambda way: -way.speed)
