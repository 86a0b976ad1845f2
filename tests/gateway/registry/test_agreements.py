"""Models that take turns too often are kept together, each with less of the card, and get their
full room back where that was no good.
"""

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from benchmarks.scheduler import alternating, mix
from benchmarks.sharing import Crowd, compared
from config.settings import SwapConfig
from gateway.registry.protocol import Model, Smaller, Unload
from tests.gateway.registry.machine import SimulatedMachine
from tests.gateway.registry.test_scheduler_histories import NAMES, Histories
from tests.gateway.registry.test_sharing import ANSWER, LOAD, WAYS

RULES = SwapConfig(max_wait=120.0, min_stay=1.0)


def model(name: str, load: float = LOAD, *, pinned: bool = False) -> Model:
    """Of 80 bytes, half as fast in main memory alone."""
    return Model(
        name=name,
        need=WAYS[0].need,
        smaller=WAYS[1:],
        load_seconds=load,
        slots=4,
        pinned=pinned,
    )


def machine_of(*models: Model, rules: SwapConfig = RULES) -> SimulatedMachine:
    return SimulatedMachine({"cpu": 1000, "cuda:0": 100}, rules, models)


def answer(machine: SimulatedMachine, name: str, pause: float = 10.0) -> None:
    """One request for it, from its coming to its end; whatever it takes is done on the way."""
    machine.request(name)
    for _ in range(20):
        if machine.using:
            break
        for leaver in list(machine.leaving):
            machine.finish_unload(leaver)
        for comer in list(machine.loading):
            machine.advance(machine.models[comer].load_seconds)
            machine.finish_load(comer)
        machine.advance(1.0)
    (number,) = machine.using
    speed = machine.scheduler._records[name].speed  # noqa: SLF001 - as an engine would know it
    machine.advance(ANSWER / speed)
    machine.release(number)
    machine.advance(pause)
    for leaver in list(machine.leaving):
        machine.finish_unload(leaver)
    for comer in list(machine.loading):
        machine.advance(machine.models[comer].load_seconds)
        machine.finish_load(comer)


def taken_turns(machine: SimulatedMachine, rounds: int) -> int:
    """So many requests for each of two models in turn; the loads that the last four took."""
    for name in ["a", "b"] * (rounds - 2):
        answer(machine, name)
    before = machine.loads
    for name in "abab":
        answer(machine, name)
    return machine.loads - before


def test_models_that_take_turns_are_kept_together_in_less_of_the_card() -> None:
    machine = machine_of(model("a"), model("b"))
    assert taken_turns(machine, 20) == 0
    assert machine.present.keys() == {"a", "b"}
    assert sum(held["cuda:0"] for held in machine.present.values()) == 100, "all of it is used"


def test_where_they_are_not_to_share_they_take_turns() -> None:
    rules = msgspec.structs.replace(RULES, share="never")
    assert taken_turns(machine_of(model("a"), model("b"), rules=rules), 20) == 4


def test_where_loads_are_quick_they_take_turns() -> None:
    assert taken_turns(machine_of(model("a", 0.2), model("b", 0.2)), 20) == 4


def test_a_model_that_is_asked_for_alone_gets_its_full_room_back_while_it_is_idle() -> None:
    machine = machine_of(model("a"), model("b"))
    taken_turns(machine, 20)
    slow = min("ab", key=lambda name: machine.present[name]["cuda:0"])
    for _ in range(100):
        answer(machine, slow)
    assert machine.present[slow] == dict(WAYS[0].need)


def test_a_third_model_is_weighed_too() -> None:
    machine = machine_of(model("a"), model("b"), model("c"))
    for _ in range(60):
        for name in "abc":
            answer(machine, name)
    before = machine.loads
    for name in "abc":
        answer(machine, name)
    assert machine.loads == before
    assert machine.present.keys() == {"a", "b", "c"}


def test_a_pinned_model_is_never_reloaded_for_it() -> None:
    machine = machine_of(model("a", pinned=True), model("b"), model("c"))
    machine.models["b"] = msgspec.structs.replace(machine.models["b"], need={"cuda:0": 20})
    machine.models["c"] = msgspec.structs.replace(machine.models["c"], need={"cuda:0": 20})
    answer(machine, "a")
    for _ in range(30):
        for name in "bc":
            answer(machine, name)
    assert machine.present["a"] == dict(WAYS[0].need)


def test_one_that_fails_in_its_smaller_way_is_loaded_in_full_the_next_time() -> None:
    machine = machine_of(model("a"), model("b"))
    taken_turns(machine, 20)
    machine.ask_unload("a")
    for leaver in list(machine.leaving):
        machine.finish_unload(leaver)
    machine.request("a")
    if machine.loading:
        machine.fail_load("a")
    machine.advance(100)
    answer(machine, "a")
    assert machine.present["a"] == dict(WAYS[0].need)


def test_unload_orders_say_why() -> None:
    machine = machine_of(model("a"), model("b"))
    taken_turns(machine, 20)
    slow = min("ab", key=lambda name: machine.present[name]["cuda:0"])
    whys = set()
    for _ in range(100):
        machine.request(slow)
        (number,) = machine.using
        machine.advance(10)
        whys |= {order.why for order in machine.release(number) if isinstance(order, Unload)}
        if whys:
            break
    assert whys == {"share"}


# ------------------------------------------------------------------------------- crowds, histories


@pytest.mark.parametrize("card", [1.0, 1.5])
@pytest.mark.parametrize("load", [1.0, 60.0])
@pytest.mark.parametrize("read", [0.1, 1.0])
def test_a_crowd_fares_at_least_as_well_as_in_turns(card: float, load: float, read: float) -> None:
    """As `benchmarks.sharing` compares them, with fewer requests."""
    case = mix(1, (load,) * 3, 1, 60.0, 60)
    crowd = Crowd(title="", case=case, card=card, slowdown=10.0, read=read)
    assert compared("", [crowd]).ratio <= 1.0


def test_two_hundred_at_once_fare_as_well_as_in_turns() -> None:
    crowd = Crowd(title="", case=alternating(), card=1.0, slowdown=10.0, read=0.1)
    assert compared("", [crowd]).ratio <= 1.0


@st.composite
def models(draw: st.DrawFn) -> list[Model]:
    """Of which few fit on the card together, and that may give way."""
    found = []
    for name in NAMES:
        size = draw(st.sampled_from([20, 30, 40, 50]))
        ways = tuple(
            Smaller({"cuda:0": part, "cpu": size - part}, 1 / (2 - part / size))
            for part in range(size, -1, -5)
        )
        found.append(
            Model(
                name=name,
                need=ways[0].need,
                smaller=ways[1:],
                load_seconds=draw(st.sampled_from([2.0, 30.0])),
                slots=draw(st.integers(1, 3)),
                pinned=draw(st.integers(0, 9)) == 0,
                ttl=draw(st.sampled_from([-1.0, -1.0, 70.0])),
            )
        )
    return found


class TurnTaking(Histories):
    """Models are asked for in turn, so often that they may be kept together."""

    @initialize(models=models())
    def begin(self, models: list[Model]) -> None:
        rules = SwapConfig(max_wait=10.0, min_stay=1.0)
        self.machine = SimulatedMachine({"cpu": 200, "cuda:0": 50}, rules, models)

    @rule(first=st.sampled_from(NAMES), second=st.sampled_from(NAMES), rounds=st.integers(8, 12))
    def two_models_are_asked_for_in_turn(self, first: str, second: str, rounds: int) -> None:
        machine = self.machine
        for _ in range(rounds):
            for name in (first, second):
                machine.request(name)
                for comer in list(machine.loading):
                    machine.finish_load(comer)
                for leaver in list(machine.leaving):
                    machine.finish_unload(leaver)
                for comer in list(machine.loading):
                    machine.finish_load(comer)
                machine.advance(1.0)
                for number in list(machine.using):
                    machine.release(number)
                machine.advance(20.0)


def test_no_history_of_models_kept_together_breaks_a_promise() -> None:
    search(histories=60)


@pytest.mark.slow
def test_no_history_of_models_kept_together_breaks_a_promise_after_a_long_search() -> None:
    search(histories=800)


def search(histories: int) -> None:
    """Look for a history that breaks a promise."""
    how = settings(max_examples=histories, stateful_step_count=20, database=None, deadline=None)
    run_state_machine_as_test(TurnTaking, settings=how)
