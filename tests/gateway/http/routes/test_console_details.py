"""What is known of a model, and the deletion of its files; of one that can't be used, too."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

import bundled
from config.settings import HubConfig, KeyConfig
from gateway.registry.origins import HubOrigin, write_origin
from tests.gateway.http.serving import Running, config, serving

pytestmark = pytest.mark.anyio

BOSS, USER = {"x-api-key": "admin"}, {"x-api-key": "user"}
KEYS = (KeyConfig(key="admin", role="admin"), KeyConfig(key="user"))
CARD = """---
license: apache-2.0
tags:
- license: none
base_model: org/base
---
# A model
"""


def downloaded(folder: Path, name: str, data: bytes | None = None) -> Path:
    """A model as a download leaves it; `data` in place of the bundled model's."""
    where = folder / "models" / f"{name}-Q4_K_M"
    where.mkdir(parents=True)
    file = where / f"{name}-Q4_K_M.gguf"
    if data is None:
        shutil.copy(bundled.GGUF, file)
    else:
        file.write_bytes(data)
    (where / "README.md").write_text(CARD)
    names = (f"org/{name}", f"org/{name}:Q4_K_M")
    write_origin(where, HubOrigin(repository=f"org/{name}", names=names))
    return file


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    downloaded(tmp_path, "whole")
    downloaded(tmp_path, "broken", bundled.GGUF.read_bytes()[:100_000])
    settings = msgspec.structs.replace(
        config(tmp_path, keys=KEYS),
        model_dirs=(str(tmp_path / "models"),),
        hub=HubConfig(deletion=True, cached_models=False),
    )
    async with serving(settings, tmp_path) as server:
        yield server


async def detailed(running: Running, model: str, key: dict[str, str] = BOSS) -> dict[str, Any]:
    query = {"model": model}
    answer = await running.client.get("/v1/admin/models/details", params=query, headers=key)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def deleted(running: Running, model: str, key: dict[str, str] = BOSS) -> httpx.Response:
    query = {"model": model}
    return await running.client.delete("/v1/admin/models", params=query, headers=key)


async def ids(running: Running) -> set[str]:
    answer = await running.client.get("/v1/admin/models", headers=BOSS)
    return {one["id"] for one in answer.json()["models"]}


async def named(running: Running, part: str) -> str:
    """The id of the model in whose name that stands."""
    (found,) = [name for name in await ids(running) if part in name]
    return found


async def test_a_models_makers_and_its_template_are_shown(running: Running) -> None:
    name = await named(running, "whole")
    seen = await detailed(running, name)
    assert (seen["repository"], seen["download"]) == ("org/whole", "org/whole:Q4_K_M")
    assert seen["license"]
    assert seen["described"]["base_model"] == "org/base"
    assert seen["described"]["architecture"] == "llama"
    assert "<|im_start|>" in seen["template"]
    assert seen["split"]["format"]
    assert (seen["trained_context"], seen["deletable"]) == (2048, True)
    assert [file["bytes"] for file in seen["files"]] == [bundled.GGUF.stat().st_size]


async def test_a_users_key_learns_no_places(running: Running) -> None:
    seen = await detailed(running, await named(running, "whole"), USER)
    assert (seen["folder"], seen["files"], seen["deletable"]) == (None, [], False)
    assert seen["why_not"] is None
    assert seen["template"]
    assert (await deleted(running, "scripted", USER)).status_code == 403


async def test_what_cant_be_used_is_shown_and_deleted(running: Running, tmp_path: Path) -> None:
    name = await named(running, "broken")
    seen = await detailed(running, name)
    assert (seen["download"], seen["template"]) == ("org/broken:Q4_K_M", None)
    assert seen["deletable"]
    answer = await deleted(running, name)
    assert (answer.status_code, answer.json()) == (200, {"deleted": name})
    assert name not in await ids(running)
    assert not list((tmp_path / "models").rglob("broken*.gguf"))


async def test_a_model_is_deleted_with_its_files_and_no_other(
    running: Running, tmp_path: Path
) -> None:
    name = await named(running, "whole")
    assert (await deleted(running, name)).status_code == 200
    assert name not in await ids(running)
    assert not list((tmp_path / "models").rglob("whole*.gguf"))
    assert list((tmp_path / "models").rglob("broken*.gguf"))


async def test_what_lies_elsewhere_is_not_deleted(running: Running) -> None:
    seen = await detailed(running, "roundhouse-tiny")
    assert not seen["deletable"]
    assert "folder for downloads" in seen["why_not"]
    assert (await deleted(running, "roundhouse-tiny")).status_code == 403
    assert bundled.GGUF.exists()
    assert (await deleted(running, "nobody")).status_code == 404
    nobody = await running.client.get("/v1/admin/models/details?model=no", headers=BOSS)
    assert nobody.status_code == 404
