"""The study's yardsticks are right: FIFO is FIFO, and nothing beats the best order."""

from benchmarks.scheduler import MOST_SWAPS, RULES, alternating, small
from benchmarks.simulation import Case, Request, best_order, first_in_first_out, scheduled
from tests.every import for_every


def case(*requests: Request, room: int = 1, slots: int = 9) -> Case:
    return Case(loads={"a": 10.0, "b": 10.0}, room=room, slots=slots, requests=requests, unload=1.0)


def test_fifo_swaps_for_each_request_of_another_model() -> None:
    crowd = case(Request("a", 0, 5), Request("b", 0, 5), Request("a", 0, 5))
    outcome = first_in_first_out(crowd)
    assert outcome.waits == (10.0, 26.0, 42.0)
    assert outcome.loads == 3
    assert outcome.ended == 47.0


def test_fifo_answers_neighbours_together_as_far_as_slots_go() -> None:
    crowd = case(Request("a", 0, 5), Request("a", 0, 5), Request("a", 0, 5), slots=2)
    assert first_in_first_out(crowd).waits == (10.0, 10.0, 15.0)


def test_fifo_keeps_what_fits_and_drops_what_was_used_longest_ago() -> None:
    requests = [Request(name, 100.0 * number, 1) for number, name in enumerate("abcab")]
    crowd = Case(
        loads=dict.fromkeys("abc", 10.0), room=2, slots=9, requests=tuple(requests), unload=1.0
    )
    assert first_in_first_out(crowd).loads == 5


def test_the_best_order_answers_a_model_s_requests_together() -> None:
    crowd = case(Request("a", 0, 5), Request("b", 0, 5), Request("a", 0, 5))
    outcome = best_order(crowd)
    assert outcome.waits == (10.0, 26.0, 10.0)
    assert outcome.loads == 2


def test_the_best_order_may_wait_for_who_will_come() -> None:
    crowd = case(Request("a", 0, 1), Request("b", 10, 1), Request("a", 12, 1))
    assert best_order(crowd).waits == (10.0, 14.0, 0.0)


@for_every("seed", range(20))
def test_nobody_beats_the_best_order(seed: int) -> None:
    crowd = small(seed, load=10.0, every=4.0)
    best = best_order(crowd).mean_wait
    assert best <= scheduled(crowd, RULES).mean_wait + 1e-9
    assert best <= first_in_first_out(crowd).mean_wait + 1e-9


def test_two_hundred_requests_in_turn_for_two_models_take_few_swaps() -> None:
    assert scheduled(alternating(), RULES).swaps <= MOST_SWAPS
    assert first_in_first_out(alternating()).swaps == 199
