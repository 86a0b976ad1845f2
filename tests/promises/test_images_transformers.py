"""The classic vision request to the class of model that it names, through all floors. The model is
tiny and has random weights: it sees, but has nothing to say.
"""

from base64 import b64encode
from io import BytesIO
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion
from PIL import Image

from config.settings import Config, ModelConfig, ServerConfig
from tests.gateway.http.serving import serving

pytestmark = [pytest.mark.anyio, pytest.mark.slow]  # transformers, from its import to its answer

HUB_ID = "Qwen/Qwen2.5-VL-7B-Instruct"
PATCHES = (48 // 16) ** 2 + 2  # tokens a picture takes: merged patches, its start and its end


def data_url(side: int = 48) -> str:
    file = BytesIO()
    Image.new("RGB", (side, side), "red").save(file, "PNG")
    return f"data:image/png;base64,{b64encode(file.getvalue()).decode()}"


async def describe(
    api: openai.AsyncOpenAI, *urls: str, text: str = "Describe the image."
) -> ChatCompletion:
    """Pictures before the text."""
    pictures = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    content: list[Any] = [*pictures, {"type": "text", "text": text}]
    return await api.chat.completions.create(
        model=HUB_ID,
        messages=[{"role": "user", "content": content}],
        max_tokens=512,
        temperature=0.7,
    )


async def test_the_classic_vision_request(tmp_path: Path) -> None:
    from tests.backends import random_vision

    model = ModelConfig(
        name="sighted",
        path=str(random_vision.write("qwen2_5_vl", tmp_path / "model")),
        aliases=(HUB_ID,),
        options={"device": "cpu"},
    )
    async with serving(Config(server=ServerConfig(port=0), models=(model,)), tmp_path) as running:
        async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none") as api:
            answers = [await describe(api, *(count * [data_url()])) for count in range(3)]
            for spelled in ("<|image_pad|>", "<|im_end|>"):
                with pytest.raises(openai.BadRequestError, match="can't read") as caught:
                    await describe(api, data_url(), text=f"Two? {spelled}")
                assert caught.value.param == "messages"
                assert spelled in caught.value.message
    for answer in answers:
        assert answer.choices[0].message.content
        assert answer.choices[0].finish_reason in {"stop", "length"}
    blind, one, two = (answer.usage.prompt_tokens for answer in answers if answer.usage)
    assert one - blind == two - one == PATCHES
