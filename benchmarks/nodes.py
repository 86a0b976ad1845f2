"""How long does the scheduler take to decide for a large cluster, and who waits how long? A study
without an engine: `python -m benchmarks.nodes`.

64 nodes of eight cards, 2,000 models of 2 to 120 GiB (the larger lie on two cards), 200 requests a
second on a virtual clock, from a seed. Nodes lack most files, and copying takes its time. The
books are kept a second time, from the orders alone, so that a mistake in the scheduler's can't hide
itself. Only how long a decision takes is measured on this machine, and how long Python's collector
takes for all these models: a decision may wait for it as anything may that the server does.
"""

import argparse
import gc
import heapq
import itertools
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Self

import msgspec

from config.settings import SwapConfig
from config.values import GIB
from gateway.registry.nodes import fewest, in_order, name_at, named
from gateway.registry.protocol import Bytes, Grant, Load, Model, Order, Refuse, Ticket, Unload
from gateway.registry.scheduler import Scheduler

COPYING = 1e9  # bytes a second, over the network
READING = 2e9  # bytes a second, from a disk
UNLOADING = 0.5  # seconds
SIZES = (2, 4, 8, 8, 16, 16, 40, 120)  # GiB
POPULARITY = 1.1  # Zipf's exponent
SLOTS = 128  # leases of a model
LARGEST_CARD = 80 * GIB


class Crowd(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster and who comes to it."""

    nodes: int = 64
    cards: int = 8
    models: int = 2_000
    rate: float = 200.0  # requests a second
    seconds: float = 300.0
    answer: float = 4.0  # seconds, the mean
    seed: int = 0


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """`decisions` in milliseconds of this machine, waits in seconds of the virtual clock."""

    crowd: Crowd
    decisions: int
    decision_p50: float
    decision_p99: float
    decision_most: float
    collector_most: float  # the longest run of Python's collector, within a decision or not
    requests: int
    answered: int
    refused: int
    loads: int
    copies: int
    wait_p50: float
    wait_p99: float
    wait_most: float


class Collector:
    """Times the runs of Python's garbage collector, in the processor's seconds."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._began = 0.0

    def __enter__(self) -> Self:
        gc.callbacks.append(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        gc.callbacks.remove(self._note)

    def _note(self, phase: str, _: object) -> None:
        if phase == "start":
            self._began = time.thread_time()
        else:
            self.longest = max(self.longest, time.thread_time() - self._began)


class Cluster:
    """The scheduler with a calendar in place of nodes and clients."""

    def __init__(self, crowd: Crowd, rules: SwapConfig) -> None:
        self._crowd = crowd
        self._chance = random.Random(crowd.seed)
        self._cards = {f"cuda:{number}": LARGEST_CARD for number in range(crowd.cards)}
        self._nodes = [f"node-{number}" for number in range(crowd.nodes)]
        self.budgets = {
            device: size
            for node in self._nodes
            for device, size in named(node, self._cards).items()
        }
        self._scheduler = Scheduler(self.budgets, rules)
        self._models = [self._model(number) for number in range(crowd.models)]
        ranks = range(1, crowd.models + 1)
        self._popularity = list(itertools.accumulate(rank**-POPULARITY for rank in ranks))
        self._has = {model.name: self._files(model.name) for model in self._models}
        self._calendar: list[tuple[float, int, Callable[[float], list[Order]]]] = []
        self._order = itertools.count()
        self._now = 0.0
        self._wakes: float | None = None
        self._waiting: dict[int, tuple[float, str]] = {}  # since when, and for which model
        self._held: dict[str, Bytes] = {}  # our own books
        self._taken = dict.fromkeys(self.budgets, 0)
        self.waits: list[float] = []
        self.decisions: list[float] = []
        self._collector = Collector()
        self.loads = self.copies = self.refused = 0

    def run(self) -> Figures:
        """Let everybody come and be answered."""
        for number, arrives in enumerate(self._crowd_comes()):
            self._at(arrives, partial(self._arrive, number))
        with self._collector:
            while (event := self._next()) is not None:
                orders = event(self._now)
                for order in orders:
                    self._follow(order)
        assert not self._waiting, "everybody was answered"
        return self._figures()

    # ------------------------------------------------------------------------------- who comes

    def _model(self, number: int) -> Model:
        size = int(self._chance.choice(SIZES) * GIB)
        return Model(
            name=f"model-{number}", need={}, load_seconds=1 + size / READING, slots=SLOTS, others=()
        )

    def _files(self, name: str) -> frozenset[str]:
        """Two nodes have them already."""
        return frozenset(in_order(name, dict.fromkeys(self._nodes, 0.0))[:2])

    def _planned(self, model: Model) -> Model:
        """Where it may lie now, as the registry plans it. Planned once until files were copied."""
        if model.need:
            return model
        size = int((model.load_seconds - 1) * READING)
        has = self._has[model.name]
        copying = {node: 0.0 if node in has else 1 + size / COPYING for node in self._nodes}
        sets = [
            dict.fromkeys(cards, 1 / count)
            for count in (1, 2)
            for cards in combinations(self._cards, count)
        ]
        parts = fewest(sets, size, self._cards)
        needs = [
            {name_at(node, card): int(size * part) for card, part in placement.items()}
            for node in in_order(model.name, copying)
            for placement in parts
        ]
        return msgspec.structs.replace(
            model,
            need=needs[0],
            others=tuple(needs[1:]),
            copying={node: seconds for node, seconds in copying.items() if seconds},
        )

    def _crowd_comes(self) -> Iterator[float]:
        now = 0.0
        while (now := now + self._chance.expovariate(self._crowd.rate)) < self._crowd.seconds:
            yield now

    def _arrive(self, number: int, now: float) -> list[Order]:
        (place,) = self._chance.choices(range(len(self._models)), cum_weights=self._popularity)
        model = self._models[place] = self._planned(self._models[place])
        ticket = Ticket(number=number, arrived=now)
        self._waiting[number] = now, model.name
        return self._timed(lambda: self._scheduler.requested(now, ticket, model))

    def _timed(self, decide: Callable[[], list[Order]]) -> list[Order]:
        """The processor's time: others may run on this machine, too."""
        began = time.thread_time()
        orders = decide()
        self._wakes = self._scheduler.wakes_at(self._now)
        self.decisions.append(time.thread_time() - began)
        return orders

    # ------------------------------------------------------------------------------- what follows

    def _at(self, moment: float, event: Callable[[float], list[Order]]) -> None:
        heapq.heappush(self._calendar, (moment, next(self._order), event))

    def _next(self) -> Callable[[float], list[Order]] | None:
        wake = self._wakes
        if wake is not None and (not self._calendar or wake < self._calendar[0][0]):
            self._now = wake
            return lambda now: self._timed(lambda: self._scheduler.tick(now))
        if not self._calendar:
            return None
        self._now, _, event = heapq.heappop(self._calendar)
        return event

    def _follow(self, order: Order) -> None:
        match order:
            case Load(model=name, need=need):
                self._load(name, need)
            case Unload(model=name):
                self._at(self._now + UNLOADING, partial(self._unloaded, name))
            case Grant(ticket=number):
                arrived, name = self._waiting.pop(number)
                self.waits.append(self._now - arrived)
                answer = self._chance.expovariate(1 / self._crowd.answer)
                self._at(self._now + answer, partial(self._released, name, number))
            case Refuse(ticket=number):
                del self._waiting[number]
                self.refused += 1
            case _:
                raise AssertionError(f"nobody leaves and nothing fails here: {order}")

    def _load(self, name: str, need: Bytes) -> None:
        """Memory is promised once, by books of our own."""
        node = next(iter(need)).partition("/")[0]
        for device, size in need.items():
            assert device.startswith(f"{node}/"), "a model lies on one node"
            self._taken[device] += size
            assert self._taken[device] <= self.budgets[device], f"{device} is promised twice"
        assert name not in self._held, f"{name} is loaded twice"
        self._held[name] = need
        self.loads += 1
        size = sum(need.values())
        copying = 0.0 if node in self._has[name] else 1 + size / COPYING
        if copying:
            self.copies += 1
            self._has[name] |= {node}
            place = int(name.partition("-")[2])
            self._models[place] = msgspec.structs.replace(self._models[place], need={}, others=())
        seconds = 1 + size / READING
        self._at(self._now + copying + seconds, partial(self._loaded, name, need, seconds))

    def _loaded(self, name: str, need: Bytes, seconds: float, now: float) -> list[Order]:
        return self._timed(lambda: self._scheduler.loaded(now, name, need, seconds))

    def _released(self, name: str, number: int, now: float) -> list[Order]:
        return self._timed(lambda: self._scheduler.released(now, name, number))

    def _unloaded(self, name: str, now: float) -> list[Order]:
        for device, size in self._held.pop(name).items():
            self._taken[device] -= size
        return self._timed(lambda: self._scheduler.unloaded(now, name))

    def _figures(self) -> Figures:
        def part(values: list[float], share: float) -> float:
            return sorted(values)[int(share * (len(values) - 1))]

        milliseconds = [1000 * one for one in self.decisions]
        return Figures(
            crowd=self._crowd,
            decisions=len(milliseconds),
            decision_p50=part(milliseconds, 0.5),
            decision_p99=part(milliseconds, 0.99),
            decision_most=max(milliseconds),
            collector_most=1000 * self._collector.longest,
            requests=len(self.waits) + self.refused,
            answered=len(self.waits),
            refused=self.refused,
            loads=self.loads,
            copies=self.copies,
            wait_p50=part(self.waits, 0.5),
            wait_p99=part(self.waits, 0.99),
            wait_most=max(self.waits),
        )


def main() -> None:
    """The command."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--output", type=Path, default=Path("benchmarks/results/nodes.json"))
    arguments.add_argument("--seconds", type=float, default=300.0, help="of the virtual clock")
    arguments.add_argument("--rate", type=float, default=200.0, help="requests a second")
    given = arguments.parse_args()
    crowd = Crowd(seconds=given.seconds, rate=given.rate)
    figures = Cluster(crowd, SwapConfig(max_waiting=1_000_000)).run()
    print(msgspec.json.format(msgspec.json.encode(figures)).decode())
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_bytes(msgspec.json.format(msgspec.json.encode(figures)))


if __name__ == "__main__":
    main()
