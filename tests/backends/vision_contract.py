"""What a container that sees promises besides the contract, on the tiny model of
`tests.backends.trained_vision`: it says what it is shown, whoever else is there, and counts it.

For containers with four jobs at once and a context of 512 tokens.
"""

import random
from collections.abc import Sequence

import anyio
import pytest

from backends.contract.errors import InvalidJob
from backends.contract.protocol import Generation, Image, ModelContainer, Pixels
from backends.contract.samplers import Sampling
from tests.backends import trained_vision
from tests.backends.container_contract import GREEDY, run, text_of


def shown(colour: str, side: int = 40) -> Image:
    return Image(
        side, side, Pixels(trained_vision.picture(colour, random.Random(1), side).tobytes())
    )


def job(
    container: ModelContainer,
    *colours: str,
    question: str = "Describe the image.",
    sampling: Sampling = GREEDY,
    limit: int | None = 20,
) -> Generation:
    marker = container.info.image_marker or trained_vision.PLACEHOLDER
    prompt = container.tokenize(trained_vision.prompt(len(colours), question, marker), special=True)
    images = tuple(map(shown, colours))
    return Generation(prompt=prompt, images=images, sampling=sampling, max_tokens=limit)


async def answer(container: ModelContainer, *colours: str) -> str:
    return text_of((await run(container, job(container, *colours)))[0])


async def it_says_that_it_sees(container: ModelContainer) -> None:
    assert container.info.modalities == ("text", "image")
    assert container.info.max_concurrent == 4


async def it_names_every_colour(container: ModelContainer) -> None:
    for colour in trained_vision.COLOURS:
        pieces, ended = await run(container, job(container, colour))
        assert text_of(pieces) == colour
        assert ended.cause == "end_token"


async def a_picture_counts_as_its_tokens(container: ModelContainer) -> None:
    _, blind = await run(container, job(container))
    for count in (1, 2):
        _, ended = await run(container, job(container, *["red"] * count))
        assert ended.prompt_tokens == blind.prompt_tokens + count * trained_vision.PATCHES


async def several_pictures_keep_their_order(container: ModelContainer) -> None:
    for colours in (("red", "blue"), ("blue", "red")):
        assert await answer(container, *colours) == " and ".join(colours)


async def jobs_with_pictures_and_without_run_side_by_side(container: ModelContainer) -> None:
    answers: dict[tuple[str, ...], str] = {}

    async def ask(*colours: str) -> None:
        answers[colours] = await answer(container, *colours)

    asked: Sequence[tuple[str, ...]] = ((), ("red",), ("green",), ("white", "black"), ("blue",))
    async with anyio.create_task_group() as tasks:
        for colours in asked:
            tasks.start_soon(ask, *colours)
    assert answers == {colours: " and ".join(colours) or "nothing" for colours in asked}


async def a_picture_job_is_left_at_once(container: ModelContainer) -> None:
    async with container.generate(job(container, "red")) as outputs:
        await anext(aiter(outputs))
    async with container.generate(job(container, "green")):
        pass
    assert await answer(container, "blue") == "blue"


async def an_answer_behind_a_picture_ends_where_the_context_does(container: ModelContainer) -> None:
    endless = Sampling(temperature=0, ban_eos=True)
    _, ended = await run(container, job(container, "red", sampling=endless, limit=None))
    assert ended.cause == "context_full"
    assert ended.prompt_tokens + ended.completion_tokens == container.info.context_length


async def pictures_and_places_must_be_as_many(container: ModelContainer) -> None:
    whole = job(container, "red", "blue")
    for images in (whole.images[:1], whole.images * 2):
        wrong = Generation(prompt=whole.prompt, images=images, sampling=GREEDY)
        with pytest.raises(InvalidJob) as caught:
            await run(container, wrong)
        assert caught.value.param == "messages"
    assert await answer(container, "red") == "red"


async def a_picture_that_makes_the_prompt_too_long_is_refused(container: ModelContainer) -> None:
    colours = ["red"] * (container.info.context_length // trained_vision.PATCHES + 1)
    with pytest.raises(InvalidJob, match="maximum context length"):
        await run(container, job(container, *colours))


PROMISES = (
    it_says_that_it_sees,
    it_names_every_colour,
    a_picture_counts_as_its_tokens,
    several_pictures_keep_their_order,
    jobs_with_pictures_and_without_run_side_by_side,
    a_picture_job_is_left_at_once,
    an_answer_behind_a_picture_ends_where_the_context_does,
    pictures_and_places_must_be_as_many,
    a_picture_that_makes_the_prompt_too_long_is_refused,
)
