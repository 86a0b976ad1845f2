"""Nobody starves: the bound that the scheduler's docstring states, kept in random crowds.

Every load, answer and unload takes a known time at most, so the bound is a number.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from functools import partial

import pytest

from config.settings import SwapConfig
from gateway.registry.patience import WORTH
from gateway.registry.protocol import CancelLoad, Grant, Load, Model, Order, Unload
from tests.gateway.registry.machine import SimulatedMachine

LOAD, ANSWER, UNLOAD = 4.0, 6.0, 0.5  # seconds at most
REQUESTS = 200
SLOTS = 1000  # within a model nobody waits for a slot, so that a wait is the wait for the model


class Crowd:
    """Runs a machine by itself: loads, answers and unloads take their time."""

    def __init__(self, machine: SimulatedMachine, chance: random.Random) -> None:
        self.machine = machine
        self._chance = chance
        self._agenda: list[tuple[float, int, Callable[[], list[Order]]]] = []
        self._order = itertools.count()

    def at(self, time: float, event: Callable[[], list[Order]]) -> None:
        heapq.heappush(self._agenda, (time, next(self._order), event))

    def run(self) -> None:
        while self._agenda or self.machine.scheduler.wakes_at(self.machine.now) is not None:
            wake = self.machine.scheduler.wakes_at(self.machine.now)
            if self._agenda and (wake is None or self._agenda[0][0] <= wake):
                time, _, event = heapq.heappop(self._agenda)
                orders = self.machine.advance(time - self.machine.now) + event()
            else:
                assert wake is not None
                orders = self.machine.advance(wake - self.machine.now)
            for order in orders:
                self._follow(order)

    def _follow(self, order: Order) -> None:
        machine, now = self.machine, self.machine.now
        match order:
            case Load(model=name):
                seconds = machine.models[name].load_seconds
                self.at(now + seconds, partial(machine.finish_load, name))
            case Unload(model=name):
                self.at(now + UNLOAD, partial(machine.finish_unload, name))
            case Grant(ticket=number):
                self.at(now + self._chance.uniform(0, ANSWER), partial(machine.release, number))
            case CancelLoad():
                raise AssertionError("nobody leaves here")
            case _:
                raise AssertionError("nobody is refused here")


def crowd(seed: int) -> tuple[Crowd, float]:
    """Some models, small and large, that don't fit together, and many clients; and the bound."""
    chance = random.Random(seed)
    rules = SwapConfig(max_wait=20.0, min_stay=chance.choice([0.0, 2.0]), max_waiting=10**6)
    models = [
        Model(
            name=f"m{number}",
            need={"cpu": chance.choice([20, 35, 50, 100])},
            load_seconds=chance.uniform(0.1, LOAD),
            slots=SLOTS,
        )
        for number in range(chance.randint(2, 6))
    ]
    machine = SimulatedMachine({"cpu": 100}, rules, models)
    crowd = Crowd(machine, chance)
    favourite = chance.choice(models).name
    for _ in range(REQUESTS):
        name = favourite if chance.random() < 0.5 else chance.choice(models).name
        crowd.at(chance.uniform(0, 150), partial(machine.request, name))
    quantum = max(rules.min_stay, min(rules.max_wait, WORTH * LOAD))
    return crowd, rules.max_wait + len(models) * (LOAD + quantum + ANSWER + UNLOAD)


@pytest.mark.parametrize("seed", range(12))
def test_no_wait_is_longer_than_the_bound(seed: int) -> None:
    people, bound = crowd(seed)
    people.run()
    assert not people.machine.waiting
    assert len(people.machine.waits) == REQUESTS
    assert max(people.machine.waits.values()) <= bound


def test_a_large_model_gets_its_turn_though_small_ones_keep_coming() -> None:
    """While the large one waits for room, no small one slips into what has become free."""
    rules = SwapConfig(max_wait=20.0, min_stay=0.0)
    small = [Model(name=f"s{n}", need={"cpu": 30}, load_seconds=1.0, slots=SLOTS) for n in range(6)]
    large = Model(name="large", need={"cpu": 90}, load_seconds=LOAD, slots=SLOTS)
    people = Crowd(SimulatedMachine({"cpu": 100}, rules, [*small, large]), random.Random(1))
    people.at(0.0, partial(people.machine.request, "s0"))
    people.at(0.0, partial(people.machine.request, "large"))
    for moment in range(400):
        people.at(moment * 0.5, partial(people.machine.request, f"s{moment % 6}"))
    people.run()
    quantum = WORTH * small[0].load_seconds
    assert people.machine.waits[2] <= rules.max_wait + 1.0 + quantum + ANSWER + UNLOAD + LOAD
