"""Models that can be parked: they give their card back, and keep main memory until that is needed,
too.
"""

from collections.abc import Callable

import pytest

from config.settings import SwapConfig
from gateway.registry.protocol import Load, Model, Unload
from tests.gateway.registry.machine import SimulatedMachine

RULES = SwapConfig(min_stay=0.0)


def parkable(name: str, parks: int = 20, awake: int = 5) -> Model:
    need = {"cpu": awake, "cuda:0": 10}
    return Model(name=name, need=need, load_seconds=1.0, slots=1, parks={"cpu": parks})


def machine(*models: Model) -> SimulatedMachine:
    return SimulatedMachine({"cpu": 40, "cuda:0": 10}, RULES, models)


def serve_once(machine: SimulatedMachine, name: str) -> None:
    """Load it, answer one request."""
    machine.request(name)
    while machine.leaving:
        machine.finish_unload(next(iter(machine.leaving)))
    machine.finish_load(name)
    machine.release(next(iter(machine.using)))
    machine.advance(10.0)


def test_what_is_evicted_for_room_is_parked_and_charged_to_main_memory() -> None:
    place = machine(parkable("a"), parkable("b"))
    serve_once(place, "a")
    assert place.request("b") == [Unload("a", "room", parks=True)]
    (load,) = place.finish_unload("a")
    assert isinstance(load, Load)
    assert place.scheduler.phase("a") == "parked"
    assert place.scheduler.room.promised() == {"cpu": 25, "cuda:0": 10}


def test_a_parked_model_counts_its_own_memory_as_free_when_it_comes_back() -> None:
    place = machine(parkable("a", parks=38, awake=38), parkable("b", parks=99, awake=2))
    serve_once(place, "a")
    serve_once(place, "b")
    assert place.scheduler.phase("a") == "parked"
    assert place.request("a") == [Unload("b", "room")], "b has no room to be parked in"
    (load,) = place.finish_unload("b")
    assert isinstance(load, Load)
    assert load.need == {"cpu": 38, "cuda:0": 10}


@pytest.mark.parametrize("parks", [36, 41])
def test_it_is_not_parked_where_nobody_else_would_have_room(parks: int) -> None:
    place = machine(parkable("a", parks=parks), parkable("b"))
    serve_once(place, "a")
    assert place.request("b") == [Unload("a", "room")]


def test_a_parked_model_goes_where_its_main_memory_is_needed() -> None:
    large = Model(name="large", need={"cpu": 30}, load_seconds=1.0, slots=1)
    place = machine(parkable("a"), parkable("b"), large)
    serve_once(place, "a")
    serve_once(place, "b")
    orders = place.request("large")
    assert Unload("a", "room") in orders
    place.finish_unload("a")
    assert place.scheduler.phase("a") == "absent"


def test_what_an_administrator_unloads_is_not_parked_and_what_is_parked_goes() -> None:
    place = machine(parkable("a"), parkable("b"))
    serve_once(place, "a")
    serve_once(place, "b")
    assert place.ask_unload("a") == [Unload("a", "asked")]
    place.finish_unload("a")
    assert place.ask_unload("b") == [Unload("b", "asked")]


@pytest.mark.parametrize(
    "end",
    [
        lambda place: place.ask_unload("a"),
        lambda place: place.remove("a"),
        lambda place: place.close(),
    ],
)
def test_what_is_to_go_while_it_is_being_parked_is_unloaded_then(
    end: Callable[[SimulatedMachine], object],
) -> None:
    place = machine(parkable("a"), parkable("b"))
    serve_once(place, "a")
    place.request("b")
    assert place.parking == {"a"}
    end(place)
    place.finish_unload("a")
    assert place.scheduler.phase("a") == "leaving"
    place.finish_unload("a")
    assert place.scheduler.phase("a") == "absent"
