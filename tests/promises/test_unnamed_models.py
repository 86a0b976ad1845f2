"""Where a request names no model, all routes mean the same one: the one in use, else the default.

What a frontend is shown (`/props`, `/v1/model`) is then what answers it.
"""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from config.settings import KeyConfig
from tests.gateway.http.serving import HELLO, Running, config, serving

pytestmark = pytest.mark.anyio

DEFAULT, OTHER = "roundhouse-tiny", "scripted"
TEXT = {"prompt": "Hello!", "max_tokens": 2}
ANSWERED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {"messages": HELLO, "max_tokens": 2}),
    ("/v1/completions", TEXT),
    ("/completion", {"prompt": "Hello!", "n_predict": 2}),
    ("/infill", {"input_prefix": "a", "input_suffix": "b", "n_predict": 2}),
    ("/api/v1/generate", {"prompt": "Hello!", "max_length": 2}),
    ("/v1/responses", {"input": "Hello!", "max_output_tokens": 2}),
    ("/v1/messages", {"messages": HELLO, "max_tokens": 2}),
]


async def shown(running: Running, **headers: str) -> set[str]:
    """What a frontend is told."""

    async def get(path: str) -> Any:
        return (await running.client.get(path, headers=headers)).json()

    return {
        (await get("/props"))["model_alias"],
        (await get("/v1/model"))["id"],
        (await get("/api/v1/model"))["result"],
        await _measured(running, headers),
    }


async def _measured(running: Running, headers: dict[str, str]) -> str:
    """By the context that `/tokenize` tells of the model whose tokens it gives."""
    found = await running.client.post("/tokenize", json={"content": "Hi"}, headers=headers)
    lengths = {
        status.info.context_length: status.id
        for status in running.registry.statuses()
        if status.info is not None
    }
    return lengths[found.json()["max_model_len"]]


async def answered(running: Running, path: str, body: Any, **headers: str) -> httpx.Response:
    return await running.client.post(path, json=body, headers=headers)


@pytest.mark.parametrize(("path", "body"), ANSWERED)
async def test_who_is_shown_answers(path: str, body: Any, running: Running) -> None:
    for name in (DEFAULT, OTHER, DEFAULT):
        named = {"model": name, "messages": HELLO, "max_tokens": 2}
        await answered(running, "/v1/chat/completions", named)
        answer = await answered(running, path, body)
        if path != "/infill":  # neither model has tokens for that, and says so by its name
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-roundhouse-model"] == name
        assert await shown(running) == {name}


async def test_while_none_is_loaded_it_is_the_default(running: Running) -> None:
    for path, body in ANSWERED[:3]:
        for name in (DEFAULT, OTHER):
            await running.registry.unload(name)
        answer = await answered(running, path, body)
        assert answer.headers["x-roundhouse-model"] == DEFAULT


async def test_it_is_none_that_the_key_may_not_use(tmp_path: Path) -> None:
    keys = (KeyConfig(key="one", models=(DEFAULT,)), KeyConfig(key="all"))
    async with serving(config(tmp_path, keys=keys), tmp_path) as running:
        chat = {"messages": HELLO, "max_tokens": 2}
        path = "/v1/chat/completions"
        named = await answered(running, path, {"model": OTHER, **chat}, **{"x-api-key": "all"})
        assert named.status_code == 200
        for key, name in (("all", OTHER), ("one", DEFAULT), ("one", DEFAULT)):
            answer = await answered(running, path, chat, **{"x-api-key": key})
            assert answer.headers["x-roundhouse-model"] == name


@pytest.fixture(scope="module")
async def answering(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """One that answers names it doesn't know."""
    folder = tmp_path_factory.mktemp("answering")
    answers = msgspec.structs.replace(config(folder), unknown_models="default")
    async with serving(answers, folder) as server:
        yield server


@pytest.mark.parametrize(("path", "body"), ANSWERED)
async def test_a_name_that_is_not_there_is_answered_where_that_is_wanted(
    path: str, body: Any, answering: Running
) -> None:
    """And the answer says by which. What is not there can't be loaded or looked at all the same."""
    for name in (DEFAULT, OTHER):
        named = {"model": name, "messages": HELLO, "max_tokens": 2}
        await answered(answering, "/v1/chat/completions", named)
        answer = await answered(answering, path, {**body, "model": "gpt-4o"})
        if path != "/infill":
            assert answer.status_code == 200, answer.text
            assert answer.headers["x-roundhouse-model"] == name
            assert answer.json().get("model", name) == name
    for asked in ("/props?model=gpt-4o", "/v1/models/gpt-4o"):
        assert (await answering.client.get(asked)).status_code == 404
    loaded = await answered(answering, "/models/load", {"model": "gpt-4o"})
    assert loaded.status_code == 404


async def test_a_name_that_is_not_there_is_refused(running: Running) -> None:
    for path, body in ANSWERED:
        answer = await answered(running, path, {**body, "model": "gpt-4o"})
        assert answer.status_code == 404, path


async def test_default_by_name_is_the_configured_one(running: Running) -> None:
    for name, model in ((OTHER, OTHER), ("default", DEFAULT)):
        body = {"model": name, "messages": HELLO, "max_tokens": 2}
        answer = await answered(running, "/v1/chat/completions", body)
        assert answer.headers["x-roundhouse-model"] == model
