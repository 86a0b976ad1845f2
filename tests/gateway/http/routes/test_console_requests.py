"""Requests as their own keys and administrators see them, while they run and afterwards."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from config.settings import Config, KeyConfig, LogConfig
from tests.gateway.http.serving import HELLO, LASTING, Running, config, events, serving, state
from tests.hang import HANG

pytestmark = pytest.mark.anyio

KEYS = (
    KeyConfig(key="admin", role="admin", label="the house"),
    KeyConfig(key="one"),
    KeyConfig(key="two", models=("scripted",), label="phone"),
)
ADMIN, ONE, TWO = ({"x-api-key": key} for key in ("admin", "one", "two"))
LONG = [{"role": "user", "content": "long"}]
CHAT = {"model": "scripted", "messages": HELLO}


def settings(folder: Path, **options: Any) -> Config:
    return config(folder, keys=KEYS, **options)


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with serving(settings(tmp_path), tmp_path) as server:
        yield server


async def listed(running: Running, key: dict[str, str]) -> list[dict[str, Any]]:
    answer = await running.client.get("/v1/admin/requests", headers=key)
    assert answer.status_code == 200
    found: list[dict[str, Any]] = answer.json()["requests"]
    return found


async def first(running: Running, key: dict[str, str], **wanted: object) -> dict[str, Any]:
    """The newest request, once it is as it is wanted."""
    with anyio.fail_after(HANG):
        while True:
            rows = await listed(running, key)
            if rows and all(rows[0][name] == value for name, value in wanted.items()):
                return rows[0]
            await anyio.sleep(0.005)


async def test_who_i_am_is_reported(running: Running) -> None:
    async def asked(key: dict[str, str]) -> dict[str, Any]:
        found: dict[str, Any] = (await running.client.get("/v1/admin/me", headers=key)).json()
        return found

    admin, one, two = [await asked(key) for key in (ADMIN, ONE, TWO)]
    assert [who["role"] for who in (admin, one, two)] == ["admin", "user", "user"]
    assert [who["label"] for who in (admin, one, two)] == ["the house", "key 2", "phone"]
    assert [who["models"] for who in (admin, one, two)] == [None, None, ["scripted"]]
    assert admin["keys"]
    assert admin["server"] == running.url
    assert "openai" in admin["apis"]
    assert one["default_model"] == "roundhouse-tiny"
    assert two["default_model"] is None  # it may not use it, so it doesn't hear of it
    assert (await running.client.get("/v1/admin/me")).status_code == 401


async def test_without_keys_everybody_is_administrator(tmp_path: Path) -> None:
    async with serving(config(tmp_path), tmp_path) as running:
        who = (await running.client.get("/v1/admin/me")).json()
        assert (who["role"], who["keys"], who["label"]) == ("admin", False, None)


async def test_an_answer_is_listed_with_what_it_cost(running: Running) -> None:
    headers = {**ONE, "x-request-id": "mine"}
    usage = (await running.client.post("/v1/chat/completions", json=CHAT, headers=headers)).json()[
        "usage"
    ]
    row = await first(running, ONE, state="done")
    assert (row["request"], row["key"], row["api"]) == ("mine", "key 2", "chat")
    assert (row["model"], row["outcome"]) == ("scripted", "ok")
    assert row["prompt_tokens"] == usage["prompt_tokens"] > 0
    assert row["completion_tokens"] == usage["completion_tokens"] > 0
    assert 0 <= row["ttft"] <= row["seconds"]
    assert row["prompt"] is None


async def test_a_key_sees_its_own_requests_and_an_administrator_all(running: Running) -> None:
    for key in (ONE, TWO):
        answer = await running.client.post("/v1/chat/completions", json=CHAT, headers=key)
        assert answer.status_code == 200
    assert [row["key"] for row in await listed(running, ADMIN)] == ["phone", "key 2"]
    assert [row["key"] for row in await listed(running, ONE)] == ["key 2"]
    assert [row["key"] for row in await listed(running, TWO)] == ["phone"]
    assert (await running.client.get("/v1/admin/requests")).status_code == 401


async def test_a_model_that_a_key_may_not_use_is_not_told_by_its_alias(running: Running) -> None:
    asked = {"model": "org/tiny", "messages": HELLO}  # another name of a model it may not use
    answer = await running.client.post("/v1/chat/completions", json=asked, headers=TWO)
    assert answer.status_code == 404
    row = await first(running, TWO, state="done")
    assert (row["model"], row["outcome"]) == ("", "model_not_found")


async def test_an_answer_is_reported_while_it_lasts(tmp_path: Path) -> None:
    slow = settings(tmp_path, load_seconds=0.1, tokens_per_second=LASTING)
    async with serving(slow, tmp_path) as running:
        async with anyio.create_task_group() as tasks:
            asked = {"model": "scripted", "messages": LONG}

            async def ask() -> None:
                await running.client.post("/v1/chat/completions", json=asked, headers=ONE)

            tasks.start_soon(ask)
            row = await first(running, ONE, state="answering")
            assert (row["place"], row["outcome"]) == (None, None)
            assert row["load_seconds"] > 0
            while (later := (await listed(running, ONE))[0])["completion_tokens"] < 4:
                await anyio.sleep(0.01)
            assert later["tokens_per_second"] > 0
            tasks.cancel_scope.cancel()
        assert (await first(running, ADMIN, state="done"))["outcome"] == "left"


async def test_a_stream_that_is_cancelled_ends_with_an_error_and_gives_all_back(
    tmp_path: Path,
) -> None:
    slow = settings(tmp_path, tokens_per_second=LASTING)
    async with serving(slow, tmp_path) as running:
        asked = {"model": "scripted", "messages": LONG, "stream": True}
        text = ""
        async with running.client.stream(
            "POST", "/v1/chat/completions", json=asked, headers=ONE
        ) as answer:
            row = await first(running, ADMIN, state="answering")
            path = f"/v1/admin/requests/{row['number']}/cancel"
            assert (await running.client.post(path, headers=TWO)).status_code == 404
            assert (await running.client.post(path, headers=ADMIN)).status_code == 200
            text = "".join([chunk async for chunk in answer.aiter_text()])
        assert events(text.replace("data: [DONE]", ""))[-1]["error"]["code"] == "cancelled"
        assert (await first(running, ONE, state="done"))["outcome"] == "cancelled"
        assert running.registry.status("scripted").in_use == 0
        assert (await running.client.post(path, headers=ADMIN)).status_code == 404


async def test_a_key_may_cancel_its_own_whole_answer(tmp_path: Path) -> None:
    async with serving(settings(tmp_path, tokens_per_second=LASTING), tmp_path) as running:
        answers = []

        async def ask() -> None:
            asked = {"model": "scripted", "messages": LONG}
            answers.append(
                await running.client.post("/v1/chat/completions", json=asked, headers=ONE)
            )

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            row = await first(running, ONE, state="answering")
            path = f"/v1/admin/requests/{row['number']}/cancel"
            assert (await running.client.post(path, headers=ONE)).status_code == 200
        (answer,) = answers
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "cancelled")
        assert answer.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("number", ["0", "x", "-1", "9" * 400, "²"])
async def test_a_request_that_is_not_there_cant_be_cancelled(number: str, running: Running) -> None:
    answer = await running.client.post(f"/v1/admin/requests/{number}/cancel", headers=ADMIN)
    assert answer.status_code == 404


async def test_who_waits_in_line_can_be_cancelled(tmp_path: Path) -> None:
    async with serving(settings(tmp_path, load_seconds=2 * HANG), tmp_path) as running:
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                answer = await running.client.post("/v1/chat/completions", json=CHAT, headers=ONE)
                assert answer.json()["error"]["code"] == "cancelled"

            tasks.start_soon(ask)
            row = await first(running, ONE, state="loading")
            assert (row["place"], row["ttft"], row["model"]) == (1, None, "scripted")
            path = f"/v1/admin/requests/{row['number']}/cancel"
            assert (await running.client.post(path, headers=ONE)).status_code == 200
        await state(running, "scripted", "unloaded")


async def test_prompts_are_shown_only_where_the_configuration_says_so(tmp_path: Path) -> None:
    shown = msgspec.structs.replace(settings(tmp_path), log=LogConfig(prompts=True))
    async with serving(shown, tmp_path) as running:
        chat = {"model": "scripted", "messages": [{"role": "user", "content": "my secret"}]}
        await running.client.post("/v1/chat/completions", json=chat, headers=ONE)
        for key in (ADMIN, ONE):
            assert "my secret" in (await first(running, key, state="done"))["prompt"]
        assert await listed(running, TWO) == []
