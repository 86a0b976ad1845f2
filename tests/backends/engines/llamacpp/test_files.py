"""The memory that a model will take, by its header and options: mostly the cells of its cache."""

import functools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bundled
from backends.contract.catalog import ModelFiles
from backends.engines.llamacpp.files import estimate
from backends.engines.llamacpp.layout import SMALL_CACHE, cache_layout
from backends.engines.llamacpp.recognition import recognise
from config.engines import LlamaCppOptions
from tests.backends.pairs import quick


def test_small_caches_are_split_and_large_ones_shared() -> None:
    files = recognise(bundled.GGUF)
    assert files is not None
    small = cache_layout(files, LlamaCppOptions(max_concurrent=4, context_length=512))
    assert (small.cells, small.slots, small.split) == (2048, 4, True)
    larger = cache_layout(files, LlamaCppOptions(max_concurrent=4, context_length=16_384))
    least = SMALL_CACHE // files.cache_bytes_per_token
    assert (larger.cells, larger.split) == (least, False), "as many as fit into a small cache"
    pool = cache_layout(
        files, LlamaCppOptions(max_concurrent=4, context_length=512, cache_tokens=1024)
    )
    assert (pool.cells, pool.split) == (1024, False)
    need = estimate(files, LlamaCppOptions(max_concurrent=4, context_length=512))
    assert need.cache == 2048 * files.cache_bytes_per_token


def test_each_request_has_its_part_where_there_are_cells_for_that() -> None:
    """As llama-server does with the same numbers; a token then looks at its own cells alone."""
    files = recognise(bundled.GGUF)
    assert files is not None
    large = msgspec.structs.replace(files, cache_bytes_per_token=300_000)  # 300 MB for a thousand
    many = LlamaCppOptions(max_concurrent=16, context_length=1_000, cache_tokens=16_000)
    enough = cache_layout(files, many)
    assert (enough.cells, enough.slots, enough.split) == (16_000, 16, True)
    more = cache_layout(files, msgspec.structs.replace(many, cache_tokens=20_000))
    assert (more.cells, more.slots, more.split) == (20_000, 16, True), "all that was asked for"
    assert not cache_layout(files, msgspec.structs.replace(many, cache_tokens=15_999)).split
    assert not cache_layout(large, many).split, "a part is put back in one call"
    alone = cache_layout(files, msgspec.structs.replace(many, max_concurrent=1))
    assert (alone.cells, alone.slots) == (16_000, 2), "the one before is remembered"


# What headers say: bytes of a token, of those in sliding layers, the window, the words, the bytes
# of a recurrent layer's state, and how many there are.
HEADERS = {
    "SmolLM2 135M": (23_040, 0, 0, 49_152, 0, 0),
    "Qwen 2.5 0.5B": (12_288, 0, 0, 151_936, 0, 0),
    "Llama 3.1 8B": (131_072, 0, 0, 128_256, 0, 0),
    "Gemma 3 270M": (18_432, 15_360, 512, 262_144, 0, 0),
    "gpt-oss 20B": (49_152, 24_576, 128, 201_088, 0, 0),
    "LFM2 350M": (12_288, 0, 0, 65_536, 8_192, 10),
    "a toy that slides": (96, 64, 16, 257, 0, 0),
    "a toy with states": (64, 0, 0, 257, 4_096, 4),
    "states alone": (0, 0, 0, 257, 4_096, 4),
}


@functools.cache
def toy() -> ModelFiles:
    files = recognise(bundled.GGUF)
    assert files is not None
    return files


@pytest.mark.parametrize("name", quick(HEADERS, "SmolLM2 135M", "states alone"))
@given(
    lengths=st.lists(st.integers(512, 131_072), min_size=2, max_size=20),
    count=st.sampled_from([1, 4, 16, 256]),
)
def test_a_shorter_context_never_takes_more(name: str, lengths: list[int], count: int) -> None:
    cache, sliding, window, words, state, recurrent = HEADERS[name]
    files = msgspec.structs.replace(
        toy(),
        cache_bytes_per_token=cache,
        sliding_bytes_per_token=sliding,
        window=window,
        vocab_size=words,
        state_bytes=state,
        recurrent_layers=recurrent,
        positions=0,
    )
    takes = [
        estimate(files, LlamaCppOptions(context_length=length, max_concurrent=count)).total
        for length in sorted(lengths)
    ]
    assert takes == sorted(takes)


def test_a_cache_never_has_more_sequences_than_llama_cpp_takes() -> None:
    files = recognise(bundled.GGUF)
    assert files is not None
    for count in (1, 100, 200, 256):
        options = LlamaCppOptions(max_concurrent=count, cache_tokens=4096)
        assert count <= cache_layout(files, options).slots <= 256


def test_numbers_that_llama_cpp_would_take_for_others_are_refused() -> None:
    for name in ("context_length", "cache_tokens", "batch_size", "gpu_layers", "max_concurrent"):
        with pytest.raises(msgspec.ValidationError, match=name):
            msgspec.convert({name: 2**32 + 512}, LlamaCppOptions)
