"""A projector beside a GGUF changes nothing yet, and naming one is refused instead of ignored."""

import shutil
from pathlib import Path

import gguf
import pytest

import bundled
from backends import catalog
from backends.errors import LoadFailed
from config.engines import LlamaCppOptions


def write_projector(path: Path) -> Path:
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_projector_is_no_model_and_the_one_beside_it_reads_text(tmp_path: Path) -> None:
    shutil.copy(bundled.GGUF, tmp_path / "model.gguf")
    projector = write_projector(tmp_path / "mmproj-model.gguf")
    backend = catalog.BACKENDS["llamacpp"].files
    assert backend.recognise(projector) is None
    files = backend.recognise(tmp_path)
    assert files is not None
    assert files.path == tmp_path / "model.gguf"
    assert files.modalities == ("text",)


@pytest.mark.anyio
async def test_naming_a_projector_is_refused() -> None:
    files = catalog.recognise(bundled.GGUF)
    options = LlamaCppOptions(mmproj="mmproj-model.gguf")
    with pytest.raises(LoadFailed, match="mmproj"):
        await catalog.BACKENDS["llamacpp"].container.load(files, options, lambda _: None)
