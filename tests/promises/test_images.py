"""Pictures in chat messages, through the openai client: they arrive, or clients hear why not."""

from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import openai
import pytest

from backends.engines.scripted import IMAGE_TOKENS
from config.settings import Config, ImagesConfig, ModelConfig, ServerConfig
from tests.gateway.answers.picture_hosts import RED, answer, encoded, hosting
from tests.gateway.http.serving import Running, send_chat, serving
from tests.gateway.prompt.families import source
from tests.hang import HANG

pytestmark = pytest.mark.anyio

HUB_ID = "Qwen/Qwen2.5-VL-7B-Instruct"


def config(folder: Path) -> Config:
    """A model that sees and one that doesn't."""
    lines = [{"say": "I see {images}."}]
    seeing = {
        "lines": lines,
        "chat_template": source("vision"),
        "modalities": ["text", "image"],
    }
    models = {"seeing": seeing, "blind": {"lines": lines}}
    for name, script in models.items():
        (folder / f"{name}.script.json").write_bytes(msgspec.json.encode(script))
    return Config(
        server=ServerConfig(port=0),
        models=(
            ModelConfig(name="seeing", path=str(folder / "seeing.script.json"), aliases=(HUB_ID,)),
            ModelConfig(name="blind", path=str(folder / "blind.script.json")),
        ),
        images=ImagesConfig(allow_private_addresses=True, max_count=3),
    )


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    folder = tmp_path_factory.mktemp("images")
    async with serving(config(folder), folder) as server:
        yield server


def client(running: Running) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)


def picture(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def data_url(data: bytes) -> str:
    return f"data:image/png;base64,{b64encode(data).decode()}"


def asking(*parts: dict[str, Any]) -> list[Any]:
    return [{"role": "user", "content": list(parts)}]


async def test_the_classic_vision_request(running: Running) -> None:
    async with hosting({"/cat.png": answer(RED)}) as host, client(running) as api:
        completion = await api.chat.completions.create(
            model=HUB_ID,
            messages=asking(
                picture(f"http://127.0.0.1:{host.port}/cat.png"), text("Describe the image.")
            ),
            max_tokens=512,
            temperature=0.7,
        )
    assert completion.choices[0].message.content == "I see 4x3 #ff0000."
    assert completion.choices[0].finish_reason == "stop"


async def test_a_picture_s_tokens_count(running: Running) -> None:
    async with client(running) as api:
        usages = [
            (
                await api.chat.completions.create(
                    model=HUB_ID, messages=asking(*shown, text("What is it?"))
                )
            ).usage
            for shown in ([], [picture(data_url(RED))], 2 * [picture(data_url(RED))])
        ]
    none, one, two = (usage.prompt_tokens for usage in usages if usage is not None)
    assert one - none == two - one == IMAGE_TOKENS + len("<image>")


async def test_pictures_of_all_turns_arrive_in_their_order(running: Running) -> None:
    red, blue, green = (
        data_url(encoded(size=(side, 1), color=color))
        for side, color in ((1, "red"), (2, "blue"), (3, "lime"))
    )
    messages: list[Any] = [
        *asking(text("One"), picture(red), text("and another"), picture(blue)),
        {"role": "assistant", "content": "Yes?"},
        *asking({"type": "input_image", "image_url": green}),
    ]
    async with (
        client(running) as api,
        await api.chat.completions.create(model=HUB_ID, messages=messages, stream=True) as stream,
    ):
        parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(parts) == "I see 1x1 #ff0000, 2x1 #0000ff, 3x1 #00ff00."


async def test_a_model_that_can_t_see_says_so_and_nothing_is_fetched(running: Running) -> None:
    async with hosting({"/": answer(RED)}) as host, client(running) as api:
        messages = asking(text("Look:"), picture(f"http://127.0.0.1:{host.port}/"))
        with pytest.raises(
            openai.BadRequestError, match="'blind' doesn't support images"
        ) as caught:
            await api.chat.completions.create(model="blind", messages=messages)
    assert caught.value.param == "messages[0].content[1].image_url"
    assert host.heads == []
    assert running.registry.status("blind").state == "unloaded"


@pytest.mark.parametrize(
    ("shown", "param", "reason"),
    [
        (
            [data_url(RED), data_url(b"text")],
            "messages[0].content[1].image_url",
            "not a readable image",
        ),
        (4 * [data_url(RED)], "messages[0].content[3].image_url", "At most 3 images"),
        (["http://127.0.0.1:1/"], "messages[0].content[0].image_url", "can't be reached"),
        (["file:///etc/passwd"], "messages[0].content[0].image_url.url", "URL"),
    ],
)
async def test_mistakes_name_their_part(
    shown: list[str], param: str, reason: str, running: Running
) -> None:
    async with client(running) as api:
        with pytest.raises(openai.BadRequestError, match=reason) as caught:
            await api.chat.completions.create(
                model=HUB_ID, messages=asking(*map(picture, shown)), stream=True
            )
    assert caught.value.param == param


async def test_a_client_that_leaves_while_a_picture_is_fetched(running: Running) -> None:
    async with hosting({}) as silent:
        messages = asking(picture(f"http://127.0.0.1:{silent.port}/"))
        body = msgspec.json.encode({"model": HUB_ID, "messages": messages})
        async with await send_chat(running, body):
            await silent.asked.wait()
        with anyio.fail_after(HANG):
            await silent.left.wait()


IN_OTHER_APIS: dict[str, tuple[str, dict[str, Any], str]] = {
    "messages": (
        "/v1/messages",
        {
            "messages": asking(
                {
                    "type": "image",
                    "source": {
                        "type": "base64",
                        "media_type": "image/png",
                        "data": b64encode(RED).decode(),
                    },
                },
                text("What is it?"),
            )
        },
        "messages[0].content[0].source.data",
    ),
    "messages, in a tool's result": (
        "/v1/messages",
        {
            "messages": [
                *asking(text("Look")),
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {}}],
                },
                *asking(
                    {
                        "type": "tool_result",
                        "tool_use_id": "t",
                        "content": [
                            {"type": "image", "source": {"type": "url", "url": data_url(RED)}}
                        ],
                    }
                ),
            ]
        },
        "messages[2].content[0].content[0].source.url",
    ),
    "ollama": (
        "/api/chat",
        {
            "stream": False,
            "messages": [{"role": "user", "content": "Look", "images": [b64encode(RED).decode()]}],
        },
        "messages[0].images[0]",
    ),
    "generate": (
        "/api/generate",
        {"stream": False, "prompt": "Look", "images": [b64encode(RED).decode()]},
        "images[0]",
    ),
    "responses": (
        "/v1/responses",
        {"input": asking({"type": "input_image", "image_url": data_url(RED)})},
        "input[0].content[0].image_url",
    ),
}


@pytest.mark.parametrize("api", IN_OTHER_APIS)
async def test_pictures_arrive_in_every_api_and_errors_name_their_field(
    api: str, running: Running
) -> None:
    path, body, field = IN_OTHER_APIS[api]
    seen = await running.client.post(path, json={"model": "seeing", **body})
    assert "I see 4x3 #ff0000." in seen.text, seen.text
    blind = await running.client.post(path, json={"model": "blind", **body})
    assert blind.status_code == 400
    assert f'"{field}"' in blind.text, blind.text
