"""What steps cost, by what was measured, and what drafts may lose."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.engines.step_costs import Allowance, StepCosts


def test_a_long_draft_that_failed_is_not_the_last() -> None:
    allowance = Allowance()
    allowance.earned(1.0)
    allowance.spent(30.0)
    assert not allowance.covers(1.0, wrong=0.5)
    for _ in range(4_000):
        allowance.earned(1.0)
    assert allowance.covers(1.0, wrong=0.5)


def test_what_unsure_drafts_have_lost_is_not_in_the_way_of_sure_ones() -> None:
    allowance = Allowance()
    allowance.earned(1.0)
    while allowance.covers(1.0, wrong=0.5):
        allowance.spent(1.0)
    assert allowance.covers(4.0, wrong=0.1)


def test_a_step_that_was_held_up_is_soon_forgotten() -> None:
    costs = StepCosts()
    costs.measured(1, 0.01)
    costs.measured(1, 5.0)
    for _ in range(5):
        costs.measured(1, 0.01)
    assert costs.of(1) < 0.011


def test_a_step_larger_than_all_that_are_known_is_hoped_to_cost_little() -> None:
    costs = StepCosts()
    costs.measured(1, 0.01)
    costs.measured(2, 0.03)  # three times as much
    assert costs.of(8) < 0.03 + 6 * 0.01
    assert costs.reach == 8


def test_what_was_measured_long_ago_is_measured_anew() -> None:
    costs = StepCosts()
    costs.measured(1, 0.01)
    costs.measured(16, 0.5)  # the machine was busy
    costs.forget()
    costs.measured(1, 0.01)
    assert costs.of(16) < 0.25
    costs.measured(16, 0.05)
    assert costs.of(16) == pytest.approx(0.05)


def test_what_steps_take_is_known_after_a_few_of_them() -> None:
    costs = StepCosts()
    assert not costs.sure_of(1)
    for _ in range(8):
        costs.measured(1, 0.01)
    assert costs.sure_of(1)
    costs.forget()
    assert not costs.sure_of(1)


@given(st.dictionaries(st.integers(1, 40), st.floats(0.001, 1), min_size=1))
def test_costs_between_what_is_known_lie_between(known: dict[int, float]) -> None:
    costs = StepCosts()
    for rows, seconds in known.items():
        costs.measured(rows, seconds)
    for rows in range(1, 60):
        assert costs.of(rows) >= min(known.values()) * 0.999
        assert rows not in known or costs.of(rows) == known[rows]
