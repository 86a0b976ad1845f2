"""What is read from llama.cpp's log of a load."""

import pytest

pytest.importorskip("backends.engines.llamacpp.library")

from backends.engines.llamacpp.load_log import buffers_in, counted, layers_in

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


def test_a_mapping_counts_what_is_used_of_it() -> None:
    log = [
        "load_tensors:          AMX model buffer size =    16.00 MiB",
        "load_tensors:   CPU_Mapped model buffer size =    15.00 MiB",
        "llama_kv_cache:        CPU KV buffer size =     8.00 MiB",
    ]
    memory = counted(log, weights=20 << 20, projector=1 << 20)
    assert memory is not None
    assert (memory.weights, memory.cache) == (21 << 20, 8 << 20)
    memory = counted(log[1:], weights=10 << 20, projector=0)  # what else uses it we don't know
    assert memory is not None
    assert memory.weights == 15 << 20
