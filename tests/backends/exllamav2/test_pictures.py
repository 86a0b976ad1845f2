"""Pictures stand where their placeholders were, in order, and are computed once."""

import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("PIL")

import bundled
from backends.errors import InvalidJob, PromptTooLong
from backends.exllamav2.pictures import find
from backends.protocol import Generation, Image, ModelContainer
from tests.backends.contract import GREEDY, run, text_of
from tests.backends.exllamav2.conftest import GREETING, OPTIONS, answers, files, load
from tests.backends.exllamav2.standin import World

pytestmark = pytest.mark.anyio

MARKERS = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")


def seeing_folder(at: Path) -> Path:
    """The bundled model, said to be a Qwen2-VL, with its three markers in the tokenizer."""
    made = at / "model"
    shutil.copytree(bundled.SAFETENSORS, made)
    config = json.loads((made / "config.json").read_text())
    config |= {
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "vision_config": {"model_type": "qwen2"},
        "vocab_size": 771,
    }
    (made / "config.json").write_text(json.dumps(config))
    (made / "preprocessor_config.json").write_text("{}")
    tokenizer = json.loads((made / "tokenizer.json").read_text())
    like = tokenizer["added_tokens"][0]
    tokenizer["added_tokens"] += [
        like | {"id": 768 + at, "content": text} for at, text in enumerate(MARKERS)
    ]
    (made / "tokenizer.json").write_text(json.dumps(tokenizer))
    return made


@pytest.fixture
def world() -> World:
    return World(answers())


@pytest.fixture
async def container(world: World, tmp_path: Path) -> AsyncIterator[ModelContainer]:
    loaded = await load(world, model=files(seeing_folder(tmp_path)))
    assert loaded.info.modalities == ("text", "image")
    yield loaded
    await loaded.aclose()
    assert world.loaded == []


def picture(width: int, shade: int = 0) -> Image:
    return Image(width, 2, bytes([shade]) * (width * 2 * 3))


def asked(container: ModelContainer, text: str, *images: Image) -> Generation:
    prompt = container.tokenize(text, special=True)
    return Generation(prompt=prompt, sampling=GREEDY, images=images)


ONE = "".join(MARKERS)


async def test_pictures_take_the_place_of_their_markers(
    world: World, container: ModelContainer
) -> None:
    text = f"A{ONE}B{ONE}C{GREETING}"
    pieces, ended = await run(container, asked(container, text, picture(5), picture(3)))
    (a,), (b,), (c, *rest) = (
        container.tokenize(part, special=True) for part in ("A", "B", "C" + GREETING)
    )
    first, second = 10**9 + 100, 10**9 + 200
    assert world.jobs[0].prompt == [
        a, *range(first, first + 5), b, *range(second, second + 3), c, *rest
    ]  # fmt: skip
    assert len(world.jobs[0].embeddings) == 2
    assert ended.prompt_tokens == len(world.jobs[0].prompt)
    assert text_of(pieces) == answers()[GREETING]


async def test_the_same_picture_keeps_its_ids(world: World, container: ModelContainer) -> None:
    asking = asked(container, ONE + GREETING, picture(5))
    _, first = await run(container, asking)
    _, second = await run(container, asking)
    assert world.jobs[0].prompt == world.jobs[1].prompt
    assert second.cached_tokens > first.cached_tokens
    await run(container, asked(container, ONE + GREETING, picture(5, shade=9)))
    assert world.jobs[2].prompt != world.jobs[0].prompt


async def test_as_many_pictures_as_markers(container: ModelContainer) -> None:
    with pytest.raises(InvalidJob, match="room for 1 images, and 2 were sent"):
        await run(container, asked(container, ONE + GREETING, picture(5), picture(3)))


async def test_a_picture_that_is_too_large_is_refused(container: ModelContainer) -> None:
    with pytest.raises(InvalidJob, match="larger than 1000 pixels"):
        await run(container, asked(container, ONE + GREETING, picture(1001)))


async def test_pictures_count_against_the_context(container: ModelContainer) -> None:
    with pytest.raises(PromptTooLong):
        await run(container, asked(container, ONE + GREETING, picture(600)))


async def test_an_answer_ends_where_the_context_is_full_of_pictures(
    world: World, container: ModelContainer
) -> None:
    world.answers[GREETING] = "Puff! " * 200
    _, ended = await run(container, asked(container, ONE + GREETING, picture(450)))
    assert ended.prompt_tokens + ended.completion_tokens == 512 + 1  # the end told by us


async def test_a_model_that_guesses_sees_nothing(world: World, tmp_path: Path) -> None:
    import msgspec

    guessing = msgspec.structs.replace(OPTIONS, ngram_speculation=True)
    container = await load(world, guessing, files(seeing_folder(tmp_path)))
    assert container.info.modalities == ("text",)
    with pytest.raises(InvalidJob, match="can't see"):
        await run(container, asked(container, ONE + GREETING, picture(5)))
    await container.aclose()


def test_placeholders_are_found_without_overlap() -> None:
    assert find((1, 1, 1, 2, 1, 1), (1, 1)) == [0, 4]
    assert find((1, 2), (1, 2, 3)) == []
