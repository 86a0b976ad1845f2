"""What is read from llama.cpp's log of a load."""

import pytest

import bundled
from backends.contract import catalog
from backends.contract.errors import LoadFailed
from backends.engines.llamacpp import loading
from backends.engines.llamacpp.load_log import buffers_in, layers_in
from backends.engines.llamacpp.loading import warm_up
from config.engines import LlamaCppOptions

# As llama.cpp writes it: two cards, and what didn't fit on them in main memory.
TWO_CARDS = """
load_tensors: layer   0 assigned to device CPU, is_swa = 0
load_tensors: layer   1 assigned to device CUDA0, is_swa = 0
load_tensors: layer   2 assigned to device CUDA0, is_swa = 1
load_tensors: layer   3 assigned to device CUDA1, is_swa = 0
load_tensors: offloading output layer to GPU
load_tensors: offloaded 3/4 layers to GPU
load_tensors:        CUDA0 model buffer size =   224.75 MiB
load_tensors:   CPU_Mapped model buffer size =    16.00 MiB
llama_kv_cache:      CUDA0 KV buffer size =     8.00 MiB
llama_kv_cache:      CUDA0 KV buffer size =     2.50 MiB
sched_reserve:   CUDA_Host compute buffer size =     1.00 MiB
"""


def test_layers_are_counted_on_each_device() -> None:
    assert layers_in(TWO_CARDS.splitlines()) == {"CPU": 1, "CUDA0": 2, "CUDA1": 1}
    assert layers_in(["load_tensors: layer   0 assigned to device Metal, is_swa = 0"]) == {
        "Metal": 1
    }
    assert layers_in([]) == {}


def test_buffers_are_called_as_llama_cpp_calls_them() -> None:
    """A cache with windows has two of one name."""
    mib = 1 << 20
    assert buffers_in(TWO_CARDS.splitlines()) == {
        "CUDA0 model": 224.75 * mib,
        "CPU_Mapped model": 16 * mib,
        "CUDA0 KV": 10.5 * mib,
        "CUDA_Host compute": mib,
    }
    assert buffers_in([]) == {}


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
