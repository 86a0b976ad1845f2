"""Upstreams come, go and change while the server runs; answers end with what they began with."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.backends.places.upstream.far import (
    DONE,
    STREAM,
    Asked,
    Far,
    Says,
    chunk,
    event,
    far,
    head,
    piece,
    streams,
    text,
    with_status,
)
from tests.gateway.http.serving import HELLO, Running
from tests.gateway.reconfiguring.test_reloading import ADMIN, reload, says, served
from tests.hang import HANG

pytestmark = pytest.mark.anyio


def upstream(one: Far, **options: Any) -> dict[str, Any]:
    return {"name": "there", "urls": [one.url], "models": {"far": "theirs"}, **options}


def until(go: asyncio.Event) -> Says:
    """A stream that ends when it may."""

    async def said(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(head(200, STREAM, "transfer-encoding: chunked"))
        writer.write(piece(event(chunk({"content": "begun"}))))
        await writer.drain()
        await go.wait()
        writer.write(piece(event(chunk({}, finish="stop"))) + piece(DONE) + b"0\r\n\r\n")
        await writer.drain()

    return said


@asynccontextmanager
async def streaming(running: Running) -> AsyncIterator[AsyncIterator[str]]:
    """The lines of a stream of the model "far" that has begun."""
    body = {"model": "far", "stream": True, "messages": HELLO}
    async with running.client.stream(
        "POST", "/v1/chat/completions", json=body, headers=ADMIN
    ) as answer:
        lines = answer.aiter_lines()
        while "begun" not in await anext(lines):
            pass
        yield lines


async def rest(lines: AsyncIterator[str]) -> list[str]:
    return [line async for line in lines if line]


async def test_an_upstream_is_added_and_removed(tmp_path: Path) -> None:
    async with far(streams(*text("hello"))) as one, served(tmp_path) as (running, file):
        file.write(upstreams=[upstream(one)])
        report = await reload(running)
        assert (report["changed"], report["restart"]) == (["upstreams"], [])
        assert report["models"]["added"] == ["far"]
        assert await says(running, "far") == "hello"

        file.write(upstreams=[])
        assert (await reload(running))["models"]["removed"] == ["far"]
        body = {"model": "far", "messages": HELLO}
        got = await running.client.post("/v1/chat/completions", json=body, headers=ADMIN)
        assert got.status_code == 404
        assert (await running.client.get("/v1/upstreams", headers=ADMIN)).json() == []


async def test_an_added_upstreams_models_are_discovered(tmp_path: Path) -> None:
    async with far(streams(*text("hello"))) as one, served(tmp_path) as (running, file):
        one.lists = with_status(200, b'{"data": [{"id": "found"}]}')
        file.write(upstreams=[upstream(one, models="all")])
        await reload(running)
        async with asyncio.timeout(HANG):
            while "found" not in await listed(running):
                await asyncio.sleep(0.01)
        assert await says(running, "found") == "hello"


async def listed(running: Running) -> set[str]:
    got: httpx.Response = await running.client.get("/v1/models", headers=ADMIN)
    return {one["id"] for one in got.json()["data"]}


async def test_an_answer_ends_where_it_began_and_the_next_goes_where_it_now_is(
    tmp_path: Path,
) -> None:
    go = asyncio.Event()
    async with far(until(go)) as old, far(streams(*text("new"))) as new:
        async with served(tmp_path, upstreams=[upstream(old)]) as (running, file):
            async with asyncio.timeout(HANG), streaming(running) as lines:
                file.write(upstreams=[upstream(new, key="sk-new", max_concurrent=7)])
                assert (await reload(running))["models"]["updated"] == ["far"]
                assert await says(running, "far") == "new", "while the old one still answers"
                go.set()
                assert (await rest(lines))[-1] == "data: [DONE]"
    assert new.asked[0].headers["authorization"] == "Bearer sk-new"
    assert len(old.asked) == 1


async def test_an_answer_of_a_removed_upstream_ends_whole_and_then_its_connections(
    tmp_path: Path,
) -> None:
    go = asyncio.Event()
    async with far(until(go)) as old, served(tmp_path, upstreams=[upstream(old)]) as served_:
        running, file = served_
        async with asyncio.timeout(HANG):
            async with streaming(running) as lines:
                file.write(upstreams=[])
                await reload(running)
                assert not old.left.is_set()
                go.set()
                assert (await rest(lines))[-1] == "data: [DONE]"
            while old.tasks:  # connections
                await asyncio.sleep(0.01)


async def test_who_was_drained_stays_so_when_something_else_changes(tmp_path: Path) -> None:
    async with far(streams(*text("x"))) as one:
        async with served(tmp_path, upstreams=[upstream(one)]) as (running, file):
            order = {"upstream": "there", "url": one.url, "draining": True}
            await running.client.post("/v1/upstreams/drain", json=order, headers=ADMIN)
            file.write(upstreams=[upstream(one, stall_timeout=7)])
            await reload(running)
            (listed,) = (await running.client.get("/v1/upstreams", headers=ADMIN)).json()

    assert listed["replicas"][0]["draining"]


async def test_an_upstream_that_did_not_change_keeps_its_connections(tmp_path: Path) -> None:
    async with far(streams(*text("x"))) as one:
        async with served(tmp_path, upstreams=[upstream(one)]) as (running, file):
            before = running.registry.fleet.roster.upstreams["there"]
            file.write(server={"port": 0, "max_choices": 3})
            await reload(running)
            assert running.registry.fleet.roster.upstreams["there"] is before


async def test_certificates_that_cannot_be_read_change_nothing(tmp_path: Path) -> None:
    async with far(streams(*text("x"))) as one:
        async with served(tmp_path, upstreams=[upstream(one)]) as (running, file):
            broken = {"name": "b", "urls": ["https://localhost:1"], "ca_file": "/nowhere.pem"}
            file.write(upstreams=[broken])
            got = await running.client.post("/v1/admin/reload", headers=ADMIN)
            assert got.status_code == 400
            assert "ca_file" in got.json()["error"]["message"]
            assert await says(running, "far") == "x"
