"""The hub's cache as huggingface_hub makes it: which models lie in it, and what they are called."""

import os
from pathlib import Path

import pytest

import bundled
from backends.contract.catalog import ModelFiles
from gateway.hub.cache import CachedModels, default_root, repositories
from gateway.registry.folders import Unusable
from tests.gateway.hub.standin import COMMIT, into_cache, standin

pytestmark = pytest.mark.anyio

GGUF = bundled.GGUF.read_bytes()
FOLDER = {path.name: path.read_bytes() for path in bundled.SAFETENSORS.iterdir() if path.is_file()}


async def downloaded(cache: Path, files: dict[str, bytes]) -> Path:
    async with standin(dict(files)) as hub:
        return await into_cache(hub, cache)


def usable(models: CachedModels) -> dict[tuple[str, ...], ModelFiles]:
    return {names: one for names, one in models.scanned().items() if isinstance(one, ModelFiles)}


def unusable(models: CachedModels) -> list[Unusable]:
    return [one for one in models.scanned().values() if isinstance(one, Unusable)]


def named(models: CachedModels) -> set[tuple[str, ...]]:
    return set(usable(models))


async def test_a_folder_is_one_model_and_is_read_once(tmp_path: Path) -> None:
    snapshot = await downloaded(tmp_path, FOLDER)
    models = CachedModels(tmp_path)
    [(names, files)] = usable(models).items()
    assert names == ("org/small",)
    assert (files.path, files.format) == (snapshot, "safetensors")
    assert usable(models)[names] is files
    assert unusable(models) == []
    size = sum(map(len, FOLDER.values()))
    [one] = repositories(tmp_path)
    assert (one.repo_id, one.repo_type, one.size_on_disk) == ("org/small", "model", size)


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["small.gguf"], {("org/small", "org/small:small")}),
        (["small-Q8_0.gguf"], {("org/small", "org/small:Q8_0")}),
        (
            ["small-Q4_K_M.gguf", "deep/small.UD-IQ2_XXS.gguf"],
            {("org/small:Q4_K_M",), ("org/small:UD-IQ2_XXS",)},
        ),
        (
            ["one-Q8_0.gguf", "deep/one-Q8_0.gguf", "two-f16.gguf"],
            {("org/small:one-Q8_0",), ("org/small:deep/one-Q8_0",), ("org/small:f16",)},
        ),
        (["small-Q8_0-00001-of-00001.gguf"], {("org/small", "org/small:Q8_0")}),
        (["small.gguf", "mmproj-f16.txt"], {("org/small", "org/small:small")}),
        (["notes.txt"], set()),
    ],
)
async def test_gguf_files_are_called_by_what_tells_them_apart(
    files: list[str], names: set[tuple[str, ...]], tmp_path: Path
) -> None:
    await downloaded(tmp_path, dict.fromkeys(files, GGUF))
    assert named(CachedModels(tmp_path)) == names


async def test_what_is_broken_is_reported_and_may_become_whole(tmp_path: Path) -> None:
    models = CachedModels(tmp_path)
    assert named(models) == set()  # there is no cache yet
    snapshot = await downloaded(tmp_path, {"small.gguf": GGUF[:-1000]})
    assert named(models) == set()
    [broken] = unusable(models)
    assert broken.name == "org/small:small"
    assert "cut off" in broken.reason
    (snapshot / "small.gguf").resolve().write_bytes(GGUF)
    assert named(models) == {("org/small", "org/small:small")}
    assert unusable(models) == []


async def test_links_may_lead_into_the_cache_alone(tmp_path: Path) -> None:
    files, outside = tmp_path / "files", tmp_path / "outside.gguf"
    snapshot = await downloaded(files, {"small.gguf": GGUF})
    assert (snapshot / "small.gguf").is_symlink()
    outside.write_bytes(GGUF)
    (snapshot / "other.gguf").symlink_to(outside)
    assert named(CachedModels(files)) == {("org/small", "org/small:small")}
    folder = tmp_path / "folder"
    snapshot = await downloaded(folder, FOLDER)
    (snapshot / "more.safetensors").symlink_to(outside)
    models = CachedModels(folder)
    assert named(models) == set()
    [refused] = unusable(models)
    assert (refused.name, refused.path) == ("org/small", snapshot)
    assert "leads out of the hub's cache" in refused.reason


async def test_the_main_branch_counts_else_the_newest_commit(tmp_path: Path) -> None:
    main = await downloaded(tmp_path, {"small.gguf": GGUF})
    other = main.with_name("b" * 40)
    other.mkdir()
    (other / "newer.gguf").write_bytes(GGUF)
    os.utime(other / "newer.gguf", (4e9, 4e9))
    assert [files.path.parent.name for files in _files(tmp_path)] == [COMMIT]
    (tmp_path / "models--org--small" / "refs" / "main").unlink()
    assert [files.path.parent.name for files in _files(tmp_path)] == ["b" * 40]


def _files(cache: Path) -> list[ModelFiles]:
    return list(usable(CachedModels(cache)).values())


@pytest.mark.parametrize(
    ("environment", "below_home"),
    [
        ({}, ".cache/huggingface/hub"),
        ({"HF_HUB_CACHE": "", "HF_HOME": "", "XDG_CACHE_HOME": ""}, ".cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "~/c"}, "c/huggingface/hub"),
        ({"HF_HOME": "~/hf", "XDG_CACHE_HOME": "~/c"}, "hf/hub"),
        ({"HF_HUB_CACHE": "$HOME/hub", "HF_HOME": "~/hf"}, "hub"),
        ({"HF_HUB_CACHE": "", "HUGGINGFACE_HUB_CACHE": "~/old"}, "old"),
    ],
)
async def test_the_cache_is_where_the_variables_say_and_an_empty_one_is_none(
    environment: dict[str, str], below_home: str
) -> None:
    assert default_root(environment) == Path.home() / below_home
