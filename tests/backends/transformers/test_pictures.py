"""A model that sees says what it is shown; jobs with pictures and jobs without run side by side."""

import random
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from backends import catalog
from backends.errors import InvalidJob
from backends.protocol import Generation, Image, ModelContainer
from config.engines import TransformersOptions
from tests.backends import seeing
from tests.backends.contract import GREEDY, run, text_of

pytestmark = pytest.mark.anyio

PATCHES = (seeing.SIDE // seeing.PATCH) ** 2  # tokens a picture takes
DICE = random.Random(1)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, _one_thread: None) -> Path:
    return seeing.train(tmp_path_factory.mktemp("seeing"))


@pytest.fixture
async def container(folder: Path) -> AsyncIterator[ModelContainer]:
    files = catalog.recognise(folder, "transformers")
    options = TransformersOptions(device="cpu", max_concurrent=4)
    loaded = await catalog.BACKENDS["transformers"].container.load(files, options, lambda _: None)
    yield loaded
    await loaded.aclose()


def shown(colour: str, side: int = 40) -> Image:
    return Image(side, side, seeing.picture(colour, DICE, side).tobytes())


def job(
    container: ModelContainer, *colours: str, question: str = "Describe the image."
) -> Generation:
    prompt = container.tokenize(seeing.prompt(len(colours), question), special=True)
    return Generation(
        prompt=prompt, images=tuple(map(shown, colours)), sampling=GREEDY, max_tokens=20
    )


async def test_it_says_that_it_sees(container: ModelContainer) -> None:
    assert container.info.modalities == ("text", "image")
    assert container.info.max_concurrent == 4  # text is batched
    assert container.info.chat_template == seeing.TEMPLATE


@pytest.mark.parametrize("colour", seeing.COLOURS)
async def test_it_names_the_colour(container: ModelContainer, colour: str) -> None:
    generation = job(container, colour)
    pieces, ended = await run(container, generation)
    assert text_of(pieces) == colour
    assert ended.cause == "end_token"
    assert ended.prompt_tokens == len(generation.prompt) - 1 + PATCHES


async def test_several_pictures_keep_their_order(container: ModelContainer) -> None:
    for colours in (("red", "blue"), ("blue", "red")):
        pieces, _ = await run(container, job(container, *colours))
        assert text_of(pieces) == " and ".join(colours)


async def test_text_jobs_and_pictures_run_side_by_side(container: ModelContainer) -> None:
    answers: dict[tuple[str, ...], str] = {}

    async def ask(*colours: str) -> None:
        pieces, _ = await run(container, job(container, *colours))
        answers[colours] = text_of(pieces)

    async with anyio.create_task_group() as tasks:
        for colours in ((), ("red",), ("green",), ("white", "black")):
            tasks.start_soon(ask, *colours)
    assert answers == {
        (): "nothing",
        ("red",): "red",
        ("green",): "green",
        ("white", "black"): "white and black",
    }


async def test_a_picture_job_is_left_at_once(container: ModelContainer) -> None:
    async with container.generate(job(container, "red")) as outputs:
        await anext(aiter(outputs))
    pieces, _ = await run(container, job(container, "blue"))
    assert text_of(pieces) == "blue"


async def test_pictures_without_a_place_in_the_prompt_are_refused(
    container: ModelContainer,
) -> None:
    prompt = container.tokenize(seeing.prompt(0, "What?"), special=True)
    with pytest.raises(InvalidJob):
        await run(container, Generation(prompt=prompt, images=(shown("red"),), sampling=GREEDY))
    pieces, _ = await run(container, job(container, "red"))
    assert text_of(pieces) == "red"
