"""On which devices a model with some options will lie, as each backend's files module says."""

from pathlib import Path

import pytest

import bundled
from backends.contract import catalog
from backends.contract.catalog import BACKENDS, Cards, ModelFiles, Placement
from backends.engines.llamacpp import files as llamacpp
from backends.engines.transformers import files as transformers
from backends.machine import ggml, prebuilt
from config.engines import (
    EngineOptions,
    ExLlamaV2Options,
    ExLlamaV3Options,
    LlamaCppOptions,
    ScriptedOptions,
    TransformersOptions,
)

ONE = {"cuda:0": 24}
TWO = {"cuda:0": 24, "cuda:1": 8}
TWELVE = {f"cuda:{number}": 24 for number in range(12)}


@pytest.mark.parametrize(
    ("options", "cards", "expected"),
    [
        (ScriptedOptions(), ONE, {"cpu": 1.0}),
        (LlamaCppOptions(), {}, {"cpu": 1.0}),
        (LlamaCppOptions(gpu_layers=0), ONE, {"cpu": 1.0}),
        (LlamaCppOptions(), ONE, {"cuda:0": 1.0}),
        (LlamaCppOptions(), TWO, {"cuda:0": 1.0}),
        (LlamaCppOptions(main_gpu=1), TWO, {"cuda:1": 1.0}),
        (LlamaCppOptions(main_gpu=10), TWELVE, {"cuda:10": 1.0}),
        (LlamaCppOptions(tensor_split=(1, 1)), TWO, {"cuda:0": 0.5, "cuda:1": 0.5}),
        (LlamaCppOptions(tensor_split=(1, 1), main_gpu=1), TWO, {"cuda:0": 0.5, "cuda:1": 0.5}),
        (LlamaCppOptions(tensor_split=(0, 0)), TWO, {"cuda:0": 1.0}),
        (LlamaCppOptions(tensor_split=(0, 1)), TWO, {"cuda:1": 1.0}),
        (LlamaCppOptions(tensor_split=(1, 1, 2)), TWO, {"cuda:0": 0.5, "cuda:1": 0.5}),
        (TransformersOptions(device="cpu"), ONE, {"cpu": 1.0}),
        (TransformersOptions(device="cuda:1"), TWO, {"cuda:1": 1.0}),
        (TransformersOptions(), TWELVE, {"cuda:0": 1.0}),
        (TransformersOptions(), {}, {"cpu": 1.0}),
        (ExLlamaV2Options(), TWO, {"cuda:0": 1.0}),
        (ExLlamaV2Options(gpu_split=(20, 20)), TWO, {"cuda:0": 0.5, "cuda:1": 0.5}),
        (ExLlamaV3Options(tensor_parallel=True), TWO, {"cuda:0": 0.5, "cuda:1": 0.5}),
        (ExLlamaV3Options(), {}, {"cpu": 1.0}),
    ],
)
def test_options_decide_where_a_model_lies(
    options: EngineOptions, cards: dict[str, int], expected: dict[str, float]
) -> None:
    assert ways(options, cards)[0] == expected


def ways(options: EngineOptions, cards: Cards, files: ModelFiles | None = None) -> list[Placement]:
    """Whichever builds are installed here."""
    if isinstance(options, LlamaCppOptions):
        return list(llamacpp.spread(files, options, cards))
    if isinstance(options, TransformersOptions):
        return list(transformers.singly(options, cards))
    backend = next(one for one in BACKENDS.values() if one.options is type(options))
    return list(backend.files.placements(files, options, cards))


HALF = {"cuda:0": 0.5, "cuda:1": 0.5}
EQUAL = {"cuda:0": 24, "cuda:1": 24}


@pytest.mark.parametrize(
    ("options", "cards", "expected"),
    [
        (LlamaCppOptions(), EQUAL, [{"cuda:0": 1.0}, {"cuda:1": 1.0}, HALF]),
        (
            LlamaCppOptions(),
            {"cuda:0": 8, "cuda:1": 24},
            [{"cuda:1": 1.0}, {"cuda:0": 1.0}, {"cuda:0": 0.25, "cuda:1": 0.75}],
        ),
        (LlamaCppOptions(main_gpu=0), EQUAL, [{"cuda:0": 1.0}]),
        (LlamaCppOptions(tensor_split=(1, 1)), EQUAL, [HALF]),
        (TransformersOptions(), EQUAL, [{"cuda:0": 1.0}, {"cuda:1": 1.0}]),
        (TransformersOptions(device="cuda:1"), EQUAL, [{"cuda:1": 1.0}]),
        (TransformersOptions(), {"vulkan:0": 24}, [{"cpu": 1.0}]),
        (TransformersOptions(), {"rocm:0": 24}, [{"rocm:0": 1.0}]),
        (TransformersOptions(device="cuda:0"), {"rocm:0": 24}, [{"rocm:0": 1.0}]),
        (ExLlamaV2Options(), EQUAL, [{"cuda:0": 1.0}, {"cuda:1": 1.0}, HALF]),
        (ExLlamaV2Options(), {"vulkan:0": 24}, [{"cpu": 1.0}]),
        (ExLlamaV3Options(gpu_split=(0, 20)), EQUAL, [{"cuda:1": 1.0}]),
    ],
)
def test_the_smallest_sets_of_cards_come_first_and_orders_leave_no_choice(
    options: EngineOptions, cards: Cards, expected: list[Placement]
) -> None:
    assert ways(options, cards) == expected


def test_twelve_cards_are_compared_in_no_time_and_all_of_them_are_among_the_sets() -> None:
    found = ways(LlamaCppOptions(), TWELVE)
    assert [len(one) for one in found] == sorted(len(one) for one in found)
    assert len(found) < 1000
    assert found[-1].keys() == TWELVE.keys()


def test_layers_that_stay_in_main_memory_are_counted_there() -> None:
    files = catalog.recognise(bundled.GGUF)
    assert files.layers == 4
    (first, *_) = ways(LlamaCppOptions(gpu_layers=2), EQUAL, files)
    assert first == {"cuda:0": pytest.approx(0.4), "cpu": pytest.approx(0.6)}
    assert ways(LlamaCppOptions(gpu_layers=99), ONE, files) == [{"cuda:0": 1.0}]


@pytest.mark.parametrize(
    ("options", "placement", "expected"),
    [
        (TransformersOptions(), {"cuda:1": 1.0}, {"device": "cuda:1"}),
        (TransformersOptions(device="cpu"), {"cpu": 1.0}, {"device": "cpu"}),
        (ExLlamaV2Options(), {"cuda:0": 1.0}, {"gpu_split": ()}),  # which is filled first anyway
        (ExLlamaV2Options(), {"cuda:1": 1.0}, {"gpu_split": (0.0, 24.0)}),
        (ExLlamaV3Options(), {"cuda:0": 0.5, "cuda:1": 0.5}, {"gpu_split": ()}),
        (ExLlamaV3Options(gpu_split=(9, 9)), {"cuda:0": 0.5, "cuda:1": 0.5}, {"gpu_split": (9, 9)}),
    ],
)
def test_a_placement_becomes_the_engines_own_order(
    options: EngineOptions, placement: Placement, expected: dict[str, object]
) -> None:
    gigabytes = {name: size << 30 for name, size in EQUAL.items()}
    backend = next(one for one in BACKENDS.values() if one.options is type(options))
    placed = backend.files.placed(options, placement, gigabytes)
    assert {name: getattr(placed, name) for name in expected} == expected


def test_every_backend_says_where_its_models_lie() -> None:
    for backend in BACKENDS.values():
        for parts in backend.files.placements(None, backend.options(), TWO):
            assert sum(parts.values()) == pytest.approx(1)


def test_a_build_for_the_cpu_puts_nothing_on_a_card() -> None:
    pytest.importorskip("backends.engines.llamacpp.library")
    from backends.engines.llamacpp.library import api

    assert ggml.offloads() == bool(api.llama_supports_gpu_offload())
    if not ggml.offloads():
        assert llamacpp.placements(None, LlamaCppOptions(), ONE) == ({"cpu": 1.0},)


@pytest.mark.parametrize(
    ("library", "for_cards"),
    [
        ("libggml-cpu.so.0", False),
        ("libggml-cuda.so", True),
        ("ggml-vulkan.dll", True),
        ("libggml-metal.dylib", True),
    ],
)
def test_a_build_for_cards_has_their_library(library: str, for_cards: bool, tmp_path: Path) -> None:
    for name in ("libggml-base.so", "libllama.so", library):
        (tmp_path / name).touch()
    assert ggml.built_for_cards(tmp_path) == for_cards


@pytest.mark.parametrize(("kind", "for_cards"), [("cpu", False), ("cuda", True), ("vk", True)])
def test_the_prebuilt_library_exports_what_it_was_built_for(
    kind: str, for_cards: bool, tmp_path: Path
) -> None:
    names = f"\0ggml_backend_cpu_init\0ggml_backend_{kind}_init\0"
    (tmp_path / prebuilt.LIBRARY).write_text(names)
    assert ggml.built_for_cards(tmp_path) == for_cards
