"""A GGUF model and the memory there is: what its header says of its parts, and the options that
have it fit.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.contract import catalog
from backends.contract.catalog import Fitted, ModelFiles, Room
from backends.engines.llamacpp.files import estimate, fit_on, spread
from backends.engines.llamacpp.layout import WORKSPACE
from backends.machine import ggml
from config.engines import LlamaCppOptions
from tests.backends.pairs import quick
from tests.backends.random_gguf import MODELS, Dimensions, write

AUTO = LlamaCppOptions(max_concurrent=1)
SHORT = msgspec.structs.replace(AUTO, context_length=512, micro_batch_size=64)
PLENTY = 1 << 40
CARD = {"card:0": 1}
MIXTURE = Dimensions(
    architecture="qwen3moe", layers=6, experts=16, experts_used=2, inner=512, context=32_768
)


def model(folder: Path, dimensions: Dimensions) -> ModelFiles:
    return catalog.recognise(write(folder / "model.gguf", dimensions))


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return model(tmp_path_factory.mktemp("mixture"), MIXTURE)


def fitted(
    files: ModelFiles, size: int, options: LlamaCppOptions = AUTO, main: int = PLENTY
) -> Fitted | None:
    return fit_on(files, options, list(CARD), Room(free={"card:0": size, "cpu": main}))


def changed(found: Fitted | None, options: LlamaCppOptions = AUTO) -> Mapping[str, Any]:
    """The options that were decided."""
    assert found is not None
    before, after = msgspec.structs.asdict(options), msgspec.structs.asdict(found.options)
    return {name: value for name, value in after.items() if value != before[name]}


def whole(files: ModelFiles) -> int:
    """Bytes of it and its buffers on a card, where the output's matrix lies once more."""
    return estimate(files, SHORT).total + files.vocab_size * MIXTURE.width * 2 + 10_000


@pytest.mark.parametrize("kind", quick(sorted(MODELS), "small", "windowed", "mixed", "experts"))
def test_all_bytes_of_a_file_belong_to_a_layer_or_lie_beside_them(
    kind: str, tmp_path: Path
) -> None:
    files = model(tmp_path, MODELS[kind])
    weights = files.weights
    assert weights is not None
    layers = sum(one.shared + one.experts for one in weights.layers)
    tied = MODELS[kind].vocabulary * MODELS[kind].width * 2
    assert layers + weights.output + weights.embedding == files.size_bytes + tied
    assert sum(one.cache + one.sliding for one in weights.layers) == files.cache_bytes_per_token
    assert sum(one.sliding for one in weights.layers) == files.sliding_bytes_per_token
    states = files.state_bytes * files.recurrent_layers
    assert sum(one.state for one in weights.layers) == states
    assert bool(weights.experts) == bool(MODELS[kind].experts)


def test_what_fits_gives_way_to_nothing(mixture: ModelFiles) -> None:
    assert fitted(mixture, whole(mixture), SHORT) is None


def test_experts_leave_first_then_layers_then_all(mixture: ModelFiles) -> None:
    size = whole(mixture)
    found = [fitted(mixture, size * part // 20, SHORT) for part in range(19, -1, -1)]
    kept = [one for one in found if one is not None]
    assert len(kept) == len(found)
    decided = [changed(one, SHORT) for one in kept]
    assert decided[0] == {"gpu_layers": 7, "cpu_experts": 1}
    assert decided[-1] == {"gpu_layers": 0, "cpu_experts": 0}
    layers = [one["gpu_layers"] for one in decided]
    assert layers == sorted(layers, reverse=True)
    assert {1, 2, 3} <= {one["cpu_experts"] for one in decided if one["gpu_layers"] == 7}
    for one, part in zip(kept, range(19, -1, -1), strict=True):
        taken = one.need.total * one.placement.get("card:0", 0)
        assert taken <= size * part // 20, "no more is promised than there is"
        assert sum(one.placement.values()) == pytest.approx(1)
    assert kept[0].note.startswith("1 of 6 layers' experts in RAM: about 0.")
    assert kept[-1].note.startswith("all in RAM")
    assert kept[0].reasons


def ggml_device(name: str) -> ggml.GgmlDevice:
    return ggml.GgmlDevice(name=name, description="", shared=False, bus=None, total=0, free=0)


def test_a_card_keeps_room_for_what_cublas_takes(
    mixture: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp ends the process where it isn't there."""
    size = whole(mixture)
    monkeypatch.setattr(ggml, "devices", lambda: [ggml_device("CUDA0")])
    assert fitted(mixture, size + WORKSPACE, SHORT) is None
    for part in range(19, -1, -1):
        found = fitted(mixture, size * part // 20 + WORKSPACE, SHORT)
        assert found is not None
        taken = found.need.total * found.placement.get("card:0", 0)
        assert taken <= size * part // 20 + WORKSPACE
        assert taken >= WORKSPACE or changed(found, SHORT)["gpu_layers"] == 0
    assert changed(fitted(mixture, size, SHORT), SHORT)["gpu_layers"] == 0
    monkeypatch.setattr(ggml, "offloads", lambda: True)
    assert estimate(mixture, SHORT).engine > WORKSPACE
    monkeypatch.setattr(ggml, "devices", lambda: [ggml_device("Vulkan0")])
    assert estimate(mixture, SHORT).engine < WORKSPACE


def test_what_is_asked_for_stays(mixture: ModelFiles) -> None:
    for options in (
        LlamaCppOptions(gpu_layers=-1),
        LlamaCppOptions(gpu_layers=3),
        LlamaCppOptions(cpu_experts=2),
        LlamaCppOptions(tensor_split=(1,)),
    ):
        assert fitted(mixture, 1000, options) is None
    found = fitted(mixture, 1000, msgspec.structs.replace(AUTO, context_length=512))
    assert changed(found)["context_length"] == 512


def test_the_context_is_shortened_to_its_floor_and_no_further(mixture: ModelFiles) -> None:
    """Where neither the card nor main memory has more."""
    least = fitted(mixture, 0)
    assert least is not None
    short = msgspec.structs.replace(AUTO, context_length=8192)
    size = estimate(mixture, short).total
    assert fitted(mixture, 0, main=size * 9 // 10) is None, "nothing fits"
    found = fitted(mixture, 0, main=size * 12 // 10)
    assert changed(found)["context_length"] == 8192
    assert found is not None
    assert "8,192 tokens of context in place of 32,768" in found.note
    floor = msgspec.structs.replace(AUTO, context_floor=16_384)
    assert fitted(mixture, 0, floor, main=size * 12 // 10) is None


def test_a_pool_is_taken_where_a_part_for_each_request_is_too_much(mixture: ModelFiles) -> None:
    """Of a short context, sixteen of which take more than a long one's pool."""
    many = LlamaCppOptions(context_length=512, max_concurrent=16)
    pool = msgspec.structs.replace(many, cache_tokens=512)
    main = estimate(mixture, pool).total * 21 // 20
    assert main < estimate(mixture, many).total
    found = fitted(mixture, 0, many, main=main)
    assert changed(found, many).get("cache_tokens") == 512
    assert found is not None
    assert found.need.total <= main
    assert "a cache of one context for all requests" in found.note


def test_a_smaller_cache_is_taken_where_it_is_allowed(mixture: ModelFiles) -> None:
    size = estimate(mixture, AUTO).total
    allowed = msgspec.structs.replace(AUTO, cache_floor="q8_0", context_floor=32_768)
    found = fitted(mixture, 0, allowed, main=size * 9 // 10)
    assert found is not None
    assert isinstance(found.options, LlamaCppOptions)
    assert (found.options.cache_type_k, found.options.cache_type_v) == ("q8_0", "q8_0")
    assert "cache q8_0 in place of f16" in found.note
    strict = msgspec.structs.replace(AUTO, context_floor=32_768)
    assert fitted(mixture, 0, strict, main=size * 9 // 10) is None


def test_several_cards_are_told_how_many_layers_each_has(mixture: ModelFiles) -> None:
    room = Room(free={"card:0": whole(mixture) // 3, "card:1": whole(mixture) // 3, "cpu": PLENTY})
    found = fit_on(mixture, SHORT, ["card:0", "card:1"], room)
    assert found is not None
    assert isinstance(found.options, LlamaCppOptions)
    assert sum(found.options.tensor_split) == found.options.gpu_layers == 7
    assert found.placement.keys() == {"card:0", "card:1", "cpu"}


def test_experts_that_were_left_by_number_are_counted_in_main_memory(mixture: ModelFiles) -> None:
    (place,) = spread(mixture, LlamaCppOptions(cpu_experts=3), CARD)
    weights = mixture.weights
    assert weights is not None
    away = 3 * weights.layers[0].experts
    assert place["cpu"] == pytest.approx(away / mixture.size_bytes)
