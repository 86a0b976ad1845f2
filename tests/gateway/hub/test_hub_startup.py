"""Models named by their place on a hub are folders before the server starts."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import bundled
from config.errors import ConfigError
from config.settings import Config, HubConfig, ModelConfig
from gateway.hub.hub import provided
from tests.gateway.hub.standin import StandIn, standin

pytestmark = pytest.mark.anyio

HERE = ModelConfig(name="here", path=str(bundled.GGUF))
FILES = {path.name: path.read_bytes() for path in bundled.SAFETENSORS.iterdir() if path.is_file()}
QUANTIZED = {
    "model-Q4_K_M.gguf": bundled.GGUF.read_bytes(),
    "model-Q8_0.gguf": b"large",
    "mmproj-F16.gguf": b"eyes",
    "mmproj-F32.gguf": b"eyes",
}


@pytest.fixture
async def stand() -> AsyncIterator[StandIn]:
    async with standin(dict(FILES)) as running:
        yield running


def config(stand: StandIn | None, folder: Path, *models: ModelConfig, **more: Any) -> Config:
    endpoint = stand.url if stand else "http://127.0.0.1:9"
    hub = HubConfig(endpoint=endpoint, folder=str(folder / "models"), cache=str(folder / "cache"))
    return Config(hub=hub, models=models, **more)


async def path_of(settings: Config) -> Path:
    [model] = (await provided(settings)).models
    return Path(model.path)


async def test_a_model_is_downloaded_once_and_answers_to_its_id(
    stand: StandIn, tmp_path: Path
) -> None:
    settings = config(stand, tmp_path, HERE, ModelConfig(name="tiny", path="hf:org/small"))
    here, tiny = (await provided(settings)).models
    assert here == HERE
    assert Path(tiny.path) == tmp_path / "models" / "small"
    assert tiny.aliases == ("org/small",)
    assert (Path(tiny.path) / "config.json").read_bytes() == FILES["config.json"]
    away = config(None, tmp_path, HERE, ModelConfig(name="tiny", path="hf:org/small"))
    assert (await provided(away)).models[1] == tiny


async def test_of_a_gguf_repository_one_quantization_and_its_projector_come(
    tmp_path: Path,
) -> None:
    async with standin(dict(QUANTIZED)) as stand:
        model = ModelConfig(name="org/small", path="hf:org/small:Q4_K_M")
        path = await path_of(config(stand, tmp_path, model))
    assert path == tmp_path / "models" / "small-Q4_K_M"
    assert {file.name for file in path.glob("*.gguf")} == {"model-Q4_K_M.gguf", "mmproj-F16.gguf"}


async def test_one_quantization_is_chosen_once_and_answers_to_both_names(tmp_path: Path) -> None:
    async with standin(dict(QUANTIZED)) as stand:
        model = ModelConfig(name="org/small", path="hf:org/small")
        [first] = (await provided(config(stand, tmp_path, model))).models
    assert Path(first.path) == tmp_path / "models" / "small-Q4_K_M"
    assert first.aliases == ("org/small:Q4_K_M",)
    [again] = (await provided(config(None, tmp_path, model))).models
    assert again == first


@pytest.mark.parametrize("whole", [True, False])
async def test_the_local_cache_is_used_where_it_holds_the_whole_model(
    whole: bool, stand: StandIn, tmp_path: Path
) -> None:
    root = tmp_path / "cache" / "models--org--small"
    snapshot = root / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("abc\n")
    for name, data in FILES.items():
        if whole or not name.endswith(".safetensors"):
            (snapshot / name).write_bytes(data)
    path = await path_of(config(stand, tmp_path, ModelConfig(name="tiny", path="hf:org/small")))
    assert path == (snapshot if whole else tmp_path / "models" / "small")
    assert bool(stand.asked) is not whole


@pytest.mark.parametrize("path", ["hf:org/absent", "hf:org", "hf:../..", "hf:a/b/c"])
async def test_a_model_that_cannot_be_had_is_named(
    path: str, stand: StandIn, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"model 'lost': \$\.path:"):
        await provided(config(stand, tmp_path, ModelConfig(name="lost", path=path)))
