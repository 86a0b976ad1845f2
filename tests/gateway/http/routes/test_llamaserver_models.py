"""llama-server's stream of model states, on a real server."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import pytest

from config.settings import KeyConfig, ServerConfig
from tests.gateway.http.serving import Running, config, serving
from tests.hang import HANG

pytestmark = pytest.mark.anyio

KEYS = (
    KeyConfig(key="admin", role="admin"),
    KeyConfig(key="user"),
    KeyConfig(key="one", models=("roundhouse-tiny",)),
)


async def model_events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        if line.startswith("data: "):
            yield msgspec.json.decode(line.removeprefix("data: "))


async def test_states_are_reported_at_first_and_as_they_change(tmp_path: Path) -> None:
    settings = config(tmp_path, keys=KEYS, load_seconds=0.2)
    with anyio.fail_after(HANG):
        async with (
            serving(settings, tmp_path) as running,
            running.client.stream("GET", "/models/sse", headers={"x-api-key": "user"}) as answer,
        ):
            assert answer.headers["content-type"].startswith("text/event-stream")
            news = model_events(answer)
            first = [await anext(news), await anext(news)]
            assert first == [
                {"model": name, "event": "model_status", "data": {"status": "unloaded"}}
                for name in ("roundhouse-tiny", "scripted")
            ]
            await running.registry.load("scripted")
            seen: list[dict[str, Any]] = []
            while not seen or seen[-1]["data"]["status"] != "loaded":
                seen.append(await anext(news))
                assert (seen[-1]["model"], seen[-1]["event"]) == ("scripted", "model_status")
            assert seen[0]["data"]["status"] == "loading"
            progress = [one["data"]["progress"] for one in seen if "progress" in one["data"]]
            values = [one["value"] for one in progress]
            assert {one["current"] for one in progress} == {"text_model"}
            assert values == sorted(values)
            await running.registry.unload("scripted")
            assert (await anext(news))["data"] == {"status": "unloaded"}


async def test_models_that_come_go_or_cant_be_used_are_reported(tmp_path: Path) -> None:
    root = tmp_path / "models"
    root.mkdir()
    settings = msgspec.structs.replace(config(tmp_path, keys=KEYS), model_dirs=(str(root),))
    with anyio.fail_after(HANG):
        async with (
            serving(settings, tmp_path) as running,
            running.client.stream("GET", "/models/sse", headers={"x-api-key": "user"}) as answer,
        ):
            news = model_events(answer)
            await anext(news), await anext(news)
            (root / "torn.gguf").write_bytes(b"GGUF")
            await running.registry.refresh()
            torn = await anext(news)
            assert torn["model"] == "torn"
            assert torn["data"]["failed"]
            assert "not a usable GGUF file" in torn["data"]["reason"]
            assert str(root) not in torn["data"]["reason"]
            (root / "torn.gguf").unlink()
            await running.registry.refresh()
            assert await anext(news) == {"model": "torn", "event": "model_remove"}


async def test_a_limited_key_is_reported_of_its_models_only(tmp_path: Path) -> None:
    with anyio.fail_after(HANG):
        async with serving(config(tmp_path, keys=KEYS), tmp_path) as running:
            headers = {"x-api-key": "one"}
            async with running.client.stream("GET", "/models/sse", headers=headers) as answer:
                news = model_events(answer)
                assert (await anext(news))["model"] == "roundhouse-tiny"
                await running.registry.load("scripted")
                await running.registry.load("roundhouse-tiny")
                while (one := await anext(news))["data"]["status"] != "loaded":
                    assert one["model"] == "roundhouse-tiny"
                assert one["model"] == "roundhouse-tiny"
            assert (await running.client.get("/models/sse")).status_code == 401


async def watchers(running: Running, count: int) -> None:
    with anyio.fail_after(HANG):
        while len(running.registry.watchers) != count:
            await anyio.sleep(0.005)


async def test_who_leaves_is_forgotten(tmp_path: Path) -> None:
    async with serving(config(tmp_path), tmp_path) as running:
        own = len(running.registry.watchers)
        async with running.client.stream("GET", "/models/sse") as answer:
            await anext(model_events(answer))
            assert len(running.registry.watchers) == own + 1
        await watchers(running, own)


async def test_a_page_elsewhere_may_not_listen(tmp_path: Path) -> None:
    async with serving(config(tmp_path), tmp_path) as running:
        own = len(running.registry.watchers)
        answer = await running.client.get("/models/sse", headers={"host": "evil.example"})
        assert answer.status_code == 403
        assert len(running.registry.watchers) == own


async def test_a_stop_waits_for_no_watcher(tmp_path: Path) -> None:
    patient = ServerConfig(shutdown_grace=HANG * 10)
    with anyio.fail_after(HANG):
        async with serving(config(tmp_path, server=patient), tmp_path) as running:
            async with running.client.stream("GET", "/models/sse") as answer:
                running.server.should_exit = True
                assert len([one async for one in model_events(answer)]) == 2
