"""A model's files as a node has them."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from backends.contract.catalog import ModelFiles
from backends.places.cluster.nodes import ClusterFailed, ClusterNodes, relocated, wanted


def files(path: Path, *parts: Path, beside: tuple[Path, ...] = ()) -> ModelFiles:
    return ModelFiles(
        path=path,
        backend="scripted",
        format="script",
        architecture="none",
        size_bytes=1,
        context_length=1,
        cache_bytes_per_token=0,
        parts=parts,
        beside=beside,
    )


def test_a_file_and_what_lies_beside_it_are_wanted_and_found_where_they_were_brought(
    tmp_path: Path,
) -> None:
    model, beside, gone = (tmp_path / name for name in ("a.gguf", "a.json", "b.json"))
    for path in (model, beside):
        path.touch()
    whole = files(model, model, beside=(beside, gone))
    assert wanted(whole) == (model, beside)

    there = relocated(whole, {model: Path("/x/a.gguf"), beside: Path("/x/a.json")})
    assert there.path == Path("/x/a.gguf")
    assert there.parts == (Path("/x/a.gguf"),)
    assert there.beside == (Path("/x/a.json"), gone)


def test_a_folder_is_where_its_files_were_brought(tmp_path: Path) -> None:
    inner = tmp_path / "model" / "deep" / "weights"
    inner.parent.mkdir(parents=True)
    inner.touch()
    whole = files(tmp_path / "model", inner)
    assert relocated(whole, {inner: Path("/x/copy/deep/weights")}).path == Path("/x/copy")


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_it_is_said_how_that_is_installed() -> None:
    with pytest.raises(ClusterFailed, match=r"package `ray` is missing.*cluster"):
        ClusterNodes("auto")
