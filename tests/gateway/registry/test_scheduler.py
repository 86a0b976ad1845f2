"""The scheduler's decisions one by one: who is served, who drains, who goes, who must wait."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from config.settings import SwapConfig
from gateway.registry.protocol import Evicted, Grant, Load, Model, Refuse, Ticket, Unload
from tests.gateway.registry.machine import SimulatedMachine

RULES = SwapConfig(max_wait=120.0, min_stay=5.0)


def named(name: str, size: int = 60, load: float = 10.0, slots: int = 8) -> Model:
    return Model(name=name, need={"cpu": size}, load_seconds=load, slots=slots)


def machine(*models: Model, rules: SwapConfig = RULES) -> SimulatedMachine:
    return SimulatedMachine({"cpu": 100}, rules, models)


def record(place: SimulatedMachine, name: str) -> None:
    """Loaded long ago, used by nobody."""
    place.request(name)
    place.finish_load(name)
    place.release(max(place.using))
    place.advance(1000.0)


def test_a_resident_model_is_granted_at_once() -> None:
    place = machine(named("a"))
    assert place.request("a") == [Load("a", {"cpu": 60}, {"cpu": 100})]
    assert place.finish_load("a") == [Grant(1)]
    assert place.request("a") == [Grant(2)]


def test_an_idle_model_goes_for_the_first_who_asks() -> None:
    place = machine(named("a"), named("b"))
    record(place, "a")
    assert place.request("b") == [Unload("a", "room")]
    evicted = (Evicted("a", 1000.0),)
    assert place.finish_unload("a") == [Load("b", {"cpu": 60}, {"cpu": 100}, evicted)]


def test_of_the_idle_the_one_goes_that_is_quick_to_load_or_long_unused() -> None:
    quick_then_slow = machine(named("slow", 40, 60.0), named("quick", 40, 1.0), named("new", 40))
    record(quick_then_slow, "slow")
    record(quick_then_slow, "quick")
    assert quick_then_slow.request("new") == [Unload("quick", "room")]
    old_then_new = machine(named("old", 40), named("fresh", 40), named("new", 40))
    record(old_then_new, "old")
    record(old_then_new, "fresh")
    assert old_then_new.request("new") == [Unload("old", "room")]


def test_no_more_goes_than_must() -> None:
    place = machine(named("small", 20), named("large", 70), named("new", 75))
    record(place, "small")
    record(place, "large")
    assert place.request("new") == [Unload("large", "room")]


def test_nothing_goes_for_a_model_that_fits_beside() -> None:
    place = machine(named("a", 40), named("b", 60))
    record(place, "a")
    assert place.request("b") == [Load("b", {"cpu": 60}, {"cpu": 60})]


def test_a_used_model_goes_on_serving_until_enough_was_waited_for_another() -> None:
    """One client alone waits for three load times (30 s), three together for one each."""
    for crowd, patience in ((1, 30.0), (3, 10.0)):
        place = machine(named("a"), named("b"))
        record(place, "a")
        place.request("a")
        for _ in range(crowd):
            place.request("b")
        place.advance(patience - 0.1)
        assert place.request("a")[-1] == Grant(max(place.using))
        place.advance(0.2)
        assert place.scheduler.phase("a") == "draining"
        assert place.request("a") == []


def test_a_drained_model_goes_with_its_last_answer() -> None:
    place = machine(named("a"), named("b"))
    record(place, "a")
    place.request("a")
    place.request("a")
    place.request("b")
    place.advance(200.0)
    assert place.release(2) == []
    assert place.release(3) == [Unload("a", "room")]


def test_a_model_just_loaded_serves_for_its_quantum_though_others_waited_longer() -> None:
    place = machine(named("a", load=4.0), named("b"))
    place.request("a")
    place.request("b")
    place.advance(500.0)
    place.finish_load("a")
    place.advance(11.9)
    assert place.request("a")[-1] == Grant(3)
    place.advance(0.2)
    assert place.request("a") == []


def test_a_model_stays_until_those_who_waited_for_it_are_served() -> None:
    """One slot, four answers of ten seconds, and another model wanted: still one swap."""
    place = machine(named("a", load=1.0, slots=1), named("b", load=1.0))
    for _ in range(4):
        place.request("a")
        place.request("b")
    place.finish_load("a")
    for following in (3, 5, 7):
        place.advance(10.0)
        assert place.release(*place.using) == [Grant(following)]
    place.advance(10.0)
    assert place.release(*place.using) == [Unload("a", "room")]


def test_an_idle_model_just_loaded_stays_for_a_moment() -> None:
    """At most `min_stay`, and not longer than its load took."""
    for load, linger in ((10.0, 5.0), (2.0, 2.0)):
        place = machine(named("a", load=load), named("b"))
        place.request("a")
        place.finish_load("a")
        place.release(1)
        assert place.request("b") == []
        assert place.advance(linger - 0.1) == []
        assert place.advance(0.2) == [Unload("a", "room")]


def test_a_model_drains_no_longer_when_nobody_waits_for_the_other_any_more() -> None:
    place = machine(named("a"), named("b"))
    record(place, "a")
    place.request("a")
    place.request("b")
    place.advance(200.0)
    place.request("a")
    assert place.cancel(3) == [Grant(4)]
    assert place.scheduler.phase("a") == "loaded"


def test_a_model_that_falls_idle_steps_in_for_one_that_still_drains() -> None:
    place = machine(named("a", 50), named("b", 50), named("c", 50))
    for name in "ab":
        record(place, name)
    first, second = (place.request(name)[0] for name in "ab")
    assert (first, second) == (Grant(3), Grant(4))
    place.request("c")
    place.advance(200.0)
    drained = next(name for name in "ab" if place.scheduler.phase(name) == "draining")
    other = "b" if drained == "a" else "a"
    (user,) = place.users(other)
    assert place.release(user) == [Unload(other, "room")]
    assert place.scheduler.phase(drained) == "loaded"


def test_room_that_drains_for_one_is_not_taken_by_another() -> None:
    place = machine(named("a", 60), named("large", 90), named("small", 40))
    record(place, "a")
    place.request("a")
    place.request("large")
    place.advance(40.0)
    assert place.scheduler.phase("a") == "draining"
    assert place.request("small") == []
    assert place.release(2) == [Unload("a", "room")]
    assert place.finish_unload("a")[0].model == "large"  # type: ignore[union-attr]


def test_whoever_drains_goes_on_draining_though_another_could_do_it_too() -> None:
    place = machine(named("a", 50), named("b", 50), named("c", 50))
    for name in "ab":
        record(place, name)
        place.request(name)
    place.request("c")
    place.advance(40.0)
    draining = [name for name in "ab" if place.scheduler.phase(name) == "draining"]
    assert len(draining) == 1
    place.advance(40.0)
    assert [name for name in "ab" if place.scheduler.phase(name) == "draining"] == draining


def test_two_loads_that_were_asked_for_are_both_answered_though_only_one_fits() -> None:
    place = machine(named("a"), named("b"))
    place.request("a", holds=False)
    place.request("b", holds=False)
    assert place.finish_load("a") == [Grant(1), Unload("a", "room")]
    place.finish_unload("a")
    assert place.finish_load("b") == [Grant(2)]


def test_who_waits_is_refused_when_pinned_models_have_left_too_little_room_for_good() -> None:
    pinned = Model(name="pinned", need={"cpu": 40}, load_seconds=1.0, slots=1, pinned=True)
    place = machine(named("a"), named("large", 80), pinned)
    record(place, "a")
    place.request("a")
    place.request("large")
    place.request("pinned")
    orders = place.finish_load("pinned")
    assert [order.why for order in orders if isinstance(order, Refuse)] == ["too_large"]


def test_what_most_wait_for_is_loaded_first() -> None:
    place = machine(named("a"), named("b"), named("c"))
    record(place, "a")
    place.request("a")
    place.request("b")
    for _ in range(5):
        place.request("c")
    place.release(2)
    evicted = (Evicted("a", 0.0),)
    assert place.finish_unload("a") == [Load("c", {"cpu": 60}, {"cpu": 100}, evicted)]


def test_what_is_overdue_is_loaded_before_what_more_wait_for() -> None:
    place = machine(named("a"), named("b"), named("c"), named("d"))
    record(place, "a")
    place.request("a")
    place.request("d", holds=False)  # this swap has begun
    place.request("b")
    place.advance(130.0)
    for _ in range(5):
        place.request("c")
    place.release(2)
    place.finish_unload("a")
    place.advance(0.0)
    place.finish_load("d")
    orders = place.advance(10.0)
    assert orders == [Unload("d", "room")]
    assert isinstance(load := place.finish_unload("d")[0], Load)
    assert load.model == "b"


def test_devices_do_not_wait_for_each_other() -> None:
    card = Model(name="card", need={"cuda:0": 5}, load_seconds=1.0, slots=1)
    place = SimulatedMachine({"cpu": 100, "cuda:0": 10}, RULES, [named("a"), named("b"), card])
    record(place, "a")
    place.request("a")
    place.request("b")
    place.advance(500.0)
    assert place.request("card") == [Load("card", {"cuda:0": 5}, {"cuda:0": 10})]


def test_the_refused_learn_when_to_come_again() -> None:
    place = machine(named("a"), rules=SwapConfig(max_waiting=1))
    place.request("a")
    (order,) = place.request("a")
    assert isinstance(order, Refuse)
    assert (order.why, order.retry_after) == ("queue_full", 1.0)


def test_a_broken_model_takes_nobody_leaves_and_comes_back_after_a_rest() -> None:
    place = machine(named("a", slots=1), rules=SwapConfig(backoff=5.0))
    place.request("a")
    place.finish_load("a")
    waiting = max(place.using) + 1
    assert place.request("a") == []
    assert place.break_down("a") == [Refuse(waiting, "broken", "it broke", 5.0)]
    assert place.request("a") == [Refuse(waiting + 1, "broken", "it broke", 5.0)]
    assert place.release(max(place.using)) == [Unload("a", "broken")]
    assert place.finish_unload("a") == []
    assert place.request("a") == [Refuse(waiting + 2, "broken", "it broke", 5.0)]
    place.advance(5.0)
    assert place.request("a") == [Load("a", {"cpu": 60}, {"cpu": 100})]


def test_a_model_that_breaks_after_it_has_served_comes_back_after_a_second() -> None:
    place = machine(named("a"), rules=SwapConfig(backoff=5.0))
    record(place, "a")
    assert place.break_down("a") == [Unload("a", "broken")]  # it was idle
    place.finish_unload("a")
    assert place.request("a") == [Refuse(2, "broken", "it broke", 1.0)]
    place.advance(1.0)
    assert place.request("a") == [Load("a", {"cpu": 60}, {"cpu": 100})]


def test_where_a_budget_is_cut_idle_models_leave_until_it_fits() -> None:
    place = machine(named("used", 30), named("old", 30), named("new", 40))
    place.request("used")
    place.finish_load("used")
    for name in ("old", "new"):
        record(place, name)
    assert place.reconfigure({"cpu": 75}) == [Unload("old", "budget")]
    assert place.reconfigure({"cpu": 20}) == [Unload("new", "budget")]
    assert place.scheduler.phase("used") == "draining"
    assert place.release(1) == [Unload("used", "budget")]


def test_a_model_with_other_files_leaves_after_its_last_answer_and_comes_back_as_it_is() -> None:
    place = machine(named("a", 30))
    place.request("a")
    place.finish_load("a")
    assert place.replace("a") == []
    assert place.describe(named("a", 50)) == []
    assert place.request("a") == []
    assert place.release(1) == [Unload("a", "config")]
    assert place.finish_unload("a") == [Load("a", {"cpu": 50}, {"cpu": 100})]
    assert place.loading["a"] == {"cpu": 50}


def test_a_model_that_is_removed_answers_no_more_of_those_in_line() -> None:
    place = machine(named("a", slots=1))
    place.request("a")
    place.finish_load("a")
    place.request("a")
    (refused,) = place.remove("a")
    assert isinstance(refused, Refuse)
    assert refused.why == "removed"
    assert place.release(1) == [Unload("a", "config")]
    assert place.finish_unload("a") == []


def test_another_time_to_live_holds_at_once() -> None:
    place = machine(named("a"))
    record(place, "a")
    shorter = msgspec.structs.replace(named("a"), ttl=5.0)
    assert place.describe(shorter) == [Unload("a", "idle")]


def test_a_thrash_of_two_hundred_is_one_swap() -> None:
    place = machine(named("a", load=5.0), named("b", load=5.0))
    for _ in range(100):
        place.request("a")
        place.request("b")
    while place.waiting or place.using:
        if place.loading:
            place.finish_load(next(iter(place.loading)))
        elif place.leaving:
            place.finish_unload(next(iter(place.leaving)))
        else:
            place.advance(1.0)
            place.release(min(place.using))
    assert place.loads == 2


CARDS = {"cpu": 100, "cuda:0": 24, "cuda:1": 24}


def anywhere(name: str, size: int) -> Model:
    """On either card, else half on each."""
    both = {"cuda:0": size // 2, "cuda:1": size // 2}
    return Model(
        name=name,
        need={"cuda:0": size},
        others=({"cuda:1": size}, both),
        load_seconds=1.0,
        slots=1,
    )


def cards(*models: Model) -> SimulatedMachine:
    return SimulatedMachine(CARDS, RULES, models)


def lies(place: SimulatedMachine, name: str) -> dict[str, int]:
    """Where it is loaded to when it is requested."""
    loads = [order for order in place.request(name) if isinstance(order, Load)]
    (found,) = (dict(order.need) for order in loads)
    place.finish_load(name)
    return found


def test_a_model_goes_on_the_first_card_that_it_fits_beside_what_is_loaded() -> None:
    place = cards(anywhere("a", 20), anywhere("b", 20), anywhere("c", 4))
    assert lies(place, "a") == {"cuda:0": 20}
    assert lies(place, "b") == {"cuda:1": 20}
    assert lies(place, "c") == {"cuda:0": 4}


def test_a_model_is_split_only_where_no_card_has_room_for_all_of_it() -> None:
    place = cards(anywhere("a", 10), anywhere("b", 10), anywhere("c", 20))
    assert lies(place, "a") == {"cuda:0": 10}
    assert lies(place, "b") == {"cuda:0": 10}
    assert lies(place, "c") == {"cuda:1": 20}
    split = cards(anywhere("a", 14), anywhere("b", 14), anywhere("c", 16), anywhere("d", 40))
    for name in ("a", "b"):
        lies(split, name)
    assert lies(split, "c") == {"cuda:0": 8, "cuda:1": 8}
    assert lies(cards(anywhere("d", 40)), "d") == {"cuda:0": 20, "cuda:1": 20}


def test_room_is_made_on_the_card_where_it_costs_least() -> None:
    place = cards(anywhere("new", 20), anywhere("old", 20), anywhere("next", 20))
    record(place, "old")
    place.request("new")
    place.finish_load("new")
    place.release(max(place.using))
    place.advance(10.0)
    assert place.scheduler.residency("new").held == {"cuda:1": 20}  # type: ignore[union-attr]
    assert place.request("next") == [Unload("old", "room")]
    (load,) = place.finish_unload("old")
    assert isinstance(load, Load)
    assert load.need == {"cuda:0": 20}


def test_a_model_too_large_for_each_card_and_for_all_is_refused_by_what_all_have() -> None:
    place = cards(anywhere("a", 60))
    (order,) = place.request("a")
    assert isinstance(order, Refuse)
    assert order.why == "too_large"
    assert "cuda:0" in order.reason


@contextmanager
def collector_at(objects: int) -> Iterator[list[str]]:
    """Runs of the collector, which begins when so many more objects are there."""
    thresholds, runs = gc.get_threshold(), list[str]()
    gc.collect()
    gc.set_threshold(objects, *thresholds[1:])

    def note(phase: str, _: object) -> None:
        runs.append(phase)

    gc.callbacks.append(note)
    try:
        yield runs
    finally:
        gc.callbacks.remove(note)
        gc.set_threshold(*thresholds)


def test_a_load_makes_no_object_for_each_way_or_the_collector_would_run_within_decisions() -> None:
    """With 2,000 models on 64 nodes a run of it took a tenth of a second."""
    place = machine()
    ways = [{f"cuda:{card}": 60 + way} for way in range(100) for card in range(50)]
    place.budgets.update({f"cuda:{card}": 200 for card in range(50)})
    place.scheduler.apply(0.0, place.budgets, RULES)
    model = Model(name="a", need=ways[0], others=tuple(ways[1:]), load_seconds=1.0, slots=8)
    ticket = Ticket(number=1, arrived=0.0)

    with collector_at(len(ways) // 5) as runs:
        orders = place.scheduler.requested(0.0, ticket, model)

    assert isinstance(orders[0], Load)
    assert runs == []
