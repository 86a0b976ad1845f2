"""GGUF headers: what is read from a good one, and that a broken one is an error in words, never a
crash.
"""

import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

import bundled
from backends.contract.errors import BackendError, LoadFailed
from backends.engines.llamacpp import libraries
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
