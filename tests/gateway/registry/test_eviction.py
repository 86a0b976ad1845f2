"""Who must go: enough, no more than needed, and the least valuable first."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.registry.eviction import choose_victims, lacking
from gateway.registry.protocol import Model, Ticket
from gateway.registry.record import ModelRecord, Records

NOW = 1e7


def record(
    name: str, holds: dict[str, int], load_seconds: float, idle_seconds: float | None
) -> ModelRecord:
    """Of a model in memory; `idle_seconds` None: in use."""
    made = Records().open(Model(name=name, need=holds, load_seconds=load_seconds, slots=1))
    made.hold(holds)
    if idle_seconds is None:
        made.users[1] = Ticket(number=1, arrived=0.0)
    else:
        made.idle_since = NOW - idle_seconds
    return made


candidates = st.lists(
    st.builds(
        record,
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
    candidates: list[ModelRecord], missing: dict[str, int]
) -> None:
    chosen = choose_victims(candidates, missing, NOW)
    if chosen is None:
        assert lacking(candidates, missing)
        return
    assert set(chosen) <= set(candidates)
    assert not lacking(chosen, missing)
    for victim in chosen:
        assert lacking([other for other in chosen if other is not victim], missing)


def candidate(name: str, load: float, idle: float | None, size: int = 10) -> ModelRecord:
    return record(name, {"cpu": size}, load, idle)


def chosen(*candidates: ModelRecord, missing: int) -> tuple[str, ...]:
    victims = choose_victims(candidates, {"cpu": missing}, NOW)
    assert victims is not None
    return tuple(victim.model.name for victim in victims)


def test_nobody_goes_where_nothing_is_missing() -> None:
    assert chosen(candidate("a", 1, 1), missing=0) == ()


def test_the_idle_go_before_the_used_whatever_their_load_takes() -> None:
    assert chosen(candidate("used", 1, None), candidate("idle", 100, 0), missing=5) == ("idle",)


def test_of_equal_idleness_the_quicker_load_goes() -> None:
    assert chosen(candidate("slow", 9, 5), candidate("quick", 1, 5), missing=5) == ("quick",)


def test_of_equal_load_times_the_longer_idle_goes() -> None:
    assert chosen(candidate("fresh", 5, 1), candidate("old", 5, 9), missing=5) == ("old",)


def test_a_small_one_is_spared_when_a_large_one_must_go_anyway() -> None:
    small, large = candidate("small", 1, 100), candidate("large", 50, 1, size=90)
    assert chosen(small, large, missing=80) == ("large",)
