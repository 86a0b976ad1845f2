"""The configuration is read again while requests run, and what they began with stays theirs."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import pytest

from backends.contract.samplers import Sampling
from config.loader import load_config
from gateway.reconfiguring.reloading import ConfigSource
from tests.gateway.http.serving import HELLO, LASTING, Running, serving, state
from tests.hang import HANG

pytestmark = pytest.mark.anyio
ADMIN = {"authorization": "Bearer admin-key"}
KEYS = [{"key": "admin-key", "role": "admin"}, {"key": "user-key"}]

LONG = {"when": "long", "say": "The engine turns. " * 60}


class File:
    """The configuration on disk, and the scripts its models are."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "roundhouse.yaml"
        self.config: dict[str, Any] = {
            "server": {"port": 0},
            "keys": KEYS,
            "models": [self.model("one"), self.model("two")],
        }

    def model(self, name: str, **settings: Any) -> dict[str, Any]:
        path = self.folder / f"{name}.script.json"
        if not path.exists():  # a file that is written again is another model
            path.write_text(json.dumps({"lines": [LONG, {"when": "", "say": f"I am {name}."}]}))
        return {"name": name, "path": str(path), **settings}

    def write(self, **changes: Any) -> None:
        self.config |= changes
        self.path.write_text(json.dumps(self.config))  # which is YAML

    def read(self) -> Any:
        return load_config(self.path, {}, sampling=Sampling)


@asynccontextmanager
async def served(folder: Path, **changes: Any) -> AsyncIterator[tuple[Running, File]]:
    file = File(folder)
    file.write(**changes)
    source = ConfigSource(file.read, file.path)
    async with serving(file.read(), folder, source=source) as running:
        yield running, file


async def reload(running: Running, query: str = "") -> dict[str, Any]:
    answer = await running.client.post(f"/v1/admin/reload{query}", headers=ADMIN)
    assert answer.status_code == 200, answer.text
    report: dict[str, Any] = answer.json()
    return report


async def says(running: Running, model: str, **fields: Any) -> str:
    answer = await running.client.post(
        "/v1/chat/completions", json={"model": model, "messages": HELLO, **fields}, headers=ADMIN
    )
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


@asynccontextmanager
async def streaming(running: Running, model: str) -> AsyncIterator[AsyncIterator[str]]:
    """A long answer that has begun."""
    body = {"model": model, "messages": [{"role": "user", "content": "long"}], "stream": True}
    async with running.client.stream(
        "POST", "/v1/chat/completions", json=body, headers=ADMIN
    ) as answer:
        lines = answer.aiter_lines()
        assert "content" in await next_data(lines)
        yield lines


SLOW = {"options": {"tokens_per_second": LASTING}}


async def test_only_administrators_may(tmp_path: Path) -> None:
    async with served(tmp_path) as (running, _):
        user = {"authorization": "Bearer user-key"}
        answer = await running.client.post("/v1/admin/reload", headers=user)
        assert answer.status_code == 403
        assert (await running.client.post("/v1/admin/reload")).status_code == 401


async def test_an_unchanged_file_changes_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as (running, _):
        await running.registry.load("one")
        entry = running.registry.resolve("one")
        report = await reload(running)
        assert report == {
            "applied": True,
            "changed": [],
            "restart": [],
            "models": {"added": [], "removed": [], "reloaded": [], "updated": []},
        }
        assert running.registry.status("one").state == "loaded"
        assert running.registry.resolve("one") is entry


async def test_keys_change_at_once_and_who_was_let_in_stays(tmp_path: Path) -> None:
    async with served(tmp_path) as (running, file):
        file.write(models=[file.model("one", **SLOW)])
        await reload(running)
        async with streaming(running, "one") as lines:
            file.write(keys=[{"key": "other-key", "role": "admin"}])
            assert (await reload(running))["changed"] == ["keys"]
            assert (await running.client.get("/v1/models", headers=ADMIN)).status_code == 401
            other = {"authorization": "Bearer other-key"}
            assert (await running.client.get("/v1/models", headers=other)).status_code == 200
            assert "content" in await next_data(lines)


async def next_data(lines: AsyncIterator[str]) -> str:
    return await anext(line async for line in lines if '"content"' in line)


async def test_the_first_keys_are_asked_for_at_once_and_the_last_stays(tmp_path: Path) -> None:
    async with served(tmp_path, keys=[]) as (running, file):
        page = {"origin": "https://page.example"}
        assert (await running.client.get("/v1/models", headers=page)).status_code == 403
        assert (await running.client.get("/v1/models")).status_code == 200
        file.write(keys=KEYS)
        await running.client.post("/v1/admin/reload")
        assert (await running.client.get("/v1/models")).status_code == 401
        assert (await running.client.get("/v1/models", headers=ADMIN | page)).status_code == 200
        file.write(keys=[])
        for query in ("", "?plan=true"):
            answer = await running.client.post(f"/v1/admin/reload{query}", headers=ADMIN)
            assert answer.status_code == 400
            assert "every client would be an administrator" in answer.text
        assert (await running.client.get("/v1/models")).status_code == 401


async def test_untouched_models_stay_loaded_changed_ones_come_back_removed_ones_leave(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as (running, file):
        for name in ("one", "two"):
            await running.registry.load(name)
        loaded = running.registry.status("one").info
        changed = file.model("two", options={"context_length": 77})
        file.write(models=[file.config["models"][0], changed, file.model("three")])
        report = await reload(running)
        assert report["models"]["added"] == ["three"]
        assert report["models"]["reloaded"] == ["two"]
        assert running.registry.status("one").info is loaded
        await state(running, "two", "loaded")
        status = running.registry.status("two")
        assert status.info is not None
        assert status.info.context_length == 77
        assert await says(running, "three") == "I am three."
        file.write(models=file.config["models"][1:])
        assert (await reload(running))["models"]["removed"] == ["one"]
        body = {"model": "one", "messages": HELLO}
        answer = await running.client.post("/v1/chat/completions", json=body, headers=ADMIN)
        assert answer.status_code == 404


@pytest.mark.parametrize("becomes", ["removed", pytest.param("changed", marks=pytest.mark.slow)])
async def test_a_running_answer_finishes_on_what_it_began_with(
    becomes: str, tmp_path: Path
) -> None:
    async with served(tmp_path) as (running, file):
        file.write(models=[file.model("one", options={"tokens_per_second": 400})])
        await reload(running)
        async with streaming(running, "one") as lines:
            new = [] if becomes == "removed" else [file.model("one", options={"max_concurrent": 3})]
            file.write(models=[*new, file.model("two")])
            await reload(running)
            data = [line async for line in lines if line.startswith("data: ")]
        assert data[-1] == "data: [DONE]"
        assert '"finish_reason":"stop"' in "".join(data[-3:])
        if becomes == "changed":
            await state(running, "one", "loaded")
            options = running.registry.status("one").options
            assert options is not None
            assert options.max_concurrent == 3


async def test_who_waits_in_line_for_a_removed_model_is_reported(tmp_path: Path) -> None:
    async with served(tmp_path) as (running, file):
        file.write(models=[file.model("one", options={"load_seconds": 2 * HANG})])
        await reload(running)
        errors: list[httpx.Response] = []

        async def ask() -> None:
            body = {"model": "one", "messages": HELLO}
            errors.append(
                await running.client.post("/v1/chat/completions", json=body, headers=ADMIN)
            )

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await state(running, "one", "loading")
            file.write(models=[file.model("two")])
            await reload(running)
        assert errors[0].status_code == 404
        assert "one was removed from the configuration" in errors[0].text


async def test_what_needs_no_load_is_had_by_the_next_request(tmp_path: Path) -> None:
    async with served(tmp_path) as (running, file):
        await running.registry.load("one")
        loaded = running.registry.status("one").info
        file.write(models=[file.model("one", aliases=["uno"], sampling={"max_tokens": 2})])
        answer = await running.client.post("/v1/admin/reload", headers=ADMIN)
        assert "max_tokens" in answer.text  # no sampling default: a mistake changes nothing
        file.write(models=[file.model("one", aliases=["uno"], ttl=99_999)])
        assert (await reload(running))["models"]["updated"] == ["one"]
        assert await says(running, "uno") == "I am one."
        status = running.registry.status("one")
        assert status.info is loaded
        assert status.remaining_seconds is not None
        assert status.remaining_seconds > 90_000


async def test_a_smaller_budget_takes_effect_at_once(tmp_path: Path) -> None:
    async with served(tmp_path) as (running, file):
        for name in ("one", "two"):
            await running.registry.load(name)
        need = running.registry.status("one").need
        assert need is not None
        file.write(swap={"memory": {"cpu": need.total}})
        assert (await reload(running))["changed"] == ["swap.memory"]
        with anyio.fail_after(HANG):
            while sum(one.info is not None for one in running.registry.statuses()) != 1:
                await anyio.sleep(0.005)


async def test_what_needs_a_restart_is_named_each_time_and_kept(tmp_path: Path) -> None:
    async with served(tmp_path) as (running, file):
        file.write(server={"port": 1, "max_choices": 2}, apis={"ollama": False})
        for changed in (["server.max_choices"], []):
            report = await reload(running)
            assert report["restart"] == ["server.port", "apis.ollama"]
            assert report["changed"] == changed
        body = {"model": "one", "messages": HELLO, "n": 3}
        answer = await running.client.post("/v1/chat/completions", json=body, headers=ADMIN)
        assert "server.max_choices" in answer.text
        assert (await running.client.get("/api/tags", headers=ADMIN)).status_code == 200


async def test_a_plan_tells_and_changes_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as (running, file):
        file.write(keys=KEYS[:1], models=[file.model("three")])
        report = await reload(running, "?plan=true")
        assert report["applied"] is False
        assert report["models"]["removed"] == ["one", "two"]
        user = {"authorization": "Bearer user-key"}
        assert (await running.client.get("/v1/models", headers=user)).status_code == 200
        assert await says(running, "two") == "I am two."
        assert (await reload(running)) == report | {"applied": True}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("server: {prot: 1}\n", "roundhouse.yaml:1: $.server.prot"),
        ("keys: []\nserver:\n  hosts: ['a b']\n", "server.hosts[0]"),
        ("preset: nowhere\n", "Preset 'nowhere' not found"),
        ("models: [{name: a, path: one.script.json, template: gone}]\n", "can't be read"),
    ],
)
async def test_a_wrong_file_changes_nothing_and_says_why(
    text: str, says: str, tmp_path: Path
) -> None:
    async with served(tmp_path) as (running, file):
        before = running.registry.statuses()
        file.path.write_text(text)
        answer = await running.client.post("/v1/admin/reload", headers=ADMIN)
        assert answer.status_code == 400
        assert says in answer.json()["error"]["message"]
        assert [one.id for one in running.registry.statuses()] == [one.id for one in before]
        assert (await running.client.get("/v1/models")).status_code == 401


async def test_the_door_stays_shut_where_strangers_could_come_in(tmp_path: Path) -> None:
    file = File(tmp_path)
    file.write(server={"port": 0, "host": "0.0.0.0"})
    async with serving(file.read(), tmp_path, source=ConfigSource(file.read)) as running:
        file.write(keys=[], server={"port": 0, "host": "127.0.0.1"})
        answer = await running.client.post("/v1/admin/reload", headers=ADMIN)
        assert answer.status_code == 400
        assert "without API keys" in answer.text


async def test_a_watched_file_is_read_when_it_has_changed(tmp_path: Path) -> None:
    async with served(tmp_path, server={"port": 0, "watch_config": True}) as (running, file):
        file.write(models=[file.model("four")])
        with anyio.fail_after(HANG):
            while running.registry.statuses()[0].id != "four":
                await anyio.sleep(0.05)


async def test_a_server_without_a_configuration_says_so(tmp_path: Path) -> None:
    file = File(tmp_path)
    file.write()
    async with serving(msgspec.structs.replace(file.read()), tmp_path) as running:
        answer = await running.client.post("/v1/admin/reload", headers=ADMIN)
        assert answer.status_code == 400
