"""Limits of a key, by a clock that is set by hand."""

import random

import pytest

from gateway.keys.limits import DAY, MINUTE, UNLIMITED, Limiter, Limits, Window
from gateway.terms.errors import RateLimited

NOON = 20_000 * DAY + DAY / 2


def wait(limiter: Limiter, limits: Limits, now: float, tokens: int = 0) -> float:
    """That a request is told to wait."""
    with pytest.raises(RateLimited) as refused:
        limiter.charge(now, "key", limits, tokens)
    assert refused.value.retry_after is not None
    return refused.value.retry_after


def test_so_many_requests_begin_in_a_minute() -> None:
    limiter, limits = Limiter(), Limits(requests_per_minute=3)
    for second in range(3):
        limiter.charge(NOON + second, "key", limits, 0).settle(NOON + second, 0)
    seconds = wait(limiter, limits, NOON + 3)
    assert 57 <= seconds <= 58
    wait(limiter, limits, NOON + 3 + seconds - 0.01)
    limiter.charge(NOON + 3 + seconds, "key", limits, 0)
    wait(limiter, limits, NOON + 3 + seconds)


def test_keys_have_their_own() -> None:
    limiter, limits = Limiter(), Limits(requests_per_minute=1)
    limiter.charge(NOON, "key", limits, 0)
    limiter.charge(NOON, "another", limits, 0)
    wait(limiter, limits, NOON)


def test_a_refusal_costs_nothing() -> None:
    limiter, limits = Limiter(), Limits(requests_per_minute=1, tokens_per_minute=100)
    limiter.charge(NOON, "key", limits, 10).settle(NOON, 10)
    before = limiter.allowance(NOON, "key", limits)
    for _ in range(50):
        wait(limiter, limits, NOON, 10)
    assert limiter.allowance(NOON, "key", limits) == before


def test_tokens_are_expected_first_and_counted_at_the_end() -> None:
    limiter, limits = Limiter(), Limits(tokens_per_minute=100)
    charge = limiter.charge(NOON, "key", limits, 80)
    wait(limiter, limits, NOON, 30)
    charge.settle(NOON + 1, 20)
    limiter.charge(NOON + 1, "key", limits, 80)
    rate = limiter.allowance(NOON + 1, "key", limits).tokens
    assert rate is not None
    assert rate.left == 0


def test_more_than_expected_is_counted_when_it_is_known() -> None:
    limiter, limits = Limiter(), Limits(tokens_per_minute=100)
    limiter.charge(NOON, "key", limits, 10).settle(NOON + 90, 70)
    assert wait(limiter, limits, NOON + 90, 50) > 55


def test_a_request_that_expects_more_than_its_limit_needs_all_of_it() -> None:
    limiter, limits = Limiter(), Limits(tokens_per_minute=100)
    limiter.charge(NOON, "key", limits, 1000).settle(NOON, 1)
    assert 60 <= wait(limiter, limits, NOON, 1000) <= 61
    limiter.charge(NOON + 61, "key", limits, 1000)


def test_what_never_began_is_given_back() -> None:
    limiter, limits = Limiter(), Limits(parallel=1, requests_per_minute=1, tokens_per_day=10)
    for _ in range(5):
        limiter.charge(NOON, "key", limits, 10).settle(NOON, 0, began=False)


def test_unknown_usage_stays_as_expected() -> None:
    limiter, limits = Limiter(), Limits(tokens_per_minute=100)
    limiter.charge(NOON, "key", limits, 60).settle(NOON, None)
    wait(limiter, limits, NOON, 60)


def test_so_many_run_at_once() -> None:
    limiter, limits = Limiter(), Limits(parallel=2)
    first = limiter.charge(NOON, "key", limits, 0)
    limiter.charge(NOON, "key", limits, 0)
    wait(limiter, limits, NOON)
    first.settle(NOON, 0)
    limiter.charge(NOON, "key", limits, 0)


def test_a_day_ends_at_midnight() -> None:
    limiter, limits = Limiter(), Limits(tokens_per_day=100)
    limiter.restore(NOON, {"key": 50})
    limiter.charge(NOON, "key", limits, 50).settle(NOON, 50)
    assert wait(limiter, limits, NOON, 1) == DAY / 2
    limiter.charge(NOON + DAY / 2, "key", limits, 100)


def test_the_scarcest_tokens_are_reported() -> None:
    limiter, limits = Limiter(), Limits(tokens_per_minute=100, tokens_per_day=50)
    limiter.charge(NOON, "key", limits, 20)
    tokens = limiter.allowance(NOON, "key", limits).tokens
    assert tokens is not None
    assert (tokens.limit, tokens.left, tokens.reset) == (50, 30, DAY / 2)
    assert limiter.allowance(NOON, "key", UNLIMITED).tokens is None


def test_a_clock_that_is_set_back_forgets_nothing_and_locks_nobody_out() -> None:
    limiter, limits = Limiter(), Limits(requests_per_minute=1)
    limiter.charge(NOON, "key", limits, 0)
    with pytest.raises(RateLimited) as refused:
        limiter.charge(NOON - 3600, "key", limits, 0)
    seconds = refused.value.retry_after
    assert seconds is not None
    assert seconds <= 61
    limiter.charge(NOON - 3600 + seconds, "key", limits, 0)


def test_a_day_that_comes_again_is_the_same_day() -> None:
    limiter, limits = Limiter(), Limits(tokens_per_day=50)
    limiter.charge(NOON, "key", limits, 40)
    with pytest.raises(RateLimited):
        limiter.charge(NOON - DAY, "key", limits, 40)
    limiter.charge(NOON, "key", limits, 40)


@pytest.mark.parametrize("seed", range(10))
def test_no_minute_has_more_than_its_limit(seed: int) -> None:
    """And after the time that a refused request is told, it is let in."""
    chance, limiter, limits = random.Random(seed), Limiter(), Limits(tokens_per_minute=100)
    now, taken = NOON, list[tuple[float, int]]()
    for _ in range(500):
        now += chance.expovariate(1.0)
        tokens = chance.randint(1, 40)
        try:
            limiter.charge(now, "key", limits, tokens).settle(now, tokens)
        except RateLimited as refused:
            now += refused.retry_after or 0.0
            limiter.charge(now, "key", limits, tokens).settle(now, tokens)
        taken.append((now, tokens))
    for end, _ in taken:
        assert sum(amount for at, amount in taken if end - MINUTE < at <= end) <= 100


def test_a_window_falls_to_nothing() -> None:
    window = Window()
    assert window.falls_to(NOON, 0) == 0.0
    window.add(NOON, 5)
    seconds = window.falls_to(NOON, 0)
    assert window.used(NOON + seconds - 0.01) == 5
    assert window.used(NOON + seconds) == 0
