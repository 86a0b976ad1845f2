"""Which projector makes which model see, and what options say about it."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

import bundled
from backends.contract import catalog
from backends.contract.catalog import ModelFiles
from backends.contract.errors import LoadFailed
from config.engines import LlamaCppOptions
from tests.backends.projectors import write_projector

FILES = catalog.BACKENDS["llamacpp"].files
TEXT, SIGHT = ("text",), ("text", "image")


def lay_out(folder: Path, models: Sequence[str], projectors: Sequence[str]) -> None:
    for name in models:
        shutil.copy(bundled.GGUF, folder / name)
    for name in projectors:
        write_projector(folder / name)


def recognised(path: Path) -> ModelFiles:
    files = FILES.recognise(path)
    assert files is not None
    return files


def test_a_projector_alone_is_no_model(tmp_path: Path) -> None:
    assert FILES.recognise(write_projector(tmp_path / "mmproj-model.gguf")) is None


@pytest.mark.parametrize(
    "projector", ["mmproj-F16.gguf", "mmproj-model-f16.gguf", "Other-mmproj.gguf"]
)
def test_the_only_model_of_a_folder_gets_the_projector(tmp_path: Path, projector: str) -> None:
    lay_out(tmp_path, ["model.gguf"], [projector])
    for path in (tmp_path, tmp_path / "model.gguf"):
        files = recognised(path)
        assert files.path == tmp_path / "model.gguf"
        assert files.modalities == SIGHT
        assert files.projector == tmp_path / projector


@pytest.mark.parametrize(
    ("model", "projector"),
    [
        ("Qwen2.5-VL-7B-Instruct-Q4_K_M.gguf", "mmproj-Qwen2.5-VL-7B-Instruct-f16.gguf"),
        ("gemma-3-4b-it-Q8_0.gguf", "gemma-3-4b-it.mmproj.gguf"),
        ("gemma-3-4b-it-Q8_0.gguf", "gemma-3-4b-it-BF16-mmproj.gguf"),
    ],
)
def test_among_several_models_the_name_decides(tmp_path: Path, model: str, projector: str) -> None:
    lay_out(tmp_path, [model, "other.gguf"], [projector])
    assert recognised(tmp_path / model).projector == tmp_path / projector
    assert recognised(tmp_path / "other.gguf").modalities == TEXT


def test_among_several_models_a_nameless_projector_is_nobody_s(tmp_path: Path) -> None:
    lay_out(tmp_path, ["one.gguf", "two.gguf"], ["mmproj-F16.gguf"])
    assert recognised(tmp_path / "one.gguf").projector is None


def test_of_several_precisions_f16_is_taken(tmp_path: Path) -> None:
    lay_out(tmp_path, ["model.gguf"], ["mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf"])
    assert recognised(tmp_path).projector == tmp_path / "mmproj-F16.gguf"


def test_what_only_hears_or_is_broken_is_passed_over(tmp_path: Path) -> None:
    lay_out(tmp_path, ["model.gguf"], [])
    write_projector(tmp_path / "mmproj-audio.gguf", sees=False)
    (tmp_path / "mmproj-half.gguf").write_bytes(b"GGUF\x03")
    assert recognised(tmp_path).modalities == TEXT


def test_options_name_a_projector_or_want_none(tmp_path: Path) -> None:
    lay_out(tmp_path, ["model.gguf"], ["mmproj-F16.gguf"])
    (tmp_path / "eyes").mkdir()
    elsewhere = write_projector(tmp_path / "eyes" / "sharp.gguf")
    files = recognised(tmp_path)
    blind = FILES.fitted(files, LlamaCppOptions(vision=False))
    assert (blind.projector, blind.modalities) == (None, TEXT)
    named = FILES.fitted(blind, LlamaCppOptions(mmproj=str(elsewhere)))
    assert (named.projector, named.modalities) == (elsewhere, SIGHT)
    both = LlamaCppOptions(vision=False, mmproj=str(elsewhere))
    assert FILES.fitted(files, both).projector is None


def test_the_projector_s_memory_is_counted(tmp_path: Path) -> None:
    lay_out(tmp_path, ["model.gguf"], ["mmproj-F16.gguf"])
    files = recognised(tmp_path)
    sight = FILES.estimate(files, LlamaCppOptions())
    blind = FILES.estimate(files, LlamaCppOptions(vision=False))
    assert sight.weights - blind.weights == (tmp_path / "mmproj-F16.gguf").stat().st_size


@pytest.mark.parametrize("name", ["missing.gguf", "model.gguf", "notes.txt"])
def test_a_named_file_that_is_no_projector_is_refused_by_name(tmp_path: Path, name: str) -> None:
    lay_out(tmp_path, ["model.gguf"], [])
    (tmp_path / "notes.txt").write_text("nothing")
    options = LlamaCppOptions(mmproj=str(tmp_path / name))
    with pytest.raises(LoadFailed, match=f"mmproj: .*{name}"):
        FILES.fitted(recognised(tmp_path), options)


@pytest.mark.anyio
async def test_a_projector_that_cannot_be_loaded_says_so_and_how_to_do_without(
    tmp_path: Path,
) -> None:
    lay_out(tmp_path, ["model.gguf"], ["mmproj-F16.gguf"])
    files, load = recognised(tmp_path), catalog.BACKENDS["llamacpp"].container.load
    with pytest.raises(LoadFailed, match=r"mmproj-F16\.gguf can't be loaded: .*vision: false"):
        await load(files, LlamaCppOptions(), lambda _: None)
    container = await load(files, LlamaCppOptions(vision=False), lambda _: None)
    assert container.info.modalities == TEXT
    await container.aclose()
