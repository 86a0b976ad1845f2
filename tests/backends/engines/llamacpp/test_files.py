"""GGUF headers: what is read from a good one, and that a broken one is an error in words, never a
crash.
"""

import functools
import random
import shutil
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import bundled
from backends.contract.catalog import ModelFiles
from backends.contract.errors import BackendError, LoadFailed
from backends.engines.llamacpp import libraries
from backends.engines.llamacpp.files import estimate
from backends.engines.llamacpp.layout import SMALL_CACHE, cache_layout
from backends.engines.llamacpp.recognition import parts, recognise
from backends.machine import ik
from config.engines import LlamaCppOptions
from tests.backends import gguf_raw


def test_the_bundled_model_is_known_from_its_header() -> None:
    files = recognise(bundled.GGUF)
    assert files is not None
    assert (files.backend, files.format, files.architecture) == ("llamacpp", "gguf", "llama")
    assert files.context_length == 2048
    assert files.cache_bytes_per_token == 4 * 2 * 128 * 2  # layers, keys and values, width, bytes
    assert "enable_thinking" in (files.chat_template or "")


def test_other_files_are_nobody_s(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("GGUF")
    assert recognise(tmp_path / "notes.txt") is None
    assert recognise(tmp_path) is None


@pytest.mark.parametrize("name", ["Model-Q8_0.GGUF", "model", "Llama-3.2-1B", "sha256-0c5f"])
def test_a_file_may_be_spelled_in_capitals_or_have_no_suffix(name: str, tmp_path: Path) -> None:
    shutil.copy(bundled.GGUF, tmp_path / name)
    assert recognise(tmp_path / name) is not None
    (tmp_path / "._model.gguf").write_bytes(b"\0\5\x16\7Mac OS X")  # beside it on a foreign disk
    assert recognise(tmp_path / "._model.gguf") is None
    if name.endswith("GGUF"):
        folder = recognise(tmp_path)
        assert folder is not None
        assert folder.path.name == name


@pytest.mark.parametrize(
    "data", [b"", b"GG", b"GGUF", b"GGML" + bytes(40), b"GGUF\x09\0\0\0" + bytes(40)]
)
def test_what_is_no_gguf_is_refused_with_the_reason(data: bytes, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(data)
    with pytest.raises(LoadFailed, match=r"broken\.gguf is not a usable GGUF file"):
        recognise(broken)


def test_a_cut_off_file_says_how_much_is_missing(tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(bundled.GGUF.read_bytes()[:-1000])
    with pytest.raises(LoadFailed, match="cut off"):
        recognise(cut)


def test_damaged_headers_never_crash(tmp_path: Path) -> None:
    whole, rng = bundled.GGUF.read_bytes(), random.Random(0)
    damaged = tmp_path / "damaged.gguf"
    for _ in range(200):
        data = bytearray(whole[:40_000])
        for _ in range(8):
            data[rng.randrange(4, 2_000)] = rng.randrange(256)
        damaged.write_bytes(bytes(data) + whole[40_000:])
        with suppress(BackendError):
            recognise(damaged)


def test_split_files_count_as_one_and_must_be_complete(tmp_path: Path) -> None:
    first = tmp_path / "big-00001-of-00002.gguf"
    shutil.copy(bundled.GGUF, first)
    assert [part.name for part in parts(first)] == [first.name, "big-00002-of-00002.gguf"]
    with pytest.raises(LoadFailed, match=r"lacks big-00002-of-00002\.gguf"):
        recognise(first)
    shutil.copy(bundled.GGUF, tmp_path / "big-00002-of-00002.gguf")
    assert recognise(tmp_path / "big-00002-of-00002.gguf") is None, "the first stands for all"
    files = recognise(first)
    assert files is not None
    assert files.size_bytes == 2 * bundled.GGUF.stat().st_size


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


@pytest.mark.parametrize("name", HEADERS)
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


@pytest.mark.parametrize("kind", [144, 212])
def test_a_quantization_that_llamacpp_lacks_is_refused_before_a_load(
    tmp_path: Path, kind: int
) -> None:
    """IQ4_KS and Q4_K_R4, ik_llama.cpp's."""
    file = gguf_raw.read(bundled.GGUF).retyped("blk.0.attn_q.weight", kind)
    path = gguf_raw.write(file, tmp_path / "model.gguf")
    if ik.missing():
        with pytest.raises(LoadFailed, match=r"ik_llama\.cpp alone reads .*: .*install"):
            recognise(path)
    else:
        found = recognise(path)
        assert found is not None
        assert libraries.uses_ik(found, LlamaCppOptions(max_concurrent=16))
