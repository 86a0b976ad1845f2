"""Ollama's client on a real socket, with the bundled model and a script."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import anyio
import msgspec
import ollama
import pytest
from pydantic import BaseModel, ConfigDict, Field

from config.settings import HubConfig, KeyConfig, ServerConfig
from tests.gateway.http.serving import (
    HELLO,
    LASTING,
    LONG,
    Running,
    config,
    endings,
    serving,
    state,
)
from tests.gateway.hub.standin import standin
from tests.hang import HANG

pytestmark = pytest.mark.anyio

GREEDY = {"temperature": 0}


def client(running: Running, **headers: str) -> ollama.AsyncClient:
    return ollama.AsyncClient(host=running.url, headers=headers)


@pytest.fixture
async def api(running: Running) -> AsyncIterator[ollama.AsyncClient]:
    async with client(running) as one:
        yield one


async def test_streamed_and_whole_are_the_same(api: ollama.AsyncClient) -> None:
    asked: Any = {"model": "roundhouse-tiny:latest", "messages": HELLO, "options": GREEDY}
    whole = await api.chat(**asked)
    parts = [part async for part in await api.chat(**asked, stream=True)]
    assert whole.message.content
    assert whole.message.thinking
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert "".join(part.message.thinking or "" for part in parts) == whole.message.thinking
    assert len(parts) > 2
    assert parts[-1].eval_count == whole.eval_count
    assert whole.done_reason == "stop"


async def test_thinking_can_be_switched_off(api: ollama.AsyncClient) -> None:
    answer = await api.chat(model="roundhouse-tiny", messages=HELLO, think=False, options=GREEDY)
    assert answer.message.content
    assert not answer.message.thinking


def get_weather(city: str) -> str:
    """Get the weather of a city

    Args:
        city: the city
    """
    return f"sunny, 21 degrees in {city}"


async def test_a_function_is_called_and_its_result_answered(api: ollama.AsyncClient) -> None:
    talk: list[Any] = [{"role": "user", "content": "What is the weather in Lisbon?"}]
    asked: Any = {"model": "roundhouse-tiny", "tools": [get_weather], "options": GREEDY}
    parts = [part async for part in await api.chat(messages=talk, **asked, stream=True)]
    (call,) = (call for part in parts for call in part.message.tool_calls or ())
    assert call.function.name == "get_weather"
    assert call.function.arguments == {"city": "Lisbon"}
    turn = {"role": "assistant", "content": "", "tool_calls": [call.model_dump()]}
    result = {"role": "tool", "tool_name": "get_weather", "content": get_weather("Lisbon")}
    answer = await api.chat(messages=[*talk, turn, result], **asked)
    assert "sunny" in (answer.message.content or "")


class Forecast(BaseModel):
    """Small, so that a model that knows nothing comes to its end."""

    model_config = ConfigDict(extra="forbid")
    sky: Literal["clear", "grey"]
    degrees: int = Field(ge=-50, le=50)


@pytest.mark.parametrize("think", [None, True, False])
async def test_a_format_is_kept_to_and_thinking_before_it_is_free(
    api: ollama.AsyncClient, think: bool | None
) -> None:
    asked: Any = {
        "model": "roundhouse-tiny",
        "think": think,
        "format": Forecast.model_json_schema(),
        "options": {"temperature": 1.5, "seed": 2, "num_predict": 300},
    }
    whole = await api.chat(messages=HELLO, **asked)
    parts = [part async for part in await api.chat(messages=HELLO, stream=True, **asked)]
    generated = await api.generate(prompt="Hello!", **asked)
    for text in (whole.message.content, generated.response):
        Forecast.model_validate_json(text or "")
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert bool(whole.message.thinking) == (think is not False)


async def test_the_format_json_is_an_object(api: ollama.AsyncClient, running: Running) -> None:
    options: Any = {"temperature": 1.5, "seed": 1, "num_predict": 400}
    options["logit_bias"] = await endings(running)
    asked: Any = {"model": "roundhouse-tiny", "format": "json", "think": False, "options": options}
    answer = await api.chat(messages=HELLO, **asked)
    raw = await api.generate(prompt="Hello", raw=True, **asked)
    for text in (answer.message.content, raw.response):
        assert isinstance(json.loads(text or ""), dict)


@pytest.mark.parametrize("form", ["", None])
async def test_no_format_leaves_the_answer_free(running: Running, form: str | None) -> None:
    body = {"model": "scripted", "messages": HELLO, "format": form, "stream": False}
    answer = await running.client.post("/api/chat", json=body)
    assert answer.json()["message"]["content"] == "Hello from the script."


async def test_generate_asks_and_goes_on_from_raw_texts(api: ollama.AsyncClient) -> None:
    answer = await api.generate(model="roundhouse-tiny", prompt="Hello!", options=GREEDY)
    assert answer.response
    asked: Any = {"model": "scripted", "prompt": "Hello", "raw": True, "options": {"stop": ["the"]}}
    raw = await api.generate(**asked)
    assert raw.response == "Hello from "
    parts = [part.response async for part in await api.generate(**asked, stream=True)]
    assert "".join(part or "" for part in parts) == raw.response


async def test_what_is_not_applied_is_said(running: Running) -> None:
    body = {"model": "scripted", "messages": HELLO, "options": {"num_gpu": 3}, "truncate": True}
    answer = await running.client.post("/api/chat", json=body)
    assert answer.headers["x-roundhouse-ignored"] == "truncate, options.num_gpu"
    assert answer.headers["content-type"] == "application/x-ndjson"


async def test_lists_show_and_version(api: ollama.AsyncClient, running: Running) -> None:
    listed = {one.model for one in (await api.list()).models}
    assert listed == {"roundhouse-tiny:latest", "scripted:latest"}
    shown = await api.show("roundhouse-tiny:latest")
    assert shown.capabilities is not None
    assert {"completion", "tools", "thinking"} <= set(shown.capabilities)
    assert shown.details is not None
    assert shown.details.format == "gguf"
    assert shown.modelinfo is not None
    family = shown.modelinfo["general.architecture"]
    assert shown.modelinfo[f"{family}.context_length"] > 0
    assert (await running.client.head("/")).status_code == 200
    version = (await running.client.get("/api/version")).json()["version"]
    assert version.count(".") == 2


async def test_an_empty_request_loads_and_keep_alive_lets_go(tmp_path: Path) -> None:
    async with serving(config(tmp_path), tmp_path) as running, client(running) as api:
        loaded = await api.generate(model="scripted", keep_alive=-1)
        assert loaded.done_reason == "load"
        assert running.registry.status("scripted").state == "loaded"
        (there,) = (await api.ps()).models
        assert there.model == "scripted:latest"
        assert there.expires_at is not None
        assert there.expires_at.year > 2300
        parts = [part async for part in await api.chat(model="scripted", keep_alive=0, stream=True)]
        assert [part.done_reason for part in parts] == ["unload"]
        await state(running, "scripted", "unloaded")
        again = await api.chat(model="scripted", keep_alive=0)
        assert again.done_reason == "unload"
        assert running.registry.status("scripted").state == "unloaded"
        answer = await api.chat(model="scripted", messages=HELLO, keep_alive="10m")
        assert answer.message.content == "Hello from the script."
        (there,) = (await api.ps()).models
        assert there.expires_at is not None
        assert there.expires_at.year < 2300


async def test_errors_are_the_clients_own(api: ollama.AsyncClient) -> None:
    with pytest.raises(ollama.ResponseError) as missing:
        await api.chat(model="nobody", messages=HELLO)
    assert missing.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="can't make embeddings") as unable:
        await api.embed(model="scripted:latest", input="Hi")
    assert unable.value.status_code == 400
    with pytest.raises(ollama.ResponseError, match=r"options\.temperature"):
        await api.chat(model="scripted", messages=HELLO, options={"temperature": -1})


async def test_a_broken_stream_ends_with_an_error(tmp_path: Path) -> None:
    async with serving(config(tmp_path), tmp_path) as running, client(running) as api:
        stream = await api.chat(
            model="scripted", messages=[{"role": "user", "content": "break"}], stream=True
        )
        with pytest.raises(ollama.ResponseError, match="the script fails"):
            async for _ in stream:
                pass


@pytest.mark.slow
async def test_a_stream_is_kept_alive_by_white_space(tmp_path: Path) -> None:
    quick = ServerConfig(comment_after=0.0)
    settings = config(tmp_path, server=quick, load_seconds=2.5, tokens_per_second=LASTING)
    async with serving(settings, tmp_path) as running, client(running) as api:
        asked: Any = {"model": "scripted", "messages": HELLO, "options": {"num_predict": 4}}
        long = {"model": "scripted", "messages": LONG}
        async with running.client.stream("POST", "/api/chat", json=long) as answer:
            received = ""
            async for part in answer.aiter_text():
                received += part
                if "\n " in received:  # behind a line of the answer
                    break
        assert received.startswith(" ")
        await running.registry.unload("scripted")
        parts = [part async for part in await api.chat(**asked, stream=True)]
        assert "".join(part.message.content or "" for part in parts) == "Hell"


@pytest.mark.parametrize("streamed", [True, False])
async def test_who_leaves_gives_the_model_back(streamed: bool, tmp_path: Path) -> None:
    async with serving(config(tmp_path, tokens_per_second=LASTING), tmp_path) as running:

        def in_use() -> int:
            return running.registry.status("scripted").in_use

        async def ask() -> None:
            body = {"model": "scripted", "messages": LONG, "stream": streamed}
            await running.client.post("/api/chat", json=body)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            with anyio.fail_after(HANG):
                while not in_use():
                    await anyio.sleep(0.005)
                tasks.cancel_scope.cancel()
        with anyio.fail_after(HANG):
            while in_use():
                await anyio.sleep(0.005)


@pytest.fixture
async def fetching(tmp_path: Path) -> AsyncIterator[Running]:
    script = b'{"lines": [{"say": "Fetched."}]}'
    keys = (KeyConfig(key="user"), KeyConfig(key="admin", role="admin"))
    async with standin({"talk.script.json": script}) as stand:
        settings = msgspec.structs.replace(
            config(tmp_path, keys=keys),
            model_dirs=(str(tmp_path / "models"),),
            hub=HubConfig(endpoint=stand.url, deletion=True),
        )
        async with serving(settings, tmp_path) as running:
            yield running


async def test_a_model_is_pulled_answers_and_is_deleted(fetching: Running) -> None:
    async with client(fetching, authorization="Bearer admin") as api:
        steps = [step async for step in await api.pull("hf.co/org/small", stream=True)]
        assert steps[-1].status == "success"
        assert steps[0].total == steps[-2].completed
        (name,) = (one.model for one in (await api.list()).models if "talk" in (one.model or ""))
        assert name is not None
        answer = await api.chat(model=name, messages=HELLO)
        assert answer.message.content == "Fetched."
        assert (await api.pull(name)).status == "success"
        assert (await api.delete(name)).status == "success"
        assert "talk" not in str((await api.list()).models)


async def test_pulling_and_deleting_are_for_administrators(fetching: Running) -> None:
    async with (
        client(fetching, authorization="Bearer user") as user,
        client(fetching, authorization="Bearer admin") as admin,
        client(fetching) as nobody,
    ):
        for refused in (user.pull("hf.co/org/small"), user.delete("scripted")):
            with pytest.raises(ollama.ResponseError) as caught:
                await refused
            assert caught.value.status_code == 403
        with pytest.raises(ollama.ResponseError, match="registry is not supported"):
            await admin.pull("llama3")
        with pytest.raises(ollama.ResponseError) as unknown:
            await nobody.list()
        assert unknown.value.status_code == 401


PIRATE = "You are a pirate."


async def test_a_made_model_answers_with_its_system_prompt_and_parameters(
    api: ollama.AsyncClient,
) -> None:
    made = await api.create(
        model="pirate", from_="roundhouse-tiny", system=PIRATE, parameters={"temperature": 0}
    )
    assert made.status == "success"
    asked = [{"role": "system", "content": PIRATE}, *HELLO]
    expected = await api.chat(model="roundhouse-tiny", messages=asked, options=GREEDY)
    answer = await api.chat(model="pirate:latest", messages=HELLO)
    assert answer.message.content == expected.message.content
    assert answer.prompt_eval_count == expected.prompt_eval_count
    question = await api.generate(model="pirate", prompt="Hello!")
    assert question.prompt_eval_count == expected.prompt_eval_count
    own = [{"role": "system", "content": "Be brief."}, *HELLO]
    assert (await api.chat(model="pirate", messages=own)).prompt_eval_count == (
        await api.chat(model="roundhouse-tiny", messages=own)
    ).prompt_eval_count
    await api.delete("pirate")


async def test_made_models_are_listed_shown_copied_and_deleted(api: ollama.AsyncClient) -> None:
    parameters: Any = {"temperature": 0.5, "stop": ["a", "b"]}
    await api.create(model="first", from_="roundhouse-tiny", system=PIRATE, parameters=parameters)
    await api.copy("first", "second")
    names = {one.model: one for one in (await api.list()).models}
    assert {"first:latest", "second:latest"} <= names.keys()
    details = names["second:latest"].details
    assert details is not None
    assert details.parent_model == "roundhouse-tiny"
    shown = await api.show("second")
    assert shown.parameters == 'temperature 0.5\nstop "a"\nstop "b"'
    assert PIRATE in (shown.modelfile or "")
    await api.create(model="third", from_="second", parameters={"top_k": 3})
    assert "top_k 3" in ((await api.show("third")).parameters or "")
    for name in ("first", "second", "third"):
        await api.delete(name)
    assert names.keys() - {one.model for one in (await api.list()).models} == {
        "first:latest", "second:latest"
    }  # fmt: skip
    with pytest.raises(ollama.ResponseError):
        await api.show("second")


async def test_a_model_is_not_replaced_and_none_is_made_of_files(running: Running) -> None:
    for body, param in (
        ({"model": "roundhouse-tiny", "from": "scripted"}, "model"),
        ({"model": "x", "from": "scripted", "files": {"a": "b"}}, "files"),
        ({"model": "x", "from": "scripted", "parameters": {"temperature": "hot"}},
         "parameters.temperature"),
        ({"model": "x"}, "from"),
    ):  # fmt: skip
        refused = await running.client.post("/api/create", json=body)
        assert (refused.status_code, refused.json()["param"]) == (400, param)
    unknown = await running.client.post("/api/create", json={"model": "x", "from": "nobody"})
    assert unknown.status_code == 404
