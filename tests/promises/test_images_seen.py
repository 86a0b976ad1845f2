"""The classic vision request to models that really see, through all floors."""

from base64 import b64encode
from collections.abc import AsyncIterator
from io import BytesIO
from random import Random
from typing import Any

import httpx
import openai
import pytest

from config.settings import Config, ModelConfig, ServerConfig
from tests.gateway.http.serving import Running, serving

pytestmark = [pytest.mark.anyio, pytest.mark.slow]  # it teaches the model first

HUB_ID = "Qwen/Qwen2.5-VL-7B-Instruct"
GREEDY = {"top_k": 1}  # whatever the temperature: half a minute taught it little


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    from tests.backends import trained_vision, trained_vision_gguf

    folder = tmp_path_factory.mktemp("seen")
    trained = trained_vision.train(folder / "model")
    models = (
        ModelConfig(
            name="transformers",
            path=str(trained),
            aliases=(HUB_ID,),
            options={"device": "cpu"},
            sampling=GREEDY,
        ),
        ModelConfig(
            name="llamacpp",
            path=str(trained_vision_gguf.convert(trained, folder / "gguf")),
            aliases=(f"{HUB_ID}-GGUF",),
            sampling=GREEDY,
        ),
    )
    async with serving(Config(server=ServerConfig(port=0), models=models), folder) as server:
        yield server


def data_url(colour: str) -> str:
    from tests.backends import trained_vision

    file = BytesIO()
    trained_vision.picture(colour, Random(1), 48).save(file, "PNG")
    return f"data:image/png;base64,{b64encode(file.getvalue()).decode()}"


async def ask(running: Running, model: str, *colours: str) -> tuple[str | None, int]:
    """What the model says, and the tokens of the prompt."""
    pictures = [{"type": "image_url", "image_url": {"url": data_url(colour)}} for colour in colours]
    content: list[Any] = [*pictures, {"type": "text", "text": "Describe the image."}]
    async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none") as api:
        answer = await api.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": content}],
            max_tokens=512,
            temperature=0.7,
        )
    assert answer.usage is not None
    return answer.choices[0].message.content, answer.usage.prompt_tokens


@pytest.mark.parametrize("model", [HUB_ID, f"{HUB_ID}-GGUF"])
async def test_the_classic_vision_request(running: Running, model: str) -> None:
    from tests.backends import trained_vision

    _, blind = await ask(running, model)
    for colour in ("red", "blue"):
        assert await ask(running, model, colour) == (colour, blind + trained_vision.PATCHES)
    assert await ask(running, model, "red", "blue") == (
        "red and blue",
        blind + 2 * trained_vision.PATCHES,
    )


async def test_a_model_that_sees_can_be_loaded_blind(running: Running) -> None:
    async def modalities() -> list[str]:
        listed: dict[str, Any] = (await running.client.get("/v1/models/llamacpp")).json()
        return list(listed["modalities"])

    assert await modalities() == ["text", "image"]
    body = {"model_name": "llamacpp", "vision": False}
    assert (await running.client.post("/v1/model/load", json=body)).is_success
    assert await modalities() == ["text"]
    with pytest.raises(openai.BadRequestError, match="doesn't support images"):
        await ask(running, "llamacpp", "red")
    await running.client.post("/v1/model/unload", json={})
    assert (await ask(running, "llamacpp", "red"))[0] == "red"


async def test_a_client_s_text_is_never_taken_for_a_picture_s_place(running: Running) -> None:
    for text in ("<image>", "<__media__>", "<|image 12345678|>"):
        body = {"model": "llamacpp", "messages": [{"role": "user", "content": text}]}
        answer = await running.client.post("/v1/chat/completions", json={**body, "max_tokens": 4})
        assert answer.status_code == httpx.codes.OK
