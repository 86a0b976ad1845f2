"""Who must go: enough, no more than needed, and the least valuable first."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.registry.eviction import EvictionCandidate, choose_victims, lacking

candidates = st.lists(
    st.builds(
        EvictionCandidate,
        name=st.uuids().map(str),
        holds=st.dictionaries(st.sampled_from(["cpu", "cuda:0"]), st.integers(0, 50)),
        load_seconds=st.floats(0.1, 100),
        idle_seconds=st.none() | st.floats(0, 1e6),
    ),
    max_size=7,
)
missing = st.dictionaries(st.sampled_from(["cpu", "cuda:0"]), st.integers(-20, 120))


@given(candidates, missing)
def test_the_chosen_are_enough_and_none_of_them_is_superfluous(
    candidates: list[EvictionCandidate], missing: dict[str, int]
) -> None:
    names = choose_victims(candidates, missing)
    if names is None:
        assert lacking(candidates, missing)
        return
    chosen = [candidate for candidate in candidates if candidate.name in names]
    assert not lacking(chosen, missing)
    for candidate in chosen:
        assert lacking([other for other in chosen if other is not candidate], missing)


def candidate(name: str, load: float, idle: float | None, size: int = 10) -> EvictionCandidate:
    return EvictionCandidate(name=name, holds={"cpu": size}, load_seconds=load, idle_seconds=idle)


def test_nobody_goes_where_nothing_is_missing() -> None:
    assert choose_victims([candidate("a", 1, 1)], {"cpu": 0}) == ()


def test_the_idle_go_before_the_used_whatever_their_load_takes() -> None:
    assert choose_victims([candidate("used", 1, None), candidate("idle", 100, 0)], {"cpu": 5}) == (
        "idle",
    )


def test_of_equal_idleness_the_quicker_load_goes() -> None:
    assert choose_victims([candidate("slow", 9, 5), candidate("quick", 1, 5)], {"cpu": 5}) == (
        "quick",
    )


def test_of_equal_load_times_the_longer_idle_goes() -> None:
    assert choose_victims([candidate("fresh", 5, 1), candidate("old", 5, 9)], {"cpu": 5}) == (
        "old",
    )


def test_a_small_one_is_spared_when_a_large_one_must_go_anyway() -> None:
    small, large = candidate("small", 1, 100), candidate("large", 50, 1, size=90)
    assert choose_victims([small, large], {"cpu": 80}) == ("large",)
