"""What makes a kept beginning another model's: its files, options and engine; and what does not."""

import os
import shutil
from pathlib import Path

import msgspec
import pytest

import bundled
from backends.contract import catalog
from backends.contract.identity import BEGINNING, SAMPLE, identity
from backends.contract.protocol import ModelInfo
from config.engines import LlamaCppOptions

INFO = ModelInfo(
    backend="llamacpp",
    format="gguf",
    architecture="llama",
    context_length=100,
    max_concurrent=1,
    vocab_size=257,
    size_bytes=0,
    build="1 AVX2",
)
OPTIONS = LlamaCppOptions()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copy(bundled.GGUF, tmp_path / "model.gguf"))


def of(model: Path, options: LlamaCppOptions = OPTIONS, info: ModelInfo = INFO) -> str:
    files = catalog.recognise(model)
    assert files is not None
    return identity(files, options, info)


def changed(path: Path, place: int) -> None:
    """One bit; and the file says that it is as old as before."""
    there, data = path.stat(), bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(there.st_atime_ns, there.st_mtime_ns))


def test_the_same_model_under_another_name_is_the_same(model: Path) -> None:
    known = of(model)
    assert of(model.rename(model.with_name("other.gguf"))) == known


@pytest.mark.parametrize("place", [BEGINNING // 2, BEGINNING, BEGINNING + SAMPLE - 1])
def test_other_weights_are_another_model(model: Path, place: int) -> None:
    known = of(model)
    changed(model, place)
    assert of(model) != known


def test_a_file_that_was_written_again_is_another_model(model: Path) -> None:
    known = of(model)
    os.utime(model, ns=(0, 0))
    assert of(model) != known


@pytest.mark.parametrize(
    "options",
    [{"cache_type_k": "q8_0"}, {"rope_freq_base": 1.0}, {"flash_attention": "off"}],
)
def test_other_options_make_other_cells(model: Path, options: dict[str, object]) -> None:
    assert of(model, msgspec.convert(options, LlamaCppOptions)) != of(model)


@pytest.mark.parametrize("options", [{"threads": 1}, {"mmap": False}, {"host": "worker"}])
def test_what_changes_no_number_changes_nothing(model: Path, options: dict[str, object]) -> None:
    assert of(model, msgspec.convert(options, LlamaCppOptions)) == of(model)


@pytest.mark.parametrize("change", [{"build": "2 AVX2"}, {"context_length": 99}])
def test_another_engine_makes_other_cells(model: Path, change: dict[str, object]) -> None:
    assert of(model, info=msgspec.structs.replace(INFO, **change)) != of(model)


def test_an_adapter_counts_by_what_is_in_it(model: Path) -> None:
    adapter = model.with_name("lora.gguf")
    adapter.write_bytes(b"one" * 9_000)
    options = msgspec.structs.replace(OPTIONS, adapters={"a": str(adapter)})
    known = of(model, options)
    changed(adapter, 100)
    assert of(model, options) != known
