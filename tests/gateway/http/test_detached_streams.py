"""A chat stream that goes on without its client, and is taken up again by its conversation."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import pytest

from backends.machine.supervision import Supervisor
from config.settings import Config, KeyConfig, LlamaServerConfig
from gateway.http.detached import Bounds, DetachedAnswer, DetachedAnswers
from gateway.terms.errors import InvalidRequest, QueueFull
from tests.gateway.http.serving import LASTING, Running, config, events, serving, state
from tests.hang import HANG

pytestmark = pytest.mark.anyio

NAME = "conv::owner/model:Q8_0"
ID = {"x-conversation-id": NAME}
CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "long"}], "stream": True}
KEYS = (KeyConfig(key="one"), KeyConfig(key="two"))
ONE, TWO = {"x-api-key": "one"}, {"x-api-key": "two"}
PATH = "/v1/chat/completions"


def settings(folder: Path, *, seconds: float = 300.0, **options: Any) -> Config:
    kept = LlamaServerConfig(stream_seconds=seconds)
    return msgspec.structs.replace(config(folder, **options), llamaserver=kept)


async def again(running: Running, **params: Any) -> httpx.Response:
    headers = params.pop("headers", {})
    return await running.client.get(
        "/v1/stream", params={"conv_id": NAME, **params}, headers=headers
    )


def parts_of(stream: bytes) -> list[bytes]:
    """Its events; a comment, as a slow load has one, is none."""
    return [part for part in stream.split(b"\n\n")[:-1] if not part.startswith(b":")]


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with serving(settings(tmp_path), tmp_path) as running:
        yield running


async def test_a_stream_is_read_again_from_any_byte_and_any_event(running: Running) -> None:
    whole = (await running.client.post(PATH, json=CHAT, headers=ID)).content
    assert whole.endswith(b"data: [DONE]\n\n")
    assert (await again(running)).content == whole
    for place in (1, 100, len(whole) - 1, len(whole)):
        assert (await again(running, **{"from": place})).content == whole[place:]
    parts = parts_of(whole)
    for number in (0, 1, 7, len(parts)):
        rest = (await again(running, from_event=number)).content
        assert parts_of(rest) == parts[number:]


async def test_it_goes_on_when_its_client_leaves(tmp_path: Path) -> None:
    slow = settings(tmp_path, tokens_per_second=100)
    chat = {**CHAT, "max_tokens": 60}
    async with serving(slow, tmp_path) as running:
        async with running.client.stream("POST", PATH, json=chat, headers=ID) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
        answer = await again(running)
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-roundhouse-model"] == "scripted"
        texts = events(answer.text.removesuffix("data: [DONE]\n\n"))
        said = "".join(one["choices"][0]["delta"].get("content") or "" for one in texts)
        assert said == ("The engine turns. " * 100)[:60]
        assert answer.text.endswith("data: [DONE]\n\n")
        known = await running.client.post(
            "/v1/streams/lookup", json={"conversation_ids": ["conv", "other"]}
        )
        (one,) = known.json()
        assert (one["conversation_id"], one["is_done"]) == (NAME, True)
        assert one["total_bytes"] == len(answer.content)
        assert one["completed_at"] >= one["started_at"] > 0


async def test_it_ends_when_it_is_stopped(tmp_path: Path) -> None:
    slow = settings(tmp_path, tokens_per_second=LASTING)
    async with serving(slow, tmp_path) as running:
        async with running.client.stream("POST", PATH, json=CHAT, headers=ID) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            stopped = await running.client.delete("/v1/stream", params={"conv_id": NAME})
            assert stopped.status_code == 204
            with anyio.fail_after(HANG):
                rest = [line async for line in lines]
            assert "data: [DONE]" not in rest
        with anyio.fail_after(HANG):
            while running.registry.status("scripted").in_use:
                await anyio.sleep(0.005)
        assert (await again(running)).status_code == 404
        assert (await running.client.delete("/v1/stream?conv_id=x")).status_code == 204


async def test_what_has_not_begun_is_not_there_yet_and_can_be_stopped(tmp_path: Path) -> None:
    slow = settings(tmp_path, load_seconds=2 * HANG)
    answers: list[httpx.Response] = []

    async def ask(running: Running) -> None:
        answers.append(await running.client.post(PATH, json=CHAT, headers=ID))

    async with serving(slow, tmp_path) as running, anyio.create_task_group() as tasks:
        tasks.start_soon(ask, running)
        await state(running, "scripted", "loading")
        early = await again(running)
        if early.status_code != 200:  # else the wait is being told already
            assert early.status_code == 503
            assert early.headers["retry-after"] == "1"
        await running.client.delete("/v1/stream", params={"conv_id": NAME})
    (answer,) = answers
    assert answer.status_code in (200, 400)
    assert "[DONE]" not in answer.text


async def test_a_request_that_fails_keeps_nothing(running: Running) -> None:
    body = {**CHAT, "model": "nobody"}
    refused = await running.client.post(PATH, json=body, headers=ID)
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
    assert (await again(running)).status_code == 404


async def test_every_key_has_its_own(tmp_path: Path) -> None:
    keyed = msgspec.structs.replace(settings(tmp_path), keys=KEYS)
    async with serving(keyed, tmp_path) as running:
        first = (await running.client.post(PATH, json=CHAT, headers={**ID, **ONE})).content
        assert (await again(running, headers=TWO)).status_code == 404
        asked = {"conversation_ids": [NAME]}
        known = await running.client.post("/v1/streams/lookup", json=asked, headers=TWO)
        assert known.json() == []
        await running.client.delete("/v1/stream", params={"conv_id": NAME}, headers=TWO)
        assert (await again(running, headers=ONE)).content == first
        assert (await again(running)).status_code == 401


async def test_another_stream_of_the_conversation_takes_its_place(running: Running) -> None:
    first = (await running.client.post(PATH, json=CHAT, headers=ID)).content
    second = (await running.client.post(PATH, json=CHAT, headers=ID)).content
    assert (await again(running)).content == second != first


async def test_it_is_let_go_after_its_time(tmp_path: Path) -> None:
    async with serving(settings(tmp_path, seconds=0.05), tmp_path) as running:
        await running.client.post(PATH, json=CHAT, headers=ID)
        with anyio.fail_after(HANG):
            while (await again(running)).status_code != 404:
                await anyio.sleep(0.01)
    async with serving(settings(tmp_path, seconds=0), tmp_path) as running:
        await running.client.post(PATH, json=CHAT, headers=ID)
        assert (await again(running)).status_code == 404


async def test_without_the_header_or_a_stream_nothing_is_kept(running: Running) -> None:
    await running.client.post(PATH, json=CHAT)
    await running.client.post(PATH, json={**CHAT, "stream": False}, headers=ID)
    assert (await again(running)).status_code == 404


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"conv_id": ""}, "conv_id"),
        ({"conv_id": "x" * 257}, "conv_id"),
        ({"from": "-1"}, "from"),
        ({"from": "x"}, "from"),
        ({"from": "9" * 17}, "from"),
        ({"from_event": "x"}, "from_event"),
        ({"from_event": "999999"}, "from_event"),
    ],
)
async def test_what_can_not_be_meant_is_named(
    running: Running, params: dict[str, str], param: str
) -> None:
    await running.client.post(PATH, json=CHAT, headers=ID)
    answer = await again(running, **params)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def sent(stream: DetachedAnswer, *parts: bytes) -> None:
    """The stream as if an answer had sent `parts`."""

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})

    await stream.collect(app)
    stream.end()


async def test_the_oldest_of_a_long_stream_is_let_go() -> None:
    stream = DetachedAnswer("", "a", most_bytes=40)
    await sent(stream, *(b"data: %d\n\n" % number for number in range(10)))
    assert (stream.size, stream.kept) == (90, 36)
    for gone in (lambda: stream.check(53), lambda: stream.place_of(5)):
        with pytest.raises(InvalidRequest, match="gone"):
            gone()
    assert stream.place_of(6) == 54
    assert b"".join([part async for part in stream.read(55)]) == b"ata: 6\n\n" + b"".join(
        b"data: %d\n\n" % number for number in (7, 8, 9)
    )


async def test_comments_are_no_events_but_bytes() -> None:
    stream = DetachedAnswer("", "a")
    await sent(stream, b": loading\n\n", b"data: 0\n\n: still here\n\ndata: 1\n\n")
    assert stream.place_of(0) == 11
    assert b"".join([part async for part in stream.read(stream.place_of(1))]) == b"data: 1\n\n"


async def test_so_many_run_and_so_much_is_kept_and_no_more() -> None:
    async def endless(_scope: Any, _receive: Any, _send: Any) -> None:
        await anyio.sleep_forever()

    async def short(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 60, "more_body": False})

    bounds = Bounds("streams", 64, over=8, over_bytes=100)
    streams = DetachedAnswers[DetachedAnswer](bounds, lambda: 300.0)

    def begin(name: str, app: Any) -> DetachedAnswer:
        stream = DetachedAnswer("me", name)
        streams.collect(stream, app)
        return stream

    async with streams.running(Supervisor()):
        for number in range(2):
            with anyio.fail_after(HANG):
                await begin(f"short {number}", short).ended.wait()
        assert streams.find("me", "short 0") is None
        assert streams.find("me", "short 1") is not None
        for number in range(64):
            begin(f"endless {number}", endless)
        with pytest.raises(QueueFull):
            begin("one more", endless)
        streams.stop("me", "endless 0")
        begin("one more", endless)
