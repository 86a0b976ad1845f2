"""Where models larger than the cards lie: promises that hold for every model and every machine."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.contract.placement import (
    Device,
    Fit,
    LayerWeights,
    ModelWeights,
    Variant,
    fit,
    sentence,
)
from tests.backends.model_dimensions import MODELS, variant_of, weights_of

GIB = 2**30
CONTEXTS = (32_768, 16_384, 8_192)
TYPES = ("f16", "q8_0")
WEIGHTS = {model.name: weights_of(model) for model in MODELS}
VARIANTS = {
    name: tuple(variant_of(weights, tokens, kind) for tokens in CONTEXTS for kind in TYPES)
    for name, weights in WEIGHTS.items()
}
MAIN = 60e9  # bytes a second, as of two channels
names = st.sampled_from([model.name for model in MODELS])
sizes = st.integers(0, 96 * 4).map(lambda quarters: quarters * GIB // 4)
bandwidths = st.sampled_from([300e9, 900e9, 1_800e9])
machines = st.tuples(
    st.lists(st.tuples(sizes, bandwidths), max_size=4), st.integers(0, 1024).map(lambda g: g * GIB)
)


def devices(cards: list[tuple[int, float]], main: int) -> tuple[list[Device], Device]:
    there = [Device(f"cuda:{n}", free, speed) for n, (free, speed) in enumerate(cards)]
    return there, Device("cpu", main, MAIN)


def placed(name: str, cards: list[tuple[int, float]], main: int) -> Fit | None:
    return fit(WEIGHTS[name], VARIANTS[name], *devices(cards, main))


@settings(deadline=None)
@given(name=names, machine=machines)
def test_never_more_is_promised_than_is_free(
    name: str, machine: tuple[list[tuple[int, float]], int]
) -> None:
    cards, main = machine
    found = placed(name, cards, main)
    if found is None:
        return
    free = {f"cuda:{number}": size for number, (size, _) in enumerate(cards)} | {"cpu": main}
    assert all(size <= free[device] for device, size in found.sizes.items())
    weights = WEIGHTS[name]
    assert found.on_cards <= len(weights.layers) + 1
    total = sum(layer.shared + layer.experts for layer in weights.layers) + weights.output
    total += sum(found.variant.caches)
    assert sum(found.sizes.values()) >= total, "nothing is forgotten"


@settings(deadline=None)
@given(name=names, machine=machines, more=st.integers(0, 64), which=st.integers(0, 4))
def test_more_memory_never_makes_it_slower(
    name: str, machine: tuple[list[tuple[int, float]], int], more: int, which: int
) -> None:
    """For the same context; and never a shorter one."""
    cards, main = machine
    richer = [
        (size + more * GIB * (number == which), speed) for number, (size, speed) in enumerate(cards)
    ]
    before = placed(name, cards, main)
    after = placed(name, richer, main + more * GIB * (which >= len(cards)))
    if before is None:
        return
    assert after is not None
    order = VARIANTS[name]
    earlier, later = order.index(after.variant), order.index(before.variant)
    if after.on_cards and before.on_cards:
        assert earlier <= later
    if after.variant == before.variant:
        assert after.speed >= before.speed * (1 - 1e-9)


@settings(deadline=None)
@given(name=names, machine=machines)
def test_experts_leave_before_attention_and_the_same_comes_of_the_same(
    name: str, machine: tuple[list[tuple[int, float]], int]
) -> None:
    found = placed(name, *machine)
    assert found == placed(name, *machine)
    weights = WEIGHTS[name]
    if found is None or not found.on_cards:
        return
    first = len(weights.layers) + 1 - found.on_cards
    if first:  # whole layers are in main memory
        on_cards = [number for number in weights.experts if number >= first]
        assert found.away == len(on_cards), "no expert is on a card"


@pytest.mark.parametrize("name", [model.name for model in MODELS])
def test_as_a_card_fills_up_speed_falls_in_steps(name: str) -> None:
    found = [placed(name, [(size * GIB, 900e9)], 2048 * GIB) for size in range(640, -1, -8)]
    speeds = [one.speed for one in found if one is not None and one.variant.context == CONTEXTS[0]]
    assert speeds == sorted(speeds, reverse=True)
    assert speeds[0] == pytest.approx(1.0)
    last = found[-1]
    assert last is not None
    assert last.on_cards == 0
    assert last.sizes.keys() == {"cpu"}
    assert last.speed == pytest.approx(MAIN / 900e9)


def test_what_fits_one_card_is_not_spread_over_two() -> None:
    found = placed("Llama 3.1 8B", [(12 * GIB, 900e9), (24 * GIB, 900e9)], 64 * GIB)
    assert found is not None
    assert len(found.layers) == 1
    two = placed("Qwen3 32B", [(20 * GIB, 900e9), (20 * GIB, 900e9)], 64 * GIB)
    assert two is not None
    assert two.layers.keys() == {"cuda:0", "cuda:1"}
    assert abs(two.layers["cuda:0"] - two.layers["cuda:1"]) <= 5, "they are filled alike"


def told(name: str, card: int, main: int = 128) -> tuple[str, tuple[str, ...]]:
    found = placed(name, [(card * GIB, 900e9)], main * GIB)
    assert found is not None
    return sentence(found, WEIGHTS[name], VARIANTS[name][0]), found.reasons


def test_what_gave_way_is_said() -> None:
    assert told("Qwen3 8B", 24) == ("", ())
    said, reasons = told("Qwen3 30B-A3B", 12)
    assert said == "26 of 48 layers' experts in RAM: about 0.2 of full speed"
    assert reasons == ("all of it takes 20.7 GiB, free are cuda:0 12.0 GiB",)
    assert told("Llama 3.3 70B", 24)[0] == "43 of 80 layers in RAM: about 0.1 of full speed"
    assert told("Llama 3.1 8B", 0)[0] == "all in RAM: about 0.07 of full speed"


def test_a_context_is_shortened_only_where_nothing_else_fits() -> None:
    """Main memory is too small for the rest."""
    found = placed("Llama 3.1 8B", [(5 * GIB, 900e9)], 4 * GIB)
    assert found is not None
    assert (found.variant.context, found.variant.cache_type) == (32_768, "q8_0")
    assert any("f16" in reason for reason in found.reasons)


def test_a_card_too_small_for_anything_is_left_alone() -> None:
    found = placed("Qwen3 4B", [(GIB // 4, 900e9)], 64 * GIB)
    assert found is not None
    assert found.sizes.keys() == {"cpu"}


@given(steps=st.integers(0, 40))
@settings(deadline=None)
def test_counts_of_layers_and_bytes_agree(steps: int) -> None:
    """A model of ten layers of ten bytes and experts of twenty, on a card of any size."""
    weights = ModelWeights(
        layers=(LayerWeights(shared=10, experts=20),) * 10, output=5, embedding=5, used=0.1
    )
    plain = Variant(context=1, cache_type="f16", caches=(0,) * 10, buffers=0)
    found = fit(weights, (plain,), [Device("card", steps * 10, 2.0)], Device("cpu", 1000, 1.0))
    assert found is not None
    first = 11 - found.on_cards
    experts = 10 - first - found.away if found.on_cards else 0
    expected = 10 * (10 - first) + 20 * experts + 5 if found.on_cards else 0
    whole = 5 if found.is_whole(weights) else 0
    assert found.sizes.get("card", 0) == expected + whole


def test_every_reading_of_the_table_is_of_about_the_published_size() -> None:
    """In billions of parameters, within a tenth."""
    published = {
        "Llama 3.1 8B": 8.0, "Llama 3.3 70B": 70.6, "Llama 3.1 405B": 405.9, "Qwen3 32B": 32.8,
        "Qwen3 30B-A3B": 30.5, "gpt-oss 20B": 20.9, "gpt-oss 120B": 116.8, "Mixtral 8x7B": 46.7,
        "DeepSeek V3": 671.0, "GLM-4.5-Air": 106.9, "Qwen3 235B-A22B": 235.1,
    }  # fmt: skip
    for name, billions in published.items():
        weights = WEIGHTS[name]
        size = sum(one.shared + one.experts for one in weights.layers) + 2 * weights.output
        assert size * 8 / 4.85 / 1e9 == pytest.approx(billions, rel=0.1), name


def test_cards_of_unlike_speed_are_told_apart() -> None:
    slow = placed("Qwen3 14B", [(24 * GIB, 300e9)], 64 * GIB)
    both = placed("Qwen3 14B", [(24 * GIB, 300e9), (24 * GIB, 900e9)], 64 * GIB)
    assert slow is not None
    assert both is not None
    assert both.layers.keys() == {"cuda:1"}
    assert both.speed == pytest.approx(slow.speed)
    assert msgspec.structs.astuple(both.variant) == msgspec.structs.astuple(slow.variant)


def test_speed_falls_with_each_layer_that_leaves() -> None:
    name = "Qwen3 30B-A3B"
    speeds = []
    for quarter in range(84, 0, -1):
        found = placed(name, [(quarter * GIB // 4, 900e9)], 256 * GIB)
        assert found is not None
        if found.variant == VARIANTS[name][0]:
            speeds.append(found.speed)
    assert all(later <= earlier for earlier, later in pairwise(speeds))
    assert speeds[0] == 1.0


def test_beside_a_card_that_is_slower_than_main_memory_nothing_is_lost() -> None:
    found = placed("Qwen3 30B-A3B", [(12 * GIB, MAIN / 4)], 128 * GIB)
    assert found is not None
    assert found.away
    assert found.speed == 1.0
    said = sentence(found, WEIGHTS["Qwen3 30B-A3B"], VARIANTS["Qwen3 30B-A3B"][0])
    assert said == "26 of 48 layers' experts in RAM"
