"""Roundhouses behind a Roundhouse, each on a real socket: one list, one line, one place to ask."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.contract.catalog import BACKENDS, Catalog
from config.settings import Config, KeyConfig, ModelConfig
from config.upstreams import UpstreamConfig
from gateway.keys.access import Access
from gateway.terms.errors import Forbidden, ModelUnavailable
from tests.gateway.http.held_loads import HeldLoads
from tests.gateway.http.serving import LASTING, Running, events, serving
from tests.hang import HANG

pytestmark = pytest.mark.anyio

BUDGET = 1000  # bytes that a box has for its models
SOON = 0.05  # seconds between two looks at its list


@asynccontextmanager
async def box(
    folder: Path, keys: tuple[KeyConfig, ...] = (), catalog: Catalog = BACKENDS, **sizes: int
) -> AsyncIterator[Running]:
    """A Roundhouse with scripted models that pretend to take so many bytes."""
    config = msgspec.structs.replace(boxed(folder, sizes), keys=keys)
    async with serving(config, folder, catalog) as running:
        yield running


def boxed(folder: Path, sizes: dict[str, int], **options: object) -> Config:
    folder.mkdir()
    return Config(
        server=msgspec.structs.replace(Config().server, port=0),
        swap=msgspec.structs.replace(Config().swap, memory={"cpu": BUDGET}, min_stay=0.0),
        models=tuple(scripted(folder, name, size, options) for name, size in sizes.items()),
    )


def scripted(folder: Path, name: str, size: int, options: dict[str, object]) -> ModelConfig:
    path = folder / f"{name}.script.json"
    lines = [{"when": "long", "say": "x" * 1800}, {"say": f"{name} of {folder.name}"}]
    path.write_bytes(msgspec.json.encode({"size_bytes": size, "lines": lines}))
    return ModelConfig(name=name, path=str(path), options=options)


@asynccontextmanager
async def front(folder: Path, *boxes: Running, **options: Any) -> AsyncIterator[Running]:
    """A Roundhouse that has nothing itself; it has heard from every box."""
    urls = tuple(f"{one.url}/v1" for one in boxes)
    upstream = UpstreamConfig(name="boxes", urls=urls, refresh=SOON, **options)
    config = msgspec.structs.replace(boxed(folder, {}), upstreams=(upstream,))
    async with serving(config, folder) as running:
        async with asyncio.timeout(HANG):
            while not is_known(running):
                await asyncio.sleep(0.01)
        yield running


def is_known(running: Running) -> bool:
    """Every box has told what it has, and all of that is listed."""
    standings = [set(replica.standings or ()) for replica in replicas(running)]
    listed = {status.id for status in running.registry.statuses()}
    return all(standings) and set().union(*standings) <= listed


def replicas(running: Running) -> Any:
    return running.registry.fleet.replicas()["boxes"]


async def ask(running: Running, model: str, text: str = "Hello!") -> str:
    body = {"model": model, "messages": [{"role": "user", "content": text}]}
    got = await running.client.post("/v1/chat/completions", json=body)
    assert got.status_code == 200, got.text
    said: str = got.json()["choices"][0]["message"]["content"]
    return said


async def card(running: Running, model: str) -> Any:
    return (await running.client.get(f"/v1/models/{model}")).json()


async def cards(running: Running) -> dict[str, Any]:
    listed = (await running.client.get("/v1/models")).json()["data"]
    return {each["id"]: each for each in listed}


async def heard(running: Running, model: str, wanted: str) -> Any:
    """The card of a model, once its state is what is wanted."""
    async with asyncio.timeout(HANG):
        while (found := await card(running, model))["state"] != wanted:
            await asyncio.sleep(0.01)
    return found


# ------------------------------------------------------------------------------------- what is told


async def test_states_and_memory_elsewhere_are_reported_as_our_own(tmp_path: Path) -> None:
    async with box(tmp_path / "one", a=600, b=600) as one:
        await one.registry.load("a")
        for name in ("a", "b"):  # a list doesn't wait until it is known what they can do
            await card(one, name)
        async with front(tmp_path / "front", one) as running:
            behind = await cards(one)
            async with asyncio.timeout(HANG):
                while (listed := await cards(running))["b"]["capabilities"] != (
                    behind["b"]["capabilities"]
                ):
                    await asyncio.sleep(0.01)  # until the front has asked again
            status = (await running.client.get("/status")).json()

    fields = ("state", "status", "memory", "missing_bytes", "in_use", "waiting", "capabilities")
    for name in ("a", "b"):
        assert {field: listed[name][field] for field in fields} == {
            field: behind[name][field] for field in fields
        }
    assert (listed["a"]["state"], listed["a"]["missing_bytes"]) == ("loaded", 0)
    assert (listed["b"]["state"], listed["b"]["missing_bytes"]) == ("unloaded", 200)
    assert "needs" in listed["b"]["memory"]
    assert [(each["model"], each["state"]) for each in status["models"]] == [("a", "loaded")]


async def test_a_line_elsewhere_is_reported(tmp_path: Path) -> None:
    """Requests that others sent there are in the way of ours."""
    config = boxed(tmp_path / "one", {"a": 600}, max_concurrent=1, tokens_per_second=LASTING)
    async with serving(config, tmp_path / "one") as one:
        async with front(tmp_path / "front", one) as running, asyncio.timeout(HANG):
            asking = [asyncio.ensure_future(ask(one, "a", "long")) for _ in range(3)]
            while line_of(await card(running, "a")) != (2, 1):
                await asyncio.sleep(0.01)
            (resident,) = (await running.client.get("/status")).json()["models"]
            for each in asking:
                each.cancel()

    assert line_of(resident) == (2, 1), "one computes, the next stands ready, the third waits"


def line_of(model: Any) -> tuple[int, int]:
    return model["in_use"], model["waiting"]


async def test_who_watches_hears_of_changes_elsewhere(tmp_path: Path) -> None:
    async with box(tmp_path / "one", a=600) as one, front(tmp_path / "front", one) as running:
        with running.registry.watchers.watching() as changes:
            await one.registry.load("a")
            async with asyncio.timeout(HANG):
                while running.registry.status("a").state != "loaded":
                    assert "a" in await changes.read()


async def test_what_a_box_no_longer_tells_is_not_told(tmp_path: Path) -> None:
    async with box(tmp_path / "one", a=600) as one, box(tmp_path / "two", b=600) as two:
        async with front(tmp_path / "front", one, two) as running:
            await two.registry.load("b")
            await heard(running, "b", "loaded")
            two.server.should_exit = True
            async with asyncio.timeout(HANG):
                while running.registry.fleet.standing(remote(running, "b")) is not None:
                    await asyncio.sleep(0.01)
            assert (await card(running, "a"))["state"] == "unloaded"


def remote(running: Running, name: str) -> Any:
    return running.registry.resolve(name).files.remote


# ---------------------------------------------------------------------------------- who is asked


async def test_a_model_is_asked_for_where_it_is_loaded(tmp_path: Path) -> None:
    async with box(tmp_path / "one", a=600) as one, box(tmp_path / "two", a=600) as two:
        await two.registry.load("a")
        async with front(tmp_path / "front", one, two) as running:
            said = await asyncio.gather(*(ask(running, "a", str(k)) for k in range(8)))

        assert set(said) == {"a of two"}
        assert one.registry.status("a").state == "unloaded"


async def test_else_where_it_takes_the_least_from_others(tmp_path: Path) -> None:
    async with (
        box(tmp_path / "one", a=600, b=900) as one,
        box(tmp_path / "two", a=600, c=500) as two,
    ):
        await one.registry.load("b")
        await two.registry.load("c")
        async with front(tmp_path / "front", one, two) as running:
            assert await ask(running, "a") == "a of two"

        assert one.registry.status("b").state == "loaded"


async def test_requests_that_come_together_load_it_once(tmp_path: Path) -> None:
    """Before a list tells of the load that the first of them began."""
    async with box(tmp_path / "one", a=600) as one, box(tmp_path / "two", a=600) as two:
        async with front(tmp_path / "front", one, two) as running:
            said = await asyncio.gather(*(ask(running, "a", str(k)) for k in range(8)))

        assert len(set(said)) == 1
        states = {each.registry.status("a").state for each in (one, two)}
        assert states == {"loaded", "unloaded"}


async def test_a_model_that_one_box_has_is_asked_for_there(tmp_path: Path) -> None:
    async with box(tmp_path / "one", a=600) as one, box(tmp_path / "two", b=600) as two:
        async with front(tmp_path / "front", one, two) as running:
            assert await ask(running, "a") == "a of one"
            assert await ask(running, "b") == "b of two"


async def test_where_it_is_loaded_may_be_gone(tmp_path: Path) -> None:
    async with box(tmp_path / "one", a=600) as one:
        async with box(tmp_path / "two", a=600) as two:
            await two.registry.load("a")
            async with front(tmp_path / "front", one, two) as running:
                two.server.should_exit = True
                assert await ask(running, "a") in ("a of one", "a of two")
                async with asyncio.timeout(HANG):
                    while await ask(running, "a") != "a of one":
                        await asyncio.sleep(0.01)


# ------------------------------------------------------------------------------ loaded and unloaded


async def test_a_load_here_is_one_there_with_its_progress(tmp_path: Path) -> None:
    loads = HeldLoads()
    async with box(tmp_path / "one", catalog=loads.catalog, a=600) as one:
        async with front(tmp_path / "front", one) as running, asyncio.timeout(HANG):
            news: list[dict[str, Any]] = []
            order = {"model_name": "a"}
            async with running.client.stream("POST", "/v1/model/load", json=order) as answer:
                async for line in answer.aiter_lines():
                    news += events(line)
                    if news and not loads.go.is_set():
                        model = await heard(running, "a", "loading")
                        assert model["status"]["value"] == "loading"
                        loads.go.set()
            assert one.registry.status("a").state == "loaded"
            assert (await heard(running, "a", "loaded"))["status"]["value"] == "loaded"

    steps = [(each["module"], each["modules"]) for each in news]
    assert steps[0] == (300, 600), "as it was reported there"
    assert news[-1]["status"] == "finished"


async def test_llama_servers_calls_load_and_unload_there(tmp_path: Path) -> None:
    async with box(tmp_path / "one", a=600) as one, front(tmp_path / "front", one) as running:
        order = {"model": "a"}
        assert (await running.client.post("/models/load", json=order)).status_code == 200
        await heard(running, "a", "loaded")
        assert one.registry.status("a").state == "loaded"
        assert (await running.client.post("/models/unload", json=order)).status_code == 200
        assert one.registry.status("a").state == "unloaded"
        await heard(running, "a", "unloaded")


async def test_what_was_unloaded_there_is_loaded_there_again(tmp_path: Path) -> None:
    async with box(tmp_path / "one", a=600) as one, front(tmp_path / "front", one) as running:
        await running.registry.load("a")
        await one.registry.unload("a")
        await heard(running, "a", "unloaded")
        assert (await running.registry.load("a")).state == "loaded"
        assert one.registry.status("a").state == "loaded"


async def test_unload_reaches_every_box_and_models_that_were_never_asked_for(
    tmp_path: Path,
) -> None:
    async with box(tmp_path / "one", a=600) as one, box(tmp_path / "two", a=600) as two:
        for each in (one, two):
            await each.registry.load("a")
        async with front(tmp_path / "front", one, two) as running:
            got = await running.client.post("/v1/model/unload", json={"model_name": "a"})
            assert got.status_code == 200, got.text
            assert {each.registry.status("a").state for each in (one, two)} == {"unloaded"}


async def test_unload_without_the_right_there_is_reported(tmp_path: Path) -> None:
    keys = (KeyConfig(key="user"), KeyConfig(key="chief", role="admin"))
    async with box(tmp_path / "one", keys=keys, a=600) as one:
        async with front(tmp_path / "front", one, key="user") as running:
            assert await ask(running, "a") == "a of one", "a user's key loads"
            await heard(running, "a", "loaded")
            got = await running.client.post("/unload", json={})
            assert got.status_code == 403
            assert one.registry.status("a").state == "loaded"


async def test_a_load_that_fails_there_says_why_and_another_box_is_tried(tmp_path: Path) -> None:
    async with box(tmp_path / "one", a=600) as one, box(tmp_path / "two", a=600) as two:
        async with front(tmp_path / "front", one, two) as running:
            await asyncio.to_thread((tmp_path / "one" / "a.script.json").write_text, "broken")
            assert (await running.registry.load("a")).state == "loaded"
            assert two.registry.status("a").state == "loaded"
            await one.client.get("/v1/model/list")  # which scans the folders: it isn't usable there
            with pytest.raises(ModelUnavailable):
                await one.registry.load("a")
            await running.registry.unload("a")
            await asyncio.to_thread((tmp_path / "two" / "a.script.json").unlink)
            with pytest.raises(ModelUnavailable):
                await running.registry.load("a")


async def test_a_key_that_may_load_nothing_loads_nothing_there(tmp_path: Path) -> None:
    async with box(tmp_path / "one", a=600, b=300) as one:
        await one.registry.load("b")
        async with front(tmp_path / "front", one) as running:
            access = Access(role="user", autoload=False)
            async with running.registry.lease("b", access=access):
                pass
            with pytest.raises(Forbidden):
                async with running.registry.lease("a", access=access):
                    pass
        assert one.registry.status("a").state == "unloaded"
