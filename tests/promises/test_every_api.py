"""What every API has, stated once over all of them: tools, thinking, pictures, stop strings,
counts, news while a model loads, an end when the client leaves, errors in its own form with the
field named.
"""

import json
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import pytest
from anyio.abc import SocketStream

import bundled
from config.settings import Config, ModelConfig, ServerConfig
from tests.gateway.answers.picture_hosts import RED
from tests.gateway.http.held_loads import HeldLoads
from tests.gateway.http.serving import Running, serving
from tests.gateway.prompt.families import source
from tests.hang import HANG

pytestmark = pytest.mark.anyio

TINY = "roundhouse-tiny"
WEATHER = "What is the weather in Lisbon?"
PICTURE = b64encode(RED).decode()
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {
    "name": "get_weather",
    "description": "Get the weather of a city",
    "parameters": PARAMETERS,
}
SEEING = {
    "lines": [
        {"when": "break", "say": "This line breaks.", "fail_after": 4},
        {"when": "long", "say": "The engine turns. " * 100},
        {"when": "", "say": "I see {images}. And the end."},
    ],
    "chat_template": source("vision"),
    "modalities": ["text", "image"],
}
ENDLESS = 0.2  # tokens a second: no answer is over before the last request is there
Json = dict[str, Any]


class ReadAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer says, whichever API told it."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    thinking: str = ""
    calls: tuple[Json, ...] = ()


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """One API. `ask`: a body for a question; `read`: what its answer says; `stop`: fields that
    name a stop string; `fault`: where an error names the field; `hot`: the field of a temperature;
    `broken`: what the last part of a broken stream holds; the others are for chats alone.
    """

    path: str
    ask: Callable[[str], Json]
    read: Callable[[Json], ReadAnswer]
    stop: Callable[[str], Json]
    fault: Callable[[Json], str]
    hot: Callable[[Any], Json]
    broken: str
    hot_field: str = "temperature"
    stream_path: str | None = None  # None: the same, with `stream` in the body
    tools: Json | None = None
    thinks: Json = {}
    silent: Json = {}
    sees: Callable[[str], Json] | None = None


def read_chat(answer: Json) -> ReadAnswer:
    message = answer["choices"][0]["message"]
    calls = message.get("tool_calls") or ()
    return ReadAnswer(
        text=message.get("content") or "",
        thinking=message.get("reasoning_content") or "",
        calls=tuple(json.loads(call["function"]["arguments"]) for call in calls),
        prompt_tokens=answer["usage"]["prompt_tokens"],
        completion_tokens=answer["usage"]["completion_tokens"],
    )


def read_messages(answer: Json) -> ReadAnswer:
    blocks, usage = answer["content"], answer["usage"]
    return ReadAnswer(
        text="".join(one["text"] for one in blocks if one["type"] == "text"),
        thinking="".join(one["thinking"] for one in blocks if one["type"] == "thinking"),
        calls=tuple(one["input"] for one in blocks if one["type"] == "tool_use"),
        prompt_tokens=usage["input_tokens"] + usage["cache_read_input_tokens"],
        completion_tokens=usage["output_tokens"],
    )


def read_ollama(answer: Json) -> ReadAnswer:
    message = answer["message"]
    calls = message.get("tool_calls") or ()
    return ReadAnswer(
        text=message["content"],
        thinking=message.get("thinking", ""),
        calls=tuple(call["function"]["arguments"] for call in calls),
        prompt_tokens=answer["prompt_eval_count"],
        completion_tokens=answer["eval_count"],
    )


def read_responses(answer: Json) -> ReadAnswer:
    output = answer["output"]
    parts = [
        (item["type"], part["text"])
        for item in output
        for part in item.get("content", ())
        if item["type"] in ("message", "reasoning")
    ]
    return ReadAnswer(
        text="".join(text for kind, text in parts if kind == "message"),
        thinking="".join(text for kind, text in parts if kind == "reasoning"),
        calls=tuple(json.loads(one["arguments"]) for one in output if "arguments" in one),
        prompt_tokens=answer["usage"]["input_tokens"],
        completion_tokens=answer["usage"]["output_tokens"],
    )


def read_cohere(answer: Json) -> ReadAnswer:
    message, usage = answer["message"], answer["usage"]["tokens"]
    blocks = message.get("content") or ()
    calls = message.get("tool_calls") or ()
    return ReadAnswer(
        text="".join(one["text"] for one in blocks if one["type"] == "text"),
        thinking="".join(one["thinking"] for one in blocks if one["type"] == "thinking"),
        calls=tuple(json.loads(call["function"]["arguments"]) for call in calls),
        prompt_tokens=usage["input_tokens"],
        completion_tokens=usage["output_tokens"],
    )


def read_text(answer: Json) -> ReadAnswer:
    usage = answer["usage"]
    return ReadAnswer(
        text=answer["choices"][0]["text"],
        prompt_tokens=usage["prompt_tokens"],
        completion_tokens=usage["completion_tokens"],
    )


def read_kobold(answer: Json) -> ReadAnswer:
    (result,) = answer["results"]
    return ReadAnswer(
        text=result["text"],
        prompt_tokens=result["prompt_tokens"],
        completion_tokens=result["completion_tokens"],
    )


def read_completion(answer: Json) -> ReadAnswer:
    return ReadAnswer(
        text=answer["content"],
        prompt_tokens=answer["tokens_evaluated"],
        completion_tokens=answer["tokens_predicted"],
    )


def user(content: Any) -> list[Json]:
    return [{"role": "user", "content": content}]


def openai_fault(error: Json) -> str:
    return str(error["error"]["param"])


CHATS: Mapping[str, Dialect] = {
    "chat": Dialect(
        path="/v1/chat/completions",
        ask=lambda text: {"messages": user(text), "temperature": 0},
        read=read_chat,
        stop=lambda text: {"stop": [text]},
        fault=openai_fault,
        hot=lambda value: {"temperature": value},
        broken='"error":{',
        tools={"tools": [{"type": "function", "function": FUNCTION}]},
        silent={"enable_thinking": False},
        sees=lambda data: {
            "messages": user(
                [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}]
            )
        },
    ),
    "messages": Dialect(
        path="/v1/messages",
        ask=lambda text: {"messages": user(text), "temperature": 0, "max_tokens": 2000},
        read=read_messages,
        stop=lambda text: {"stop_sequences": [text]},
        fault=openai_fault,
        hot=lambda value: {"temperature": value},
        broken="event: error",
        tools={
            "tools": [
                {
                    "name": FUNCTION["name"],
                    "description": FUNCTION["description"],
                    "input_schema": PARAMETERS,
                }
            ]
        },
        thinks={"thinking": {"type": "adaptive"}},
        sees=lambda data: {
            "messages": user(
                [
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": data},
                    }
                ]
            )
        },
    ),
    "ollama": Dialect(
        path="/api/chat",
        ask=lambda text: {"messages": user(text), "stream": False, "options": {"temperature": 0}},
        read=read_ollama,
        stop=lambda text: {"options": {"stop": [text]}},
        fault=lambda error: str(error["param"]),
        hot=lambda value: {"options": {"temperature": value}},
        hot_field="options.temperature",
        broken='{"error":',
        tools={"tools": [{"type": "function", "function": FUNCTION}]},
        thinks={"think": True},
        silent={"think": False},
        sees=lambda data: {"messages": [{"role": "user", "content": "", "images": [data]}]},
    ),
    "responses": Dialect(
        path="/v1/responses",
        ask=lambda text: {"input": text, "temperature": 0},
        read=read_responses,
        stop=lambda text: {"stop": [text]},
        fault=openai_fault,
        hot=lambda value: {"temperature": value},
        broken="event: response.failed",
        tools={"tools": [{"type": "function", **FUNCTION}]},
        silent={"reasoning": {"effort": "none"}},
        sees=lambda data: {
            "input": user([{"type": "input_image", "image_url": f"data:image/png;base64,{data}"}])
        },
    ),
    "cohere": Dialect(
        path="/v2/chat",
        ask=lambda text: {"messages": user(text), "temperature": 0},
        read=read_cohere,
        stop=lambda text: {"stop_sequences": [text]},
        fault=lambda error: str(error["param"]),
        hot=lambda value: {"temperature": value},
        broken='"finish_reason":"ERROR"',
        tools={"tools": [{"type": "function", "function": FUNCTION}]},
        silent={"thinking": {"type": "disabled"}},
        sees=lambda data: {
            "messages": user(
                [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}]
            )
        },
    ),
}
# A raw text goes on as it is: nothing in it is a call, a thought or a picture.
TEXTS: Mapping[str, Dialect] = {
    "text": Dialect(
        path="/v1/completions",
        ask=lambda text: {"prompt": text, "temperature": 0, "max_tokens": 2000},
        read=read_text,
        stop=lambda text: {"stop": [text]},
        fault=openai_fault,
        hot=lambda value: {"temperature": value},
        broken='"error":{',
    ),
    "completion": Dialect(
        path="/completion",
        ask=lambda text: {"prompt": text, "temperature": 0, "n_predict": 2000},
        read=read_completion,
        stop=lambda text: {"stop": [text]},
        fault=openai_fault,
        hot=lambda value: {"temperature": value},
        broken='"error":{',
    ),
    "kobold": Dialect(
        path="/api/v1/generate",
        stream_path="/api/extra/generate/stream",
        ask=lambda text: {"prompt": text, "temperature": 0, "max_length": 2000, "trim_stop": True},
        read=read_kobold,
        stop=lambda text: {"stop_sequence": [text]},
        fault=lambda error: str(error["detail"]["param"]),
        hot=lambda value: {"temperature": value},
        broken="event: error",
    ),
}
ALL = {**CHATS, **TEXTS}


def config(folder: Path, **options: object) -> Config:
    """The bundled model; a script that sees; the same with `options`; and for each API one to
    break, since a model that breaks twice is given up.
    """
    script = folder / "seeing.script.json"
    script.write_bytes(msgspec.json.encode(SEEING))
    return Config(
        server=ServerConfig(port=0),
        models=(
            ModelConfig(name=TINY, path=str(bundled.GGUF)),
            ModelConfig(name="seeing", path=str(script)),
            ModelConfig(name="other", path=str(script), options=options),
            *(ModelConfig(name=f"breaks for {name}", path=str(script)) for name in ALL),
        ),
    )


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    folder = tmp_path_factory.mktemp("server")
    async with serving(config(folder), folder) as server:
        yield server


async def answered(running: Running, dialect: Dialect, body: Json) -> ReadAnswer:
    answer = await running.client.post(dialect.path, json=body)
    assert answer.status_code == httpx.codes.OK, answer.text
    return dialect.read(answer.json())


@pytest.mark.parametrize("name", CHATS)
async def test_a_tool_is_called(name: str, running: Running) -> None:
    dialect = CHATS[name]
    assert dialect.tools is not None
    body = {"model": TINY, **dialect.ask(WEATHER), **dialect.tools, **dialect.silent}
    assert (await answered(running, dialect, body)).calls == ({"city": "Lisbon"},)


@pytest.mark.parametrize("name", CHATS)
async def test_thoughts_are_distinguished_and_can_be_switched_off(
    name: str, running: Running
) -> None:
    dialect = CHATS[name]
    asked = {"model": TINY, **dialect.ask("Hello!")}
    aloud = await answered(running, dialect, {**asked, **dialect.thinks})
    silent = await answered(running, dialect, {**asked, **dialect.silent})
    assert aloud.thinking
    assert aloud.text
    assert silent.text
    assert not silent.thinking
    assert "think>" not in aloud.text + silent.text


@pytest.mark.parametrize("name", CHATS)
async def test_a_picture_is_seen_or_refused_by_its_field(name: str, running: Running) -> None:
    dialect = CHATS[name]
    assert dialect.sees is not None
    asked = {**dialect.ask(""), **dialect.sees(PICTURE)}
    answer = await answered(running, dialect, {"model": "seeing", **asked})
    assert "#ff0000" in answer.text
    blind = await running.client.post(dialect.path, json={"model": TINY, **asked})
    assert blind.status_code == httpx.codes.BAD_REQUEST
    assert dialect.fault(blind.json()).startswith(("messages", "input"))


@pytest.mark.parametrize("name", ALL)
async def test_a_stop_string_ends_the_answer(name: str, running: Running) -> None:
    dialect = ALL[name]
    body = {"model": "seeing", **dialect.ask("Hello!"), **dialect.stop(" And")}
    assert (await answered(running, dialect, body)).text == "I see ."


async def test_every_answer_is_counted_alike(running: Running) -> None:
    for group in (CHATS, TEXTS):
        answers = [
            await answered(running, one, {"model": TINY, **one.ask("Hello!"), **one.silent})
            for one in group.values()
        ]
        assert len({(one.text, one.prompt_tokens, one.completion_tokens) for one in answers}) == 1
        assert all(one.prompt_tokens and one.completion_tokens for one in answers)


@pytest.mark.parametrize("name", ALL)
async def test_a_fault_is_reported_in_the_api_s_own_form_with_its_field(
    name: str, running: Running
) -> None:
    dialect = ALL[name]
    for wrong in ("hot", [1], 99):
        body = {"model": TINY, **dialect.ask("Hello!"), **dialect.hot(wrong)}
        answer = await running.client.post(dialect.path, json=body)
        assert answer.status_code == httpx.codes.BAD_REQUEST
        assert dialect.fault(answer.json()) == dialect.hot_field


@pytest.mark.parametrize("name", ALL)
async def test_a_stream_that_breaks_ends_with_an_error(name: str, running: Running) -> None:
    path, body = streamed(ALL[name], "break", f"breaks for {name}")
    answer = await running.client.post(path, json=body)
    assert answer.status_code == httpx.codes.OK
    end = "data: [DONE]" if name == "responses" else ""  # as Open Responses has it
    whole = answer.text.strip().removesuffix(end).strip()
    *_, last = whole.split("\n" if name == "ollama" else "\n\n")
    assert ALL[name].broken in last


def streamed(dialect: Dialect, text: str, model: str = "seeing") -> tuple[str, Json]:
    body = {"model": model, **dialect.ask(text)}
    if dialect.stream_path is not None:
        return dialect.stream_path, body
    return dialect.path, {**body, "stream": True}


async def test_every_stream_is_kept_alive_while_a_model_loads(tmp_path: Path) -> None:
    """All of them wait for one load; what comes before the answer is no part of it."""
    silence: dict[str, str] = {}
    loads = HeldLoads()

    async def read(running: Running, name: str) -> None:
        path, body = streamed(ALL[name], "Hello!", "other")
        async with running.client.stream("POST", path, json=body) as answer:
            async for data in answer.aiter_text():
                silence.setdefault(name, data)
                assert data
                if silence.keys() == ALL.keys():
                    loads.go.set()

    async with serving(config(tmp_path), tmp_path, loads.catalog) as running:
        async with anyio.create_task_group() as tasks:
            for name in ALL:
                tasks.start_soon(read, running, name)
    for name, first in silence.items():
        if name == "ollama":
            assert not first.strip()
        else:
            assert first.startswith(": loading other")
    assert silence.keys() == ALL.keys()


async def send(running: Running, path: str, body: Json) -> SocketStream:
    """A request on a bare socket, to be abandoned."""
    data = msgspec.json.encode(body)
    stream = await anyio.connect_tcp("127.0.0.1", running.port)
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    await stream.send(head.encode() + data)
    return stream


async def eventually(true: Callable[[], bool]) -> None:
    with anyio.fail_after(HANG):
        while not true():
            await anyio.sleep(0.005)


def asked_both_ways(name: str) -> list[tuple[str, Json]]:
    """A long question, to be answered as a stream and whole."""
    dialect = ALL[name]
    return [
        streamed(dialect, "long", "other"),
        (dialect.path, {"model": "other", **dialect.ask("long")}),
    ]


@pytest.mark.parametrize(
    ("stage", "options"),
    [
        ("loading", {"load_seconds": 2 * HANG}),
        ("answering", {"tokens_per_second": ENDLESS}),
        ("in line for a slot", {"tokens_per_second": ENDLESS, "max_concurrent": 1}),
    ],
)
async def test_who_leaves_is_answered_no_more(
    stage: str, options: dict[str, object], tmp_path: Path
) -> None:
    """Whatever the API, streamed or whole, wherever the request is."""
    async with serving(config(tmp_path, **options), tmp_path) as running:

        def status() -> Any:
            return running.registry.status("other")

        sent = [one for name in ALL for one in asked_both_ways(name)]
        async with AsyncExitStack() as clients:
            for one in sent:
                clients.push_async_callback((await send(running, *one)).aclose)
            await eventually(lambda: status().waiting + status().in_use == len(sent))
            if stage != "loading":
                await eventually(lambda: bool(status().in_use))
        await eventually(lambda: status().waiting == status().in_use == 0)
