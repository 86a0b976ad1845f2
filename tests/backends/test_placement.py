"""On which devices a model with some options will lie, as each backend's files module says."""

from pathlib import Path

import pytest

from backends.catalog import BACKENDS
from backends.llamacpp import files as llamacpp
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
        (LlamaCppOptions(), TWO, {"cuda:0": 0.75, "cuda:1": 0.25}),
        (LlamaCppOptions(main_gpu=1), TWO, {"cuda:1": 1.0}),
        (LlamaCppOptions(main_gpu=10), TWELVE, {"cuda:10": 1.0}),
        (LlamaCppOptions(tensor_split=(1, 1)), TWO, {"cuda:0": 0.5, "cuda:1": 0.5}),
        (LlamaCppOptions(tensor_split=(1, 1), main_gpu=1), TWO, {"cuda:0": 0.5, "cuda:1": 0.5}),
        (LlamaCppOptions(tensor_split=(0, 0)), TWO, {"cuda:0": 0.75, "cuda:1": 0.25}),
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
    if isinstance(options, LlamaCppOptions):  # whichever build is installed here
        assert llamacpp.spread(options, cards) == expected
        return
    backend = next(one for one in BACKENDS.values() if one.options is type(options))
    assert backend.files.placement(options, cards) == expected


def test_every_backend_says_where_its_models_lie() -> None:
    for backend in BACKENDS.values():
        parts = backend.files.placement(backend.options(), ONE)
        assert sum(parts.values()) == pytest.approx(1)


def test_a_build_for_the_cpu_puts_nothing_on_a_card() -> None:
    pytest.importorskip("llama_cpp")
    from llama_cpp import llama_cpp as api

    assert llamacpp.offloads() == bool(api.llama_supports_gpu_offload())
    if not llamacpp.offloads():
        assert llamacpp.placement(LlamaCppOptions(), ONE) == {"cpu": 1.0}


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
    assert llamacpp.built_for_cards(tmp_path) == for_cards
