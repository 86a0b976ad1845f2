"""Pictures stand where their placeholders were, in order, and are computed once."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")
pytest.importorskip("PIL")

from backends.contract.errors import InvalidJob, PromptTooLong
from backends.contract.protocol import Generation, Image, ModelContainer, Pixels
from backends.engines.exllama.pictures import ImageEmbeddings, ImageEncoder
from tests.backends.container_contract import GREEDY, run, text_of
from tests.backends.engines.exllama.conftest import Kind
from tests.backends.engines.exllama.folders import folder
from tests.backends.engines.exllama.machine import GREETING, MARKERS, Machine, answers

pytestmark = pytest.mark.anyio


def seeing_folder(at: Path) -> Path:
    """The bundled model, said to be a Qwen2.5-VL, with its three markers in the tokenizer."""
    made = folder(
        at,
        architectures=["Qwen2_5_VLForConditionalGeneration"],
        vision_config={"model_type": "qwen2"},
        image_token_id=769,
        vocab_size=771,
    )
    (made / "preprocessor_config.json").write_text("{}")
    tokenizer = json.loads((made / "tokenizer.json").read_text())
    like = tokenizer["added_tokens"][0]
    tokenizer["added_tokens"] += [
        like | {"id": 768 + at, "content": text} for at, text in enumerate(MARKERS)
    ]
    (made / "tokenizer.json").write_text(json.dumps(tokenizer))
    return made


@pytest.fixture
async def container(kind: Kind, machine: Machine, tmp_path: Path) -> AsyncIterator[ModelContainer]:
    loaded = await kind.load(machine, model=kind.files(seeing_folder(tmp_path)))
    assert loaded.info.modalities == ("text", "image")
    yield loaded
    await loaded.aclose()
    assert machine.loaded == []


def picture(width: int, shade: int = 0) -> Image:
    return Image(width, 2, Pixels(bytes([shade]) * (width * 2 * 3)))


def asked(container: ModelContainer, text: str, *images: Image) -> Generation:
    prompt = container.tokenize(text, special=True)
    return Generation(prompt=prompt, sampling=GREEDY, images=images)


ONE = "".join(MARKERS)


async def test_pictures_take_the_place_of_their_markers(
    machine: Machine, container: ModelContainer
) -> None:
    text = f"A{ONE}B{ONE}C{GREETING}"
    pieces, ended = await run(container, asked(container, text, picture(5), picture(3)))
    (a,), (b,), (c, *rest), (start, _, end) = (
        container.tokenize(part, special=True) for part in ("A", "B", "C" + GREETING, ONE)
    )
    first, second = 10**9 + 100, 10**9 + 200
    assert machine.jobs[0].prompt == [
        a, start, *range(first, first + 5), end, b, start, *range(second, second + 3), end, c, *rest
    ]  # fmt: skip
    assert len(machine.jobs[0].embeddings) == 2
    assert ended.prompt_tokens == len(machine.jobs[0].prompt)
    assert text_of(pieces) == answers()[GREETING]


async def test_the_same_picture_keeps_its_ids(machine: Machine, container: ModelContainer) -> None:
    asking = asked(container, ONE + GREETING, picture(5))
    _, first = await run(container, asking)
    _, second = await run(container, asking)
    assert machine.jobs[0].prompt == machine.jobs[1].prompt
    assert second.cached_tokens > first.cached_tokens
    await run(container, asked(container, ONE + GREETING, picture(5, shade=9)))
    assert machine.jobs[2].prompt != machine.jobs[0].prompt


async def test_as_many_pictures_as_markers(container: ModelContainer) -> None:
    with pytest.raises(InvalidJob, match="places for 1 images, 2 were sent"):
        await run(container, asked(container, ONE + GREETING, picture(5), picture(3)))


async def test_pictures_count_against_the_context(container: ModelContainer) -> None:
    with pytest.raises(PromptTooLong):
        await run(container, asked(container, ONE + GREETING, picture(600)))


async def test_an_answer_ends_where_the_context_is_full_of_pictures(
    machine: Machine, container: ModelContainer
) -> None:
    machine.answers[GREETING] = "Puff! " * 200
    _, ended = await run(container, asked(container, ONE + GREETING, picture(450)))
    assert ended.cause == "context_full"
    assert ended.prompt_tokens + ended.completion_tokens == 512


async def test_a_model_that_guesses_sees_nothing(
    kind: Kind, machine: Machine, tmp_path: Path
) -> None:
    container = await kind.load(machine, kind.guessing(), kind.files(seeing_folder(tmp_path)))
    assert container.info.modalities == ("text",)
    with pytest.raises(InvalidJob, match="doesn't support images"):
        await run(container, asked(container, ONE + GREETING, picture(5)))
    await container.aclose()


# -- without a model -------------------------------------------------------------------------------

START, PAD, END, ROWS = 1, 2, 3, [10, 11]


def seen(prompt: tuple[int, ...], ids: list[int], longest: int | None = None) -> list[int]:
    eye = ImageEncoder(embed=lambda _: ids, ids=list, placeholder=PAD, longest=longest)
    seen, _ = ImageEmbeddings(eye).prepare(Generation(prompt=prompt, images=(picture(5),)))
    return seen


def test_markers_that_the_template_writes_are_not_repeated() -> None:
    enclosed = [START, *ROWS, END]
    assert seen((7, PAD, 8), enclosed) == [7, *enclosed, 8]
    assert seen((7, START, PAD, END, 8), enclosed) == [7, *enclosed, 8]
    assert seen((7, START, PAD), enclosed) == [7, *enclosed]
    assert seen((PAD, 8), [*ROWS, END]) == [*ROWS, END, 8]


def test_a_picture_that_is_too_large_is_refused() -> None:
    assert seen((PAD,), ROWS, longest=5) == ROWS
    with pytest.raises(InvalidJob, match="larger than 4 pixels"):
        seen((PAD,), ROWS, longest=4)
