"""llama-swap's own calls, as scripts and widgets make them."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from gateway.terms.logs import LogLines
from tests.gateway.http.held_loads import HeldLoads
from tests.gateway.http.serving import Running, config, serving
from tests.hang import HANG

pytestmark = pytest.mark.anyio


@pytest.fixture
def lines() -> LogLines:
    return LogLines()


@pytest.fixture
async def running(tmp_path: Path, lines: LogLines) -> AsyncIterator[Running]:
    async with serving(config(tmp_path), tmp_path, lines=lines) as running:
        yield running


async def states(running: Running) -> dict[str, str]:
    listed = (await running.client.get("/running")).json()["running"]
    assert all(one["cmd"] == one["proxy"] == "" for one in listed)
    return {one["model"]: one["state"] for one in listed}


async def test_what_runs_is_listed_in_llama_swaps_words(tmp_path: Path) -> None:
    held = HeldLoads()
    async with serving(config(tmp_path), tmp_path, catalog=held.catalog) as running:
        assert await states(running) == {}
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(running.registry.load, "scripted")
            with anyio.fail_after(HANG):
                while not held.begun:
                    await anyio.lowlevel.checkpoint()
            assert await states(running) == {"scripted": "starting"}
            held.go.set()
        assert await states(running) == {"scripted": "ready"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/unload"),
        ("POST", "/api/models/unload"),
        ("POST", "/api/models/unload/scripted"),
    ],
)
async def test_unloading_answers_ok(method: str, path: str, running: Running) -> None:
    await running.registry.load("scripted")
    answer = await running.client.request(method, path)
    assert (answer.status_code, answer.text) == (200, "OK")
    assert await states(running) == {}


async def test_a_model_that_there_is_none_of_is_not_unloaded(running: Running) -> None:
    assert (await running.client.post("/api/models/unload/nix")).status_code == 404


@pytest.mark.parametrize("path", ["/unload", "/upstream/scripted/"])
async def test_a_page_of_another_site_unloads_and_loads_nothing(
    path: str, running: Running
) -> None:
    """A GET has no Origin: a picture's address is enough for one."""
    await running.registry.load("scripted")
    answer = await running.client.get(path, headers={"sec-fetch-site": "cross-site"})
    assert answer.status_code == 403
    assert await states(running) == {"scripted": "ready"}


async def test_the_log_is_text(running: Running, lines: LogLines) -> None:
    lines.add("info", "model loaded", {"model": "a", "seconds": 2})
    answer = await running.client.get("/logs")
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.text.endswith("[info] model loaded model=a seconds=2\n")


async def test_the_log_goes_on_as_it_is_written(running: Running, lines: LogLines) -> None:
    lines.add("info", "model loaded", {"model": "a"})
    with anyio.fail_after(HANG):
        async with running.client.stream("GET", "/logs/stream") as answer:
            written = answer.aiter_lines()
            assert (await anext(written)).endswith("model loaded model=a")
            lines.add("info", "model loaded", {"model": "b"})
            assert (await anext(written)).endswith("model loaded model=b")


async def test_only_a_command_has_routes_of_its_own(running: Running) -> None:
    answer = await running.client.get("/upstream/scripted/health")
    assert answer.status_code == 404
    assert "is no model that is a command" in answer.json()["error"]["message"]
    assert await states(running) == {}
