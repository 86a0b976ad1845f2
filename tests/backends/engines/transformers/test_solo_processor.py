"""Every architecture that sees answers here as through its own `generate`, with its own processor:
pictures, several of them, and text beside them. The models are tiny and have random weights.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
import transformers
from PIL import Image as Pillow

from backends.contract import catalog
from backends.contract.errors import BackendMissing, InvalidJob
from backends.contract.protocol import Generation, Image, ModelContainer, Pixels
from backends.engines.transformers import solo
from config.engines import TransformersOptions
from tests.backends.container_contract import GREEDY, run
from tests.backends.pairs import quick
from tests.backends.random_vision import KINDS, prompt, write

pytestmark = pytest.mark.anyio

LENGTH = 16  # tokens of an answer
SHOWN = (Pillow.new("RGB", (40, 32), "red"), Pillow.new("RGB", (20, 60), "blue"))
PRESENT = [name for name, kind in KINDS.items() if kind.needs is None or find_spec(kind.needs)]
LACKING = sorted(KINDS.keys() - set(PRESENT))


@asynccontextmanager
async def loaded(folder: Path) -> AsyncIterator[ModelContainer]:
    files = catalog.recognise(folder, "transformers")
    options = TransformersOptions(device="cpu", max_concurrent=4)
    container = await catalog.BACKENDS["transformers"].container.load(
        files, options, lambda _: None
    )
    yield container
    await container.aclose()


def job(container: ModelContainer, text: str, shown: Sequence[Any]) -> Generation:
    return Generation(
        prompt=container.tokenize(text, special=True),
        images=tuple(Image(p.width, p.height, Pixels(p.tobytes())) for p in shown),
        sampling=GREEDY,
        max_tokens=LENGTH,
    )


def by_itself(folder: Path, text: str, shown: Sequence[Any]) -> tuple[int, list[int]]:
    """What the model's own `generate` makes of it: the prompt's tokens, and the answer."""
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder)
    inputs = solo.load(folder, model.config, trust_remote_code=False)(
        text=[text], images=[list(shown)] if shown else None, return_tensors="pt"
    )
    length = inputs["input_ids"].shape[1]
    with torch.inference_mode():
        written = model.generate(**inputs, max_new_tokens=LENGTH, do_sample=False)
    return length, written[0, length:].tolist()


@pytest.mark.parametrize("name", quick(PRESENT, "qwen2_5_vl"))
async def test_it_answers_as_by_itself(name: str, tmp_path: Path) -> None:
    folder = write(name, tmp_path)
    asked = {count: prompt(KINDS[name], count) for count in (0, 1, 2)}
    answers: dict[int, tuple[int, list[int]]] = {}

    async def ask(container: ModelContainer, count: int) -> None:
        pieces, ended = await run(container, job(container, asked[count], SHOWN[:count]))
        tokens = [token for piece in pieces for token in piece.tokens]
        answers[count] = ended.prompt_tokens, tokens

    async with loaded(folder) as container:
        assert container.info.modalities == ("text", "image")
        assert container.info.max_concurrent == 4  # text is batched
        async with anyio.create_task_group() as tasks:
            for count in asked:
                tasks.start_soon(ask, container, count)
        with pytest.raises(InvalidJob) as caught:
            await run(container, job(container, asked[2], SHOWN[:1]))
        assert caught.value.param == "messages"
    ends = {container.tokenize(text, special=True)[0] for text in ("<|im_end|>", "<|endoftext|>")}
    for count, text in asked.items():
        length, written = by_itself(folder, text, SHOWN[:count])
        kept = next((at for at, token in enumerate(written) if token in ends), LENGTH)
        assert answers[count] == (length, written[:kept])


@pytest.mark.parametrize("name", LACKING)
async def test_a_library_that_it_needs_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(BackendMissing, match=f"pip install {KINDS[name].needs}"):
        async with loaded(write(name, tmp_path)):
            pass


async def test_without_its_processor_it_reads(tmp_path: Path) -> None:
    folder = write("qwen2_5_vl", tmp_path)
    for name in ("preprocessor_config.json", "processor_config.json"):
        (folder / name).unlink()
    async with loaded(folder) as container:
        assert container.info.modalities == ("text",)
        _, ended = await run(container, job(container, "Hello", ()))
        assert ended.completion_tokens == LENGTH
