"""Thousands of random histories: whatever happens in whatever order, the scheduler's promises hold.

The promises themselves are asserted by `SimulatedMachine`, at every order and after every event.
"""

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from config.settings import SwapConfig
from gateway.registry.protocol import Model, Refuse, Smaller
from tests.gateway.registry.machine import SimulatedMachine

DEVICES = ("cpu", "cuda:0")
NAMES = ("a", "b", "c", "d", "e")

needs = st.one_of(
    st.fixed_dictionaries({"cpu": st.integers(0, 110)}),
    st.fixed_dictionaries({"cuda:0": st.integers(1, 60)}),
    st.fixed_dictionaries({"cpu": st.integers(1, 50), "cuda:0": st.integers(1, 50)}),
)


def smaller(need: dict[str, int]) -> tuple[Smaller, ...]:
    """Ways in which ever more of the card's part lies in main memory."""
    card, rest = need.get("cuda:0", 0), need.get("cpu", 0)
    parts = (card * step // 4 for step in (3, 2, 1, 0)) if card else ()
    return tuple(
        Smaller({"cuda:0": part, "cpu": rest + card - part}, 0.9 * part / card + 0.1)
        for part in parts
    )


CARDS = ("a/cuda:0", "b/cuda:0", "b/cuda:1")
cluster_needs = st.one_of(
    st.fixed_dictionaries({"cpu": st.integers(0, 110)}),
    *(st.fixed_dictionaries({card: st.integers(1, 60)}) for card in CARDS),
    st.fixed_dictionaries({card: st.integers(1, 60) for card in CARDS[1:]}),
    # of several nodes, as commands have it, which are begun here
    st.fixed_dictionaries({"cpu": st.integers(0, 20), **{c: st.integers(1, 60) for c in CARDS}}),
    st.fixed_dictionaries({"cpu": st.just(0), CARDS[0]: st.integers(1, 60)}),
)


@st.composite
def models(draw: st.DrawFn, needs: st.SearchStrategy[dict[str, int]] = needs) -> list[Model]:
    wanted = {name: draw(needs) for name in NAMES}
    return [
        Model(
            name=name,
            need=wanted[name],
            others=tuple(draw(st.lists(needs, max_size=2))),
            smaller=smaller(wanted[name]) if draw(st.booleans()) else (),
            load_seconds=draw(st.sampled_from([0.0, 0.3, 2.0, 30.0])),
            slots=draw(st.integers(1, 3)),
            pinned=draw(st.integers(0, 5)) == 0,
            ttl=draw(st.sampled_from([-1.0, -1.0, 0.0, 7.0])),
            parks=draw(st.one_of(st.none(), st.fixed_dictionaries({"cpu": st.integers(0, 60)}))),
        )
        for name in NAMES
    ]


rules = st.builds(
    SwapConfig,
    max_waiting=st.sampled_from([2, 6, 100]),
    max_wait=st.sampled_from([0.0, 10.0, 120.0]),
    min_stay=st.sampled_from([0.0, 1.0, 20.0]),
    backoff=st.sampled_from([0.0, 10.0]),
    share=st.sampled_from(["auto", "never"]),
)


class Histories(RuleBasedStateMachine):
    """Clients, administrators, engines and time, in any order."""

    @initialize(models=models(), rules=rules)
    def begin(self, models: list[Model], rules: SwapConfig) -> None:
        self.machine = SimulatedMachine({"cpu": 100, "cuda:0": 50}, rules, models)

    @rule(name=st.sampled_from(NAMES), keep_alive=st.sampled_from([None, None, None, -1, 0, 5]))
    def a_client_asks(self, name: str, keep_alive: float | None) -> None:
        self.machine.request(name, keep_alive=keep_alive)

    @rule(name=st.sampled_from(NAMES))
    def an_administrator_loads(self, name: str) -> None:
        self.machine.request(name, holds=False)

    @rule(name=st.sampled_from(NAMES), again=st.booleans())
    def an_administrator_unloads(self, name: str, again: bool) -> None:
        self.machine.ask_unload(name, again=again)

    @rule(name=st.sampled_from(NAMES), ttl=st.sampled_from([-1.0, 0.0, 7.0]), pinned=st.booleans())
    def a_model_is_described_anew(self, name: str, ttl: float, pinned: bool) -> None:
        model = self.machine.models[name]
        self.machine.describe(msgspec.structs.replace(model, ttl=ttl, pinned=pinned))

    @rule(name=st.sampled_from(NAMES), need=needs)
    def a_model_has_other_files(self, name: str, need: dict[str, int]) -> None:
        self.machine.replace(name)
        model = self.machine.models[name]
        self.machine.describe(msgspec.structs.replace(model, need=need, smaller=smaller(need)))

    @rule(name=st.sampled_from(NAMES))
    def a_model_is_removed(self, name: str) -> None:
        self.machine.remove(name)

    @rule(cpu=st.sampled_from([0, 50, 100, 200]), card=st.sampled_from([0, 50]))
    def budgets_change(self, cpu: int, card: int) -> None:
        self.machine.reconfigure({"cpu": cpu, "cuda:0": card})

    @precondition(lambda self: self.machine.waiting)
    @rule(data=st.data())
    def a_waiting_client_leaves(self, data: st.DataObject) -> None:
        self.machine.cancel(data.draw(st.sampled_from(sorted(self.machine.waiting))))

    @precondition(lambda self: self.machine.using)
    @rule(data=st.data())
    def an_answer_ends(self, data: st.DataObject) -> None:
        self.machine.release(data.draw(st.sampled_from(sorted(self.machine.using))))

    @precondition(lambda self: self.machine.using)
    @rule(data=st.data())
    def an_answer_finds_its_model_broken(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.machine.using)))
        self.machine.break_down(self.machine.using[number][1])
        self.machine.release(number)

    @precondition(lambda self: self.machine.loading)
    @rule(data=st.data(), percent=st.sampled_from([80, 100, 100, 100, 120]))
    def a_load_ends_well(self, data: st.DataObject, percent: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.machine.loading)))
        promised = self.machine.loading[name]
        took = {device: size * percent // 100 for device, size in promised.items()}
        self.machine.finish_load(name, took)

    @precondition(lambda self: self.machine.loading)
    @rule(data=st.data(), memory=st.booleans())
    def a_load_fails(self, data: st.DataObject, memory: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.machine.loading)))
        self.machine.fail_load(name, memory=memory)

    @precondition(lambda self: self.machine.leaving)
    @rule(data=st.data())
    def an_unload_ends(self, data: st.DataObject) -> None:
        self.machine.finish_unload(data.draw(st.sampled_from(sorted(self.machine.leaving))))

    @precondition(lambda self: self.machine.parked)
    @rule(data=st.data())
    def a_parked_process_ends(self, data: st.DataObject) -> None:
        self.machine.break_parked(data.draw(st.sampled_from(sorted(self.machine.parked))))

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 7.0, 60.0, 500.0]))
    def time_passes(self, seconds: float) -> None:
        self.machine.advance(seconds)

    def teardown(self) -> None:
        """When everything that runs ends and nobody new comes, everyone in line gets an answer."""
        if hasattr(self, "machine"):
            run_out(self.machine)
            assert not self.machine.waiting
            self.machine.close()
            run_out(self.machine)
            assert not self.machine.present
            assert not self.machine.parked


class ClusterHistories(Histories):
    """The same on three machines, with models that lie on cards of several."""

    @initialize(models=models(cluster_needs), rules=rules)
    def begin(self, models: list[Model], rules: SwapConfig) -> None:
        budgets = {"cpu": 100, **dict.fromkeys(CARDS, 50)}
        self.machine = SimulatedMachine(budgets, rules, models)

    @rule(name=st.sampled_from(NAMES), need=cluster_needs)
    def a_model_has_other_files(self, name: str, need: dict[str, int]) -> None:
        self.machine.replace(name)
        model = self.machine.models[name]
        self.machine.describe(msgspec.structs.replace(model, need=need))

    @rule(cpu=st.sampled_from([0, 100]), card=st.sampled_from([0, 50]), gone=st.booleans())
    def budgets_change(self, cpu: int, card: int, gone: bool) -> None:
        others = {} if gone else {CARDS[1]: 50, CARDS[2]: 50}
        self.machine.reconfigure({"cpu": cpu, CARDS[0]: card, **others})


def run_out(machine: SimulatedMachine) -> None:
    """All loads end well, all answers and unloads end; then time passes."""
    for _ in range(1000):
        if machine.loading:
            machine.finish_load(min(machine.loading))
        elif machine.leaving:
            machine.finish_unload(min(machine.leaving))
        elif machine.using:
            machine.release(min(machine.using))
        elif (wake := machine.scheduler.wakes_at(machine.now)) is not None:
            machine.advance(wake - machine.now)
        else:
            return
    raise AssertionError("it never comes to rest")


MACHINES = pytest.mark.parametrize("kind", [Histories, ClusterHistories])


@MACHINES
def test_no_history_breaks_a_promise(kind: type[Histories]) -> None:
    search(kind, histories=150)


@MACHINES
@pytest.mark.slow
def test_no_history_breaks_a_promise_after_a_long_search(kind: type[Histories]) -> None:
    search(kind, histories=1_500)


def search(kind: type[Histories], histories: int) -> None:
    """Look for a history that breaks a promise."""
    how = settings(max_examples=histories, stateful_step_count=30, database=None)
    run_state_machine_as_test(kind, settings=how)


def test_a_model_that_is_pinned_while_a_cut_budget_drains_it_stays() -> None:
    loose = Model(name="a", need={"cpu": 1}, load_seconds=0.0, slots=1, pinned=False, ttl=-1.0)
    machine = SimulatedMachine({"cpu": 2}, SwapConfig(), [loose])
    machine.request("a")
    machine.finish_load("a")
    machine.reconfigure({"cpu": 0})
    machine.describe(msgspec.structs.replace(loose, pinned=True))
    machine.release(min(machine.using))
    assert "a" in machine.present


def test_a_model_that_is_pinned_while_it_drains_for_another_stays() -> None:
    """And who waits for its room is refused when no other can be made."""
    loose = Model(name="a", need={"cpu": 2}, load_seconds=0.0, slots=1, pinned=False, ttl=-1.0)
    rules = SwapConfig(max_wait=0.0, min_stay=0.0)
    machine = SimulatedMachine({"cpu": 2}, rules, [loose, msgspec.structs.replace(loose, name="b")])
    machine.request("a")
    machine.finish_load("a")
    machine.request("b")
    assert machine.scheduler.phase("a") == "draining"
    machine.describe(msgspec.structs.replace(loose, pinned=True))
    assert [refusal.why for refusal in machine.refused.values()] == ["too_large"]
    machine.release(min(machine.using))
    assert "a" in machine.present


def test_after_closing_nobody_is_let_in() -> None:
    machine = SimulatedMachine(
        {"cpu": 100}, SwapConfig(), [Model(name="a", need={"cpu": 1}, load_seconds=1, slots=1)]
    )
    machine.close()
    (order,) = machine.request("a")
    assert isinstance(order, Refuse)
    assert order.why == "closing"
