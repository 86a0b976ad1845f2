"""Where a model lies in a cluster: names of devices, the order of nodes, the cost of a copy."""

from config.settings import SwapConfig
from gateway.registry.nodes import (
    bare,
    fewest,
    in_order,
    named,
    node_of,
    nodes_of,
)
from gateway.registry.protocol import Bytes, Grant, Load, Model, Order, Ticket, Unload
from gateway.registry.scheduler import Scheduler

CARDS = {"cuda:0": 80, "cuda:1": 80}


def test_a_device_is_called_by_its_node_and_the_own_ones_by_themselves() -> None:
    assert named("box", {"cuda:0": 1, "cpu": 2}) == {"box/cuda:0": 1, "box/cpu": 2}
    assert named("", {"cpu": 2}) == {"cpu": 2}
    assert bare({"box/cuda:0": 1}) == {"cuda:0": 1}
    assert (node_of({"box/cpu": 1}), node_of({"cpu": 1}), node_of({})) == ("box", "", "")
    assert node_of({"a/cuda:0": 1, "b/cuda:0": 1}) == "", "begun here"
    assert nodes_of({"a/cuda:0": 1, "b/cuda:0": 1, "cpu": 1}) == {"a", "b", ""}


def test_nodes_with_the_file_come_first_and_each_model_has_its_own_order() -> None:
    copying = {f"n{number}": 5.0 if number < 4 else 0.0 for number in range(8)}
    orders = {tuple(in_order(f"model {number}", copying)) for number in range(20)}
    assert all(set(order[:4]) == {"n4", "n5", "n6", "n7"} for order in orders)
    assert len({order[0] for order in orders}) == 4, "models spread"
    assert in_order("one", copying) == in_order("one", dict(reversed(copying.items())))


def test_a_model_lies_on_no_more_cards_of_a_node_than_it_must() -> None:
    ways = ({"cuda:0": 1.0}, {"cuda:1": 1.0}, {"cuda:0": 0.5, "cuda:1": 0.5})
    assert fewest(ways, 60, CARDS) == [ways[0], ways[1]]
    assert fewest(ways, 100, CARDS) == [ways[2]]
    assert fewest(ways, 1_000, CARDS) == ways


BUDGETS = {"a/cuda:0": 10, "b/cuda:0": 10}


def model(name: str, *needs: Bytes, copying: dict[str, float] | None = None) -> Model:
    return Model(
        name=name,
        need=needs[0],
        others=needs[1:],
        copying=copying or {},
        load_seconds=10.0,
        slots=1,
    )


def asked(scheduler: Scheduler, now: float, number: int, wanted: Model) -> list[Order]:
    return scheduler.requested(now, Ticket(number=number, arrived=now), wanted)


def loaded(scheduler: Scheduler, now: float, order: Load) -> list[Order]:
    return scheduler.loaded(now, order.model, order.need, 10.0)


A, B = {"a/cuda:0": 8}, {"b/cuda:0": 8}


def with_a_idle() -> Scheduler:
    """One model lies on node `a`, and was used last at 10."""
    scheduler = Scheduler(BUDGETS, SwapConfig(min_stay=1.0))
    (order,) = asked(scheduler, 0.0, 1, model("old", A))
    assert isinstance(order, Load)
    assert loaded(scheduler, 10.0, order) == [Grant(1)]
    assert scheduler.released(10.0, "old", 1) == []
    return scheduler


def test_a_model_is_copied_to_a_free_node_where_that_costs_less_than_another_one_s_memory() -> None:
    scheduler = with_a_idle()
    (order,) = asked(scheduler, 12.0, 2, model("new", A, B, copying={"b": 1.0}))
    assert isinstance(order, Load)
    assert order.need == B


def test_a_turn_is_had_of_a_model_on_another_node_too() -> None:
    """It belongs to none; so who waits for it hears of its end wherever that comes."""
    turn = {"one of x": 1}
    scheduler = Scheduler(BUDGETS | turn, SwapConfig(min_stay=1.0))
    (order,) = asked(scheduler, 0.0, 1, model("old", A | turn))
    assert isinstance(order, Load)
    assert loaded(scheduler, 10.0, order) == [Grant(1)]
    assert asked(scheduler, 11.0, 2, model("new", B | turn)) == []
    (left,) = scheduler.released(100.0, "old", 1)
    assert left == Unload("old", "room")
    (load,) = scheduler.unloaded(101.0, "old")
    assert isinstance(load, Load)
    assert load.need == B | turn


def test_an_idle_model_leaves_the_node_with_the_file_where_a_copy_would_cost_more() -> None:
    scheduler = with_a_idle()
    (order,) = asked(scheduler, 12.0, 2, model("new", A, B, copying={"b": 600.0}))
    assert order == Unload("old", "room")
    (load,) = scheduler.unloaded(13.0, "old")
    assert isinstance(load, Load)
    assert load.need == A


def test_a_model_in_use_is_not_waited_for_where_a_copy_helps() -> None:
    scheduler = with_a_idle()
    assert asked(scheduler, 12.0, 2, model("old", A)) == [Grant(2)]
    (order,) = asked(scheduler, 500.0, 3, model("new", A, B, copying={"b": 600.0}))
    assert isinstance(order, Load)
    assert order.need == B


def test_a_node_makes_room_for_one_model_while_another_node_does_for_another() -> None:
    scheduler = Scheduler(BUDGETS, SwapConfig(min_stay=0.0))
    for number, need in enumerate((A, B)):
        (order,) = asked(scheduler, 0.0, number, model(f"old {number}", need))
        assert isinstance(order, Load)
        loaded(scheduler, 10.0, order)
        scheduler.released(10.0, order.model, number)
    first = asked(scheduler, 100.0, 10, model("one", A, B))
    second = asked(scheduler, 100.0, 11, model("two", A, B))
    leaving = {order.model for order in (*first, *second) if isinstance(order, Unload)}
    assert leaving == {"old 0", "old 1"}
    ends = [*scheduler.unloaded(101.0, "old 0"), *scheduler.unloaded(101.0, "old 1")]
    needs = [order.need for order in ends if isinstance(order, Load)]
    assert sorted(map(str, needs)) == sorted(map(str, (A, B)))


def test_models_of_a_node_that_left_come_back_elsewhere() -> None:
    scheduler = with_a_idle()
    assert scheduler.apply(20.0, {"b/cuda:0": 10}, SwapConfig()) == []
    orders = scheduler.broke(20.0, "old", "node a is gone", rest=False)
    assert orders == [Unload("old", "broken")]
    scheduler.unloaded(20.0, "old")
    (load,) = asked(scheduler, 20.0, 5, model("old", B))
    assert isinstance(load, Load)
    assert load.need == B


def test_a_load_whose_node_left_is_tried_at_once_elsewhere() -> None:
    scheduler = Scheduler(BUDGETS, SwapConfig())
    (order,) = asked(scheduler, 0.0, 1, model("one", A, B))
    assert isinstance(order, Load)
    assert order.need == A
    scheduler.apply(1.0, {"b/cuda:0": 10}, SwapConfig())
    (again,) = scheduler.load_failed(1.0, "one", "node a is gone", moved=True)
    assert isinstance(again, Load)
    assert again.need == B


BOTH = {"cpu": 0, **A, **B}
SPAN = {"cpu": 5, **BUDGETS}


def spanning(scheduler: Scheduler, now: float, number: int) -> list[Order]:
    """Asks for a model that is begun here, and has a card of each node."""
    return asked(scheduler, now, number, model("large", BOTH))


def with_both_idle() -> Scheduler:
    """A model lies on each node; both were used last at 10."""
    scheduler = Scheduler(SPAN, SwapConfig(min_stay=0.0))
    for number, (name, need) in enumerate({"on a": A, "on b": B}.items()):
        (order,) = asked(scheduler, 0.0, number, model(name, need))
        assert isinstance(order, Load)
        loaded(scheduler, 10.0, order)
        scheduler.released(10.0, name, number)
    return scheduler


def test_a_model_on_cards_of_several_nodes_has_models_leave_each_of_them() -> None:
    scheduler = with_both_idle()
    orders = spanning(scheduler, 100.0, 5)
    assert {*orders} == {Unload("on a", "room"), Unload("on b", "room")}
    assert scheduler.unloaded(101.0, "on a") == []
    (load,) = scheduler.unloaded(101.0, "on b")
    assert isinstance(load, Load)
    assert load.need == BOTH
    assert loaded(scheduler, 102.0, load) == [Grant(5)]
    assert scheduler.room.free("a/cuda:0") == scheduler.room.free("b/cuda:0") == 2


def test_it_leaves_for_a_model_of_any_of_its_nodes_and_when_one_of_them_drains() -> None:
    for needs in (A, B):
        scheduler = Scheduler(SPAN, SwapConfig(min_stay=0.0))
        (load,) = spanning(scheduler, 0.0, 1)
        assert isinstance(load, Load)
        loaded(scheduler, 10.0, load)
        record = scheduler.residency("large")
        assert record is not None
        assert record.nodes == {"", "a", "b"}
        scheduler.released(10.0, "large", 1)
        assert asked(scheduler, 100.0, 2, model("one", needs)) == [Unload("large", "room")]
        (after,) = scheduler.unloaded(101.0, "large")
        assert isinstance(after, Load)
        loaded(scheduler, 102.0, after)
        assert {*scheduler.room.promised().values()} == {0, 8}
    scheduler = Scheduler(SPAN, SwapConfig())
    (load,) = spanning(scheduler, 0.0, 1)
    assert isinstance(load, Load)
    loaded(scheduler, 10.0, load)
    scheduler.released(10.0, "large", 1)
    assert scheduler.apply(20.0, {**SPAN, "b/cuda:0": 0}, SwapConfig()) == [
        Unload("large", "budget")
    ]


def test_room_that_is_cleared_on_several_nodes_is_given_to_nobody_else() -> None:
    scheduler = with_both_idle()
    spanning(scheduler, 100.0, 5)
    scheduler.unloaded(101.0, "on a")
    small = model("small", {"a/cuda:0": 3}, {"b/cuda:0": 3})
    assert asked(scheduler, 101.0, 6, small) == []
    first, *_ = scheduler.unloaded(102.0, "on b")
    assert isinstance(first, Load)
    assert first.model == "large"


def test_it_waits_until_a_node_has_made_its_room_for_another_one() -> None:
    scheduler = with_both_idle()
    assert asked(scheduler, 100.0, 5, model("new", A)) == [Unload("on a", "room")]
    assert spanning(scheduler, 100.5, 6) == []
    load, *_ = scheduler.unloaded(101.0, "on a")
    assert isinstance(load, Load)
    assert load.model == "new"
    assert Grant(5) in loaded(scheduler, 102.0, load)
    leaving = scheduler.released(103.0, "new", 5)
    assert {*leaving} == {Unload("new", "room"), Unload("on b", "room")}
    scheduler.unloaded(104.0, "new")
    (last,) = scheduler.unloaded(104.0, "on b")
    assert isinstance(last, Load)
    assert last.need == BOTH
