"""Do models that take turns fare better together? A study without an engine:
`python -m benchmarks.sharing`.

The crowds of `benchmarks.scheduler` are answered twice by the gateway's scheduler: models take
turns (`share: never`), or are kept together where it judges so (`share: auto`). Prints a table
(Markdown) and writes JSON. The clock is virtual and the crowds come from a seed, so every run gives
the same figures.

A model in a smaller way is slower by the bytes that it reads from main memory. Models that answer
at the same time halve each other's speed, as those do that read weights from one card.
"""

import argparse
import heapq
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from benchmarks.scheduler import alternating, mix
from benchmarks.simulation import Case
from config.settings import SwapConfig
from gateway.registry.protocol import Bytes, Grant, Load, Model, Order, Smaller, Ticket, Unload
from gateway.registry.scheduler import Scheduler

CARD, MAIN = "cuda:0", "cpu"
SIZE = 80  # units of a model; the card's are `Crowd.card`
STEPS = 8  # ways in which a model takes less of the card
PLENTY = 10_000  # units of main memory
ENDED = 1e-9  # seconds of an answer that are rounding


class Crowd(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks for what, on which machine. `card`: its memory, as a part of what one model takes;
    `slowdown`: how much longer a byte takes from main memory; `read`: of a model's bytes that leave
    the card, the part that a token is computed with (experts: few).
    """

    title: str
    case: Case
    card: float
    slowdown: float
    read: float = 1.0

    def ways(self) -> tuple[Smaller, ...]:
        """From all on the card to nothing."""
        return tuple(self._way(step / STEPS) for step in range(STEPS, -1, -1))

    def _way(self, part: float) -> Smaller:
        need = {CARD: round(SIZE * part), MAIN: SIZE - round(SIZE * part)}
        away = (1 - part) * self.read
        return Smaller(need, 1 / (1 - away + away * self.slowdown))


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a crowd. `times`: from each request to its last word, in seconds."""

    times: tuple[float, ...]
    loads: int

    @property
    def mean(self) -> float:
        return sum(self.times) / len(self.times)

    @property
    def p95(self) -> float:
        return sorted(self.times)[int(0.95 * (len(self.times) - 1))]


class Machine:
    """The gateway's scheduler with a calendar in place of engines and clients."""

    def __init__(self, crowd: Crowd, rules: SwapConfig) -> None:
        self._case = crowd.case
        self._best, *self._smaller = self._ways = crowd.ways()
        budgets = {CARD: round(SIZE * crowd.card), MAIN: PLENTY}
        self._scheduler = Scheduler(budgets, rules)
        self._calendar: list[tuple[float, int, Callable[[], list[Order]]]] = []
        self._order = itertools.count()
        self._now = 0.0
        self._rest: dict[int, float] = {}  # seconds of each answer that are left, at full speed
        self._speeds: dict[str, float] = {}
        self._ended: dict[int, float] = {}
        self._loads = 0

    def run(self) -> Result:
        """Let everybody come and be answered."""
        requests = self._case.requests
        for number, request in enumerate(requests):
            self._at(request.arrives, partial(self._arrive, number))
        while (event := self._next()) is not None:
            for order in event():
                self._follow(order)
        times = tuple(self._ended[n] - request.arrives for n, request in enumerate(requests))
        return Result(times=times, loads=self._loads)

    def _at(self, time: float, event: Callable[[], list[Order]]) -> None:
        heapq.heappush(self._calendar, (time, next(self._order), event))

    def _rate(self, number: int) -> float:
        """Of an answer's full speed."""
        computing = {self._case.requests[one].model for one in self._rest}
        return self._speeds[self._case.requests[number].model] / len(computing)

    def _next(self) -> Callable[[], list[Order]] | None:
        """What happens next: by the calendar, an answer's end, or as the scheduler asked for."""
        rates = {number: self._rate(number) for number in self._rest}
        ends = {number: self._now + left / rates[number] for number, left in self._rest.items()}
        first = min(ends, key=ends.__getitem__, default=None)
        wake = self._scheduler.wakes_at(self._now)
        moments = [self._calendar[0][0]] if self._calendar else []
        moments += [wake] if wake is not None else []
        moments += [] if first is None else [ends[first]]
        if not moments:
            return None
        then = max(self._now, min(moments))
        for number, rate in rates.items():
            self._rest[number] -= (then - self._now) * rate
        self._now = then
        if first is not None and self._rest[first] <= ENDED:
            return partial(self._end, first)
        if self._calendar and self._calendar[0][0] <= then:
            return heapq.heappop(self._calendar)[2]
        return partial(self._scheduler.tick, then)

    def _arrive(self, number: int) -> list[Order]:
        name = self._case.requests[number].model
        model = Model(
            name=name,
            need=self._best.need,
            smaller=tuple(self._smaller),
            load_seconds=self._case.loads[name],
            slots=self._case.slots,
        )
        return self._scheduler.requested(self._now, Ticket(number=number, arrived=self._now), model)

    def _end(self, number: int) -> list[Order]:
        del self._rest[number]
        self._ended[number] = self._now
        name = self._case.requests[number].model
        return self._scheduler.released(self._now, name, number)

    def _loaded(self, name: str, held: Bytes) -> list[Order]:
        self._speeds[name] = next(way.speed for way in self._ways if way.need == held)
        return self._scheduler.loaded(self._now, name, held, self._case.loads[name])

    def _follow(self, order: Order) -> None:
        match order:
            case Load(model=name, need=need):
                self._loads += 1
                self._at(self._now + self._case.loads[name], partial(self._loaded, name, need))
            case Unload(model=name):
                gone = lambda: self._scheduler.unloaded(self._now, name)  # noqa: E731
                self._at(self._now + self._case.unload, gone)
            case Grant(ticket=number):
                self._rest[number] = self._case.requests[number].answer
            case _:
                raise AssertionError(f"nobody leaves and nothing fails here: {order}")


def crowds(seeds: int) -> Mapping[str, Sequence[Crowd]]:
    """Those of `benchmarks.scheduler`, on cards that hold one model and some of another, with
    layers that leave (all of them is read for a token) and with experts (a tenth).
    """
    found: dict[str, list[Crowd]] = {}
    kinds = (("layers", 10.0, 1.0), ("experts", 10.0, 0.1))
    for (kind, slowdown, read), card in itertools.product(kinds, (1.0, 1.5)):
        machine = f"{kind} leave, the card holds {card:g} models"
        title = f"200 at once for two in turn; {machine}"
        found[title] = [
            Crowd(title=title, case=alternating(), card=card, slowdown=slowdown, read=read)
        ]
        for load, every in itertools.product((1.0, 10.0, 60.0), (1.0, 10.0, 60.0)):
            title = f"loads of {load:g} s, a request every {every:g} s; {machine}"
            cases = (mix(seed, (load,) * 3, 1, every, 200) for seed in range(seeds))
            found[title] = [
                Crowd(title=title, case=case, card=card, slowdown=slowdown, read=read)
                for case in cases
            ]
    return found


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The means over crowds of one kind; seconds from a request to its last word. `worst`: as
    `ratio`, of the one crowd that fared worst.
    """

    title: str
    worst: float
    loads: tuple[float, float]  # in turns, together
    mean: tuple[float, float]
    p95: tuple[float, float]

    @property
    def ratio(self) -> float:
        """Less than 1: `auto` is better."""
        return self.mean[1] / self.mean[0]


def compared(title: str, group: Sequence[Crowd]) -> Row:
    """`never` beside `auto`."""
    both = []
    for share in ("never", "auto"):
        rules = SwapConfig(max_waiting=1_000_000, share=share)
        both.append([Machine(crowd, rules).run() for crowd in group])
    never, auto = both

    def pair(figure: Callable[[Result], float]) -> tuple[float, float]:
        first, second = (sum(map(figure, results)) / len(group) for results in (never, auto))
        return first, second

    worst = max(after.mean / before.mean for before, after in zip(never, auto, strict=True))
    return Row(
        title=title,
        worst=worst,
        loads=pair(lambda result: result.loads),
        mean=pair(lambda result: result.mean),
        p95=pair(lambda result: result.p95),
    )


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    titles = (
        "crowd | loads, never | auto | mean s, never | auto | p95 s, never | auto | ratio | worst"
    )
    lines = [f"| {titles} |", "|---|--:|--:|--:|--:|--:|--:|--:|--:|"]
    lines += [
        f"| {row.title} | {row.loads[0]:.0f} | {row.loads[1]:.0f} | {row.mean[0]:.1f} |"
        f" {row.mean[1]:.1f} | {row.p95[0]:.1f} | {row.p95[1]:.1f} | {row.ratio:.2f} |"
        f" {row.worst:.2f} |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    """The command."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--output", type=Path, default=Path("benchmarks/results/sharing.json"))
    arguments.add_argument("--seeds", type=int, default=5, help="crowds of each kind")
    given = arguments.parse_args()
    rows = [compared(title, group) for title, group in crowds(given.seeds).items()]
    print(table(rows))
    worst = max(row.ratio for row in rows)
    print(f"\nat least as good as taking turns in each: {'met' if worst <= 1 else 'MISSED'}")
    print(f"of single crowds the worst: {max(row.worst for row in rows):.2f}")
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_bytes(msgspec.json.format(msgspec.json.encode(rows)))


if __name__ == "__main__":
    main()
