"""A load: what it tells of itself, what it refuses, its first pass."""

import pytest

import bundled
from backends.contract import catalog
from backends.contract.errors import LoadFailed
from backends.engines.llamacpp import loading
from backends.engines.llamacpp.loading import warm_up
from config.engines import LlamaCppOptions


def test_a_load_tells_where_its_layers_lie() -> None:
    loaded = loading.load(
        catalog.recognise(bundled.GGUF), LlamaCppOptions(gpu_layers=0), lambda _: True
    )
    try:
        assert loaded.info.layers == {"cpu": 5}  # four, and the output
        assert {"CPU KV", "CPU compute"} <= loaded.info.buffers.keys()
    finally:
        loaded.free()


def test_small_values_without_flash_attention_are_refused_with_the_reason() -> None:
    options = LlamaCppOptions(gpu_layers=0, flash_attention="off", cache_type_v="q8_0")
    with pytest.raises(LoadFailed, match=r"^cache_type_v q8_0 needs flash attention"):
        loading.load(catalog.recognise(bundled.GGUF), options, lambda _: True)


def test_the_first_pass_may_take_all_cells() -> None:
    """Of a context that is no longer than a micro batch; then the cells are free again."""
    options = LlamaCppOptions(gpu_layers=0, context_length=512, max_concurrent=1, cache_tokens=512)
    loaded = loading.load(catalog.recognise(bundled.GGUF), options, lambda _: True)
    try:
        warm_up(loaded.context, at_once=loaded.layout.cells)
        warm_up(loaded.context, at_once=loaded.layout.cells)
    finally:
        loaded.free()
