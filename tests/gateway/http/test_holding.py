"""No key takes the room of others: neither in what is kept, nor in memory."""

from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import pytest
from anyio.abc import SocketStream

from config.settings import Config, KeyConfig, ServerConfig, StoreConfig
from tests.gateway.http.serving import LASTING, Running, config, serving
from tests.hang import HANG

pytestmark = pytest.mark.anyio

FIELDS: dict[str, Any] = {"model": "scripted", "max_output_tokens": 8}


def settings(folder: Path, **server: int) -> Config:
    keys = [KeyConfig(key="a"), KeyConfig(key="b")]
    whole = config(folder, keys=keys, server=ServerConfig(**server))  # type: ignore[arg-type]
    return msgspec.structs.replace(whole, store=StoreConfig(max_bytes=400_000))


def said(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


async def sent(running: Running, key: str, path: str, body: object) -> httpx.Response:
    return await running.client.post(path, json=body, headers={"x-api-key": key})


async def read(running: Running, key: str, path: str) -> httpx.Response:
    return await running.client.get(path, headers={"x-api-key": key})


async def test_a_key_that_fills_the_store_leaves_the_others_theirs(tmp_path: Path) -> None:
    async with serving(settings(tmp_path), tmp_path) as running:
        answer = await sent(running, "b", "/v1/responses", {**FIELDS, "input": "Hello!"})
        theirs = answer.json()["id"]
        talk = (await sent(running, "b", "/v1/conversations", {"items": [said("Hi")]})).json()["id"]
        mine = []
        for _ in range(12):
            items = [said("x" * 60_000)]
            made = await sent(running, "a", "/v1/conversations", {"items": items})
            assert made.status_code == 200
            mine.append(made.json()["id"])
        assert (await read(running, "b", f"/v1/responses/{theirs}")).status_code == 200
        assert (await read(running, "b", f"/v1/conversations/{talk}/items")).json()["data"]
        assert (await read(running, "a", f"/v1/conversations/{mine[0]}")).status_code == 404
        assert (await read(running, "a", f"/v1/conversations/{mine[-1]}")).status_code == 200


async def test_what_is_above_a_share_is_refused_before_anything_is_generated(
    tmp_path: Path,
) -> None:
    large = [said("x" * 450_000)]
    async with serving(settings(tmp_path), tmp_path) as running:
        for path, body in (
            ("/v1/responses", {**FIELDS, "input": large}),
            ("/v1/responses", {**FIELDS, "input": large, "background": True}),
            ("/v1/conversations", {"items": large}),
        ):
            answer = await sent(running, "a", path, body)
            assert answer.status_code == 413, answer.text
            assert "store.max_bytes" in answer.json()["error"]["message"]
        assert running.registry.status("scripted").state == "unloaded"
        unkept = await sent(
            running, "a", "/v1/responses", {**FIELDS, "input": large, "store": False}
        )
        assert unkept.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    "metadata",
    [{str(k): "" for k in range(17)}, {"k" * 65: ""}, {"k": "v" * 513}],
)
async def test_metadata_has_openais_bounds(running: Running, metadata: dict[str, str]) -> None:
    made = (await running.client.post("/v1/conversations", json={})).json()["id"]
    for path, body in (
        ("/v1/responses", {**FIELDS, "input": "Hi"}),
        ("/v1/conversations", {}),
        (f"/v1/conversations/{made}", {}),
    ):
        answer = await running.client.post(path, json={**body, "metadata": metadata})
        assert answer.status_code == 400, path
        assert answer.json()["error"]["param"].startswith("metadata")
    most = {f"{k:064}": "v" * 512 for k in range(16)}
    answer = await running.client.post("/v1/conversations", json={"metadata": most})
    assert answer.json()["metadata"] == most


async def test_an_item_that_is_named_too_often_is_refused(running: Running) -> None:
    made = await running.client.post("/v1/conversations", json={"items": [said("x" * 1_000_000)]})
    path = f"/v1/conversations/{made.json()['id']}/items"
    (item,) = (await running.client.get(path)).json()["data"]
    names = [{"type": "item_reference", "id": item["id"]}] * 80
    answer = await running.client.post("/v1/responses", json={**FIELDS, "input": names})
    assert answer.status_code == 413
    assert answer.json()["error"]["param"] == "input"


async def test_items_whose_ids_are_no_texts_get_others(running: Running) -> None:
    item: Any = {**said("Hi"), "id": 5}
    made = (await running.client.post("/v1/conversations", json={"items": [item]})).json()["id"]
    listed = (await running.client.get(f"/v1/conversations/{made}/items")).json()
    assert listed["data"][0]["id"].startswith("msg_")
    named = [{"type": "item_reference", "id": listed["data"][0]["id"]}]
    answer = await running.client.post("/v1/responses", json={**FIELDS, "input": named})
    assert answer.status_code == 200


# ------------------------------------------------------------------------------------- in memory


async def unfinished(running: Running, key: str, head: str, body: bytes) -> SocketStream:
    """A request whose body has only begun."""
    stream = await anyio.connect_tcp("127.0.0.1", running.port)
    lines = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {key}\r\n{head}"
    await stream.send(f"{lines}\r\n\r\n".encode() + body)
    return stream


@pytest.mark.parametrize("chunked", [False, True])
async def test_requests_that_hold_much_leave_others_room(chunked: bool, tmp_path: Path) -> None:
    """Half of what is free: nobody waits, and nobody is refused for what another key holds."""
    limited = settings(tmp_path, max_body=200_000, max_held_bytes=1)
    async with serving(limited, tmp_path) as running:
        paths = {}
        for key in ("a", "b"):
            items = [said("x" * 90_000)]
            made = await sent(running, key, "/v1/conversations", {"items": items})
            paths[key] = f"/v1/conversations/{made.json()['id']}/items"
        body = b"x" * 150_000
        chunks = b"%x\r\n%s\r\n" % (len(body), body)
        stream = (
            await unfinished(running, "a", "Transfer-Encoding: chunked", chunks)
            if chunked
            else await unfinished(running, "a", "Content-Length: 150001", body)
        )
        async with stream:
            with anyio.fail_after(HANG):
                while (answer := await read(running, "a", paths["a"])).status_code == 200:
                    await anyio.sleep(0.005)  # until the body is being read
            assert answer.status_code == 429
            assert "server.max_held_bytes" in answer.json()["error"]["message"]
            assert int(answer.headers["retry-after"]) > 0
            assert (await read(running, "b", paths["b"])).status_code == 200
        with anyio.fail_after(HANG):
            while (await read(running, "a", paths["a"])).status_code != 200:
                await anyio.sleep(0.005)  # until it is known that the other client has left


async def test_one_largest_body_always_finds_room(tmp_path: Path) -> None:
    limited = settings(tmp_path, max_body=200_000, max_held_bytes=1)
    async with serving(limited, tmp_path) as running:
        for _ in range(3):
            body = b'{"items": [%s]}' % (b" " * (200_000 - 13))
            made = await running.client.post(
                "/v1/conversations", content=body, headers={"x-api-key": "a"}
            )
            assert made.status_code == 200, made.text


async def test_what_runs_in_the_background_holds_what_it_goes_on_from(tmp_path: Path) -> None:
    limited = settings(tmp_path, max_body=200_000, max_held_bytes=1)
    lasting = config(tmp_path, tokens_per_second=LASTING).models
    limited = msgspec.structs.replace(limited, models=lasting)
    packed = {"type": "reasoning", "summary": [], "encrypted_content": "x" * 90_000}
    async with serving(limited, tmp_path) as running:
        made = await sent(running, "a", "/v1/conversations", {"items": [packed]})
        talk = made.json()["id"]
        asked = {"model": "scripted", "conversation": talk, "background": True, "input": "long"}
        runs = [(await sent(running, "a", "/v1/responses", asked)).json()["id"] for _ in range(2)]
        page = f"/v1/conversations/{talk}/items"
        assert (await read(running, "a", page)).status_code == 429
        for name in runs:
            await sent(running, "a", f"/v1/responses/{name}/cancel", {})
        assert (await read(running, "a", page)).status_code == 200
