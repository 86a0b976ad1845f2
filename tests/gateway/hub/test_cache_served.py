"""A model in the hub's cache over HTTP: by its id as any other model."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

import bundled
from config.settings import HubConfig, KeyConfig
from tests.backends.pairs import quick
from tests.gateway.http.serving import Running, config, serving
from tests.gateway.hub.standin import into_cache, standin

pytestmark = pytest.mark.anyio

KEYS = (
    KeyConfig(key="one", models=("scripted",)),
    KeyConfig(key="cached", models=("org/small",)),
    KeyConfig(key="admin", role="admin"),
)
ONE, CACHED, ADMIN = ({"x-api-key": key.key} for key in KEYS)
SPELLINGS = ("org/small", "hf:org/small", "org/small:Q8_0", "hf:org/small:Q8_0")
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    cache = tmp_path / "cache"
    async with standin({"small-Q8_0.gguf": bundled.GGUF.read_bytes()}) as hub:
        await into_cache(hub, cache)
    known = config(tmp_path, keys=KEYS)
    downloads = HubConfig(cache=str(cache), folder=str(tmp_path / "models"), deletion=True)
    async with serving(msgspec.structs.replace(known, hub=downloads), tmp_path) as server:
        yield server


async def ids(running: Running, headers: dict[str, str]) -> list[str]:
    answer = await running.client.get("/v1/models", headers=headers)
    return [model["id"] for model in answer.json()["data"]]


async def asked(running: Running, name: str, headers: dict[str, str]) -> int:
    body = {"model": name, "messages": MESSAGES, "max_tokens": 2}
    answer = await running.client.post("/v1/chat/completions", json=body, headers=headers)
    return answer.status_code


async def test_it_is_listed_behind_the_others_and_is_not_the_default(running: Running) -> None:
    assert await ids(running, ADMIN) == ["roundhouse-tiny", "scripted", "org/small"]
    assert (await running.client.get("/v1/model", headers=ADMIN)).json()["id"] == "roundhouse-tiny"


@pytest.mark.parametrize("name", quick(SPELLINGS, "org/small"))
async def test_it_answers_to_each_of_its_names(name: str, running: Running) -> None:
    body = {"model": name, "messages": MESSAGES, "max_tokens": 2}
    answer = await running.client.post("/v1/chat/completions", json=body, headers=ADMIN)
    assert answer.json()["model"] == "org/small"
    assert (await running.client.get("/v1/model", headers=ADMIN)).json()["id"] == "org/small"
    answer = await running.client.post("/unload", json={"model": name}, headers=ADMIN)
    assert answer.status_code == 200
    assert running.registry.status("org/small").state == "unloaded"


@pytest.mark.parametrize("name", quick(SPELLINGS, "org/small"))
async def test_a_key_limited_to_it_has_it_and_another_does_not(name: str, running: Running) -> None:
    assert await asked(running, name, CACHED) == 200
    assert await ids(running, CACHED) == ["org/small"]
    assert await asked(running, name, ONE) == 404
    assert await ids(running, ONE) == ["scripted"]


async def test_it_can_be_switched_to_and_its_files_are_nobody_s_to_delete(
    running: Running,
) -> None:
    body = {"model_name": "org/small"}
    switched = await running.client.post("/v1/model/load", json=body, headers=ADMIN)
    assert switched.status_code == 200
    gone = await running.client.delete("/models?model=org/small", headers=ADMIN)
    assert gone.status_code == 403


async def test_what_comes_into_the_cache_can_be_asked_for_at_once(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    settings = msgspec.structs.replace(config(tmp_path), hub=HubConfig(cache=str(cache)))
    async with (
        standin({"small.gguf": bundled.GGUF.read_bytes()}) as hub,
        serving(settings, tmp_path) as running,
    ):
        assert await asked(running, "org/small", {}) == 404
        await into_cache(hub, cache)
        assert await asked(running, "org/small", {}) == 200


async def test_a_configuration_may_leave_the_cache_alone(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    async with standin({"small.gguf": bundled.GGUF.read_bytes()}) as hub:
        await into_cache(hub, cache)
    hub_config = HubConfig(cache=str(cache), cached_models=False)
    settings = msgspec.structs.replace(config(tmp_path), hub=hub_config)
    async with serving(settings, tmp_path) as running:
        assert await asked(running, "org/small", {}) == 404
        assert await ids(running, {}) == ["roundhouse-tiny", "scripted"]
