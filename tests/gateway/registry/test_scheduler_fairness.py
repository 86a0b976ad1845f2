"""Keys share the line for a model: whoever asks more than others doesn't make them wait more."""

import random
from collections import Counter

import pytest

from config.settings import SwapConfig
from gateway.registry.protocol import Grant, Model, Refuse
from tests.gateway.registry.machine import SimulatedMachine


def machine(slots: int, rules: SwapConfig | None = None) -> SimulatedMachine:
    """With a loaded model `m` that nobody uses."""
    model = Model(name="m", need={"cpu": 1}, load_seconds=1.0, slots=slots)
    place = SimulatedMachine({"cpu": 1}, rules or SwapConfig(max_waiting=10_000), [model])
    place.request("m", holds=False)
    place.finish_load("m")
    return place


def owners(place: SimulatedMachine) -> list[str]:
    """Of the running requests, in the order in which they began."""
    return [ticket.owner for ticket, _ in place.using.values()]


def test_a_key_with_a_hundred_requests_delays_another_by_one() -> None:
    place = machine(slots=2)
    for _ in range(100):
        place.request("m", owner="many")
    place.request("m", owner="few")
    place.release(min(place.using))
    assert owners(place) == ["many", "few"]


def test_of_one_key_first_come_first_served() -> None:
    place = machine(slots=1)
    for owner in ("a", "a", "b", "a", "b"):
        place.request("m", owner=owner)
    came = []
    while place.using:
        (number,) = place.using
        came.append((number, place.using[number][0].owner))
        place.release(number)
    for owner in ("a", "b"):
        mine = [number for number, whose in came if whose == owner]
        assert mine == sorted(mine)
    assert [owner for _, owner in came] == ["a", "a", "b", "a", "b"]


@pytest.mark.parametrize("seed", range(20))
def test_no_key_starves_and_busy_keys_get_equal_parts(seed: int) -> None:
    """Keys that always have something in line are granted equally often; one that asks for one
    thing at a time is served after at most one turn of each other key.
    """
    chance = random.Random(seed)
    slots, keys = chance.randint(1, 4), [f"k{number}" for number in range(chance.randint(2, 6))]
    place = machine(slots)
    for key in keys:
        for _ in range(chance.randint(slots, 50)):
            place.request("m", owner=key)
    place.request("m", owner="serial")
    served: Counter[str] = Counter()
    since = 0  # grants to others while the serial key waits and holds nothing
    for _ in range(300):
        for order in place.release(chance.choice([*place.using])):
            assert isinstance(order, Grant)
            owner = place.using[order.ticket][0].owner
            served[owner] += 1
            since = 0 if "serial" in owners(place) else since + 1
            place.request("m", owner=owner)  # as many wait as before
            assert since <= len(keys)
    parts = [served[key] for key in (*keys, "serial")]
    assert max(parts) <= 2 * min(parts) + slots


def test_a_full_line_gives_up_the_newest_place_of_who_has_most() -> None:
    place = machine(slots=1, rules=SwapConfig(max_waiting=4))
    for _ in range(5):
        place.request("m", owner="many")
    (order,) = place.request("m", owner="few")
    assert isinstance(order, Refuse)
    assert (order.ticket, order.why) == (6, "queue_full")
    place.request("m", owner="few")
    (order,) = place.request("m", owner="few")
    assert isinstance(order, Refuse)
    assert order.ticket == 9, "both have the same by now: the one who comes is refused"
