"""Open WebUI's Ollama connection: the calls of its `routers/ollama.py` (0.12.4), in the order in
which its pages make them, and what it reads of the answers.
"""

import json
from base64 import b64encode
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from config.settings import Config, ModelConfig
from tests.gateway.answers.picture_hosts import RED
from tests.gateway.http.serving import HELLO, Running, config, serving, state
from tests.gateway.prompt.families import source

pytestmark = pytest.mark.anyio

TINY = "roundhouse-tiny:latest"
HEADERS = {"content-type": "application/json"}  # and a bearer token where a key is set
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def with_seeing(folder: Path) -> Config:
    script = {
        "lines": [{"say": "I see {images}."}],
        "chat_template": source("vision"),
        "modalities": ["text", "image"],
    }
    file = folder / "seeing.script.json"
    file.write_bytes(msgspec.json.encode(script))
    settings = config(folder, load_seconds=2.5)
    seeing = ModelConfig(name="seeing", path=str(file))
    return msgspec.structs.replace(settings, models=(*settings.models, seeing))


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    folder = tmp_path_factory.mktemp("server")
    async with serving(with_seeing(folder), folder) as server:
        yield server


async def get(running: Running, path: str) -> Any:
    answer = await running.client.get(path, headers=HEADERS)
    assert answer.status_code == httpx.codes.OK
    return answer.json()


async def chat(running: Running, **body: Any) -> list[Any]:
    """Its middleware reads each line for itself: none may be empty or half a document."""
    data = json.dumps({"stream": True, **body})
    lines = []
    async with running.client.stream("POST", "/api/chat", content=data, headers=HEADERS) as answer:
        assert answer.status_code == httpx.codes.OK
        rest = b""
        async for part in answer.aiter_raw():
            *whole, rest = (rest + part).split(b"\n")
            lines += [json.loads(line) for line in whole]
    assert not rest.strip()
    return lines


def said(lines: list[Any], field: str = "content") -> str:
    return "".join(line["message"].get(field) or "" for line in lines)


async def test_the_connection_is_verified_and_its_models_are_listed(running: Running) -> None:
    version = (await get(running, "/api/version"))["version"]
    assert tuple(map(int, version.split("."))) > (0, 5)
    models = (await get(running, "/api/tags"))["models"]
    assert {one["model"] for one in models} >= {TINY, "scripted:latest"}
    for one in models:
        assert one["name"] == one["model"]
        assert one["size"] >= 0
        assert {"family", "parameter_size", "quantization_level"} <= one["details"].keys()


async def test_what_is_in_memory_is_reported_until_when(running: Running) -> None:
    await chat(running, model=TINY, messages=HELLO, keep_alive="5m", options={"num_predict": 1})
    resident = (await get(running, "/api/ps"))["models"]
    (tiny,) = [one for one in resident if one["model"] == TINY]
    assert datetime.fromisoformat(tiny["expires_at"]) > datetime.now(UTC)


async def test_a_chat_as_its_page_sends_it(running: Running) -> None:
    lines = await chat(
        running,
        model=TINY,
        messages=[{"role": "system", "content": "Be brief."}, *HELLO],
        options={"temperature": 0, "num_ctx": 2048, "num_predict": 200, "stop": ["XX"]},
        keep_alive=300,
        think=True,
    )
    *steps, last = lines
    assert said(steps)
    assert said(steps, "thinking")
    assert [line["done"] for line in lines] == [False] * len(steps) + [True]
    assert last["done_reason"] == "stop"
    counts = ("prompt_eval_count", "eval_count", "total_duration", "eval_duration")
    assert all(isinstance(last[name], int) and last[name] > 0 for name in counts)


async def test_its_tools_are_called_and_answered(running: Running) -> None:
    asked: Any = {"model": TINY, "tools": [TOOL], "think": False, "options": {"temperature": 0}}
    question = {"role": "user", "content": "What is the weather in Lisbon?"}
    lines = await chat(running, messages=[question], **asked)
    (call,) = (call for line in lines for call in line["message"].get("tool_calls", ()))
    assert call["function"]["arguments"] == {"city": "Lisbon"}
    turn = {  # as it turns what it kept in OpenAI's form into Ollama's
        "role": "assistant",
        "content": "",
        "tool_calls": [{"index": 0, "id": call["id"], "function": call["function"]}],
    }
    result = {
        "role": "tool",
        "tool_call_id": call["id"],
        "content": "sunny, 21 degrees in Lisbon",
    }
    answer = await chat(running, messages=[question, turn, result], **asked)
    assert "sunny" in said(answer)


async def test_a_picture_from_its_page(running: Running) -> None:
    message = {"role": "user", "content": "What is it?", "images": [b64encode(RED).decode()]}
    assert "#ff0000" in said(await chat(running, model="seeing:latest", messages=[message]))


async def test_titles_and_tags_are_asked_for_without_a_stream(running: Running) -> None:
    body = {"model": TINY, "messages": HELLO, "stream": False, "options": {"num_predict": 50}}
    answer = await running.client.post("/api/chat", content=json.dumps(body), headers=HEADERS)
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.json()["message"]["role"] == "assistant"


@pytest.mark.parametrize("keep_alive", ["5m", 0])
async def test_a_load_and_an_unload_are_one_document(keep_alive: Any, running: Running) -> None:
    """It asks without a word of streams, and reads JSON; a load takes its time meanwhile."""
    body = {"model": "scripted:latest", "keep_alive": keep_alive, "prompt": ""}
    answer = await running.client.post("/api/generate", content=json.dumps(body), headers=HEADERS)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["done_reason"] == ("unload" if keep_alive == 0 else "load")
    await state(running, "scripted", "unloaded" if keep_alive == 0 else "loaded")


async def test_its_errors_have_a_text(running: Running) -> None:
    body = {"model": "nobody:latest", "messages": HELLO}
    answer = await running.client.post("/api/chat", content=json.dumps(body), headers=HEADERS)
    assert answer.status_code == httpx.codes.NOT_FOUND
    assert "nobody" in answer.json()["error"]


async def test_the_openai_forms_of_the_same_connection(running: Running) -> None:
    body = {"model": TINY, "messages": HELLO, "max_tokens": 5, "stream": False}
    for path, form in (
        ("/v1/chat/completions", body),
        ("/v1/completions", {"model": TINY, "prompt": "Once", "max_tokens": 5}),
        ("/v1/messages", body),
        ("/v1/responses", {"model": TINY, "input": "Hello!", "max_output_tokens": 5}),
    ):
        answer = await running.client.post(path, content=json.dumps(form), headers=HEADERS)
        assert answer.status_code == httpx.codes.OK, answer.text
