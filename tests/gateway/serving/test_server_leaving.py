"""Clients that leave, and servers that stop: nothing goes on for nobody, nobody is cut off without
a word.
"""

from pathlib import Path

import anyio
import httpx
import msgspec
import pytest
from anyio.abc import SocketStream

from config.settings import ServerConfig
from gateway.registry import Registry
from tests.gateway.http.serving import LASTING, config, send_chat, serving, state
from tests.hang import HANG

pytestmark = pytest.mark.anyio
LONG = {"model": "scripted", "messages": [{"role": "user", "content": "long"}]}


async def in_use(registry: Registry, count: int) -> None:
    """Wait until `count` leases are out."""
    with anyio.fail_after(HANG):
        while sum(status.in_use for status in registry.statuses()) != count:
            await anyio.sleep(0.005)


async def read_until(stream: SocketStream, text: bytes) -> bytes:
    data = b""
    with anyio.fail_after(HANG):
        while text not in data:
            data += await stream.receive()
    return data


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_leaves_gives_its_place_back(streamed: bool, tmp_path: Path) -> None:
    async with serving(config(tmp_path, tokens_per_second=LASTING), tmp_path) as running:
        async with await send_chat(
            running, msgspec.json.encode({**LONG, "stream": streamed})
        ) as stream:
            await in_use(running.registry, 1)
            if streamed:
                await read_until(stream, b"content")
            await stream.aclose()
            await in_use(running.registry, 0)


async def test_a_client_that_leaves_while_the_model_loads_gives_up_its_place(
    tmp_path: Path,
) -> None:
    async with (
        serving(config(tmp_path, load_seconds=2 * HANG), tmp_path) as running,
        await send_chat(running, msgspec.json.encode({**LONG, "stream": True})) as stream,
    ):
        with anyio.fail_after(HANG):
            while running.registry.status("scripted").state != "loading":
                await anyio.sleep(0.005)
        await stream.aclose()
        with anyio.fail_after(HANG):
            while running.registry.status("scripted").state != "unloaded":
                await anyio.sleep(0.005)


async def test_a_waiting_stream_is_reported_what_it_waits_for(tmp_path: Path) -> None:
    async with serving(config(tmp_path, load_seconds=2.5), tmp_path) as running:
        async with await send_chat(
            running, msgspec.json.encode({**LONG, "stream": True, "max_tokens": 3})
        ) as stream:
            received = await read_until(stream, b"[DONE]")
            assert b": loading scripted" in received
            assert received.index(b": loading") < received.index(b'"role":"assistant"')


async def test_running_answers_end_well_when_the_server_stops(tmp_path: Path) -> None:
    patient = ServerConfig(shutdown_grace=HANG)
    settings = config(tmp_path, server=patient, tokens_per_second=100)
    async with serving(settings, tmp_path) as running:
        body = msgspec.json.encode({**LONG, "stream": True, "max_tokens": 60})
        async with await send_chat(running, body) as stream:
            await read_until(stream, b"content")
            running.server.should_exit = True
            assert b"[DONE]" in await read_until(stream, b"[DONE]")


async def test_answers_that_outlast_the_grace_end_with_an_error_event(tmp_path: Path) -> None:
    settings = config(tmp_path, server=ServerConfig(shutdown_grace=0.3), tokens_per_second=LASTING)
    async with (
        serving(settings, tmp_path) as running,
        await send_chat(running, msgspec.json.encode({**LONG, "stream": True})) as stream,
    ):
        await read_until(stream, b"content")
        running.server.should_exit = True
        received = await read_until(stream, b'"error"')
        assert b"shutting_down" in received
        assert b"[DONE]" not in received


async def test_a_broken_stream_ends_with_an_error_event(tmp_path: Path) -> None:
    async with serving(config(tmp_path), tmp_path) as running:
        body = {
            "model": "scripted",
            "stream": True,
            "messages": [{"role": "user", "content": "break"}],
        }
        answer = await running.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == httpx.codes.OK
        last = answer.text.strip().rpartition("\n")[2]
        assert msgspec.json.decode(last.removeprefix("data: "))["error"]["code"] == "internal_error"
        whole = await running.client.post("/v1/chat/completions", json={**body, "stream": False})
        assert whole.status_code == httpx.codes.INTERNAL_SERVER_ERROR


async def test_a_model_that_breaks_twice_in_a_row_is_given_up_with_the_reason(
    tmp_path: Path,
) -> None:
    async with serving(config(tmp_path), tmp_path) as running:
        body = {"model": "scripted", "prompt": "break"}
        for _ in range(2):
            await running.client.post("/v1/completions", json=body)
        await state(running, "scripted", "failed")
        refused = await running.client.post("/v1/completions", json={**body, "prompt": "hello"})
        assert refused.status_code == httpx.codes.SERVICE_UNAVAILABLE
        assert int(refused.headers["retry-after"]) >= 1
        assert "the script fails" in refused.json()["error"]["message"]
        other = {"model": "roundhouse-tiny", "prompt": "hello", "max_tokens": 1}
        assert (await running.client.post("/v1/completions", json=other)).is_success
