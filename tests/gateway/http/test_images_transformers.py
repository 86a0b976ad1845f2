"""The classic vision request to a model that really sees, through all floors."""

from base64 import b64encode
from io import BytesIO
from pathlib import Path
from random import Random

import openai
import pytest
import torch

from config.settings import Config, ModelConfig, ServerConfig
from tests.backends import seeing
from tests.gateway.http.serving import serving

pytestmark = [pytest.mark.anyio, pytest.mark.slow]  # it teaches the model first

HUB_ID = "Qwen/Qwen2.5-VL-7B-Instruct"
PATCHES = (seeing.SIDE // seeing.PATCH) ** 2  # tokens a picture takes


def data_url(colour: str) -> str:
    file = BytesIO()
    seeing.picture(colour, Random(1), 48).save(file, "PNG")
    return f"data:image/png;base64,{b64encode(file.getvalue()).decode()}"


async def test_the_classic_vision_request(tmp_path: Path) -> None:
    torch.set_num_threads(1)  # other sums round otherwise, and it learns less in as many steps
    folder = seeing.train(tmp_path / "model")
    config = Config(
        server=ServerConfig(port=0),
        models=(
            ModelConfig(
                name="seeing",
                path=str(folder),
                aliases=(HUB_ID,),
                options={"device": "cpu"},
                sampling={"top_k": 1},  # whatever the temperature: half a minute taught it little
            ),
        ),
    )
    async with serving(config, tmp_path) as running:
        async with openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="none") as api:
            answers = {
                colour: await api.chat.completions.create(
                    model=HUB_ID,
                    messages=[
                        {
                            "role": "user",
                            "content": [
                                {"type": "image_url", "image_url": {"url": data_url(colour)}},
                                {"type": "text", "text": "Describe the image."},
                            ],
                        }
                    ],
                    max_tokens=512,
                    temperature=0.7,
                )
                for colour in ("red", "blue")
            }
            blind = await api.chat.completions.create(
                model=HUB_ID, messages=[{"role": "user", "content": "Describe the image."}]
            )
    said = {colour: answer.choices[0].message.content for colour, answer in answers.items()}
    assert said == {"red": "red", "blue": "blue"}
    assert blind.usage is not None
    for answer in answers.values():
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == blind.usage.prompt_tokens + PATCHES
