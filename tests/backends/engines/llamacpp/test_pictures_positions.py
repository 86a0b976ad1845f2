"""Where a picture takes fewer positions than cells (Qwen2-VL), every token still stands where
transformers has it: behind one picture, behind two, in a later turn, and in company.
"""

import random
from collections.abc import AsyncIterator

import anyio
import pytest
from PIL import Image as Pillow

from backends.contract import catalog
from backends.contract.protocol import Ended, Generation, Image, ModelContainer, Pixels
from config.engines import LlamaCppOptions
from tests.backends.container_contract import GREEDY, run
from tests.backends.engines.llamacpp import qwen2vl

pytestmark = pytest.mark.anyio

ASKED = (
    ("Hello there, who are you?", ()),
    ("<|im_start|>user\n@Describe it<|im_end|>\n", ((4, 3),)),
    ("Look: @ and then @, what differs?", ((6, 4), (4, 4))),
    ("@@@ Three of them.", ((3, 3), (8, 2), (2, 6))),
)


@pytest.fixture(scope="module")
def peer() -> qwen2vl.Peer:
    return qwen2vl.Peer()


@pytest.fixture(scope="module")
async def container(
    peer: qwen2vl.Peer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ModelContainer]:
    files = catalog.recognise(qwen2vl.convert(peer, tmp_path_factory.mktemp("qwen")))
    load = catalog.BACKENDS["llamacpp"].container.load
    loaded = await load(files, LlamaCppOptions(max_concurrent=4), lambda _: None)
    yield loaded
    await loaded.aclose()


def noise(tiles: tuple[int, int]) -> Image:
    rng, width, height = random.Random(str(tiles)), tiles[0] * 16, tiles[1] * 16
    return Image(width, height, Pixels(rng.randbytes(width * height * 3)))


async def answer(
    container: ModelContainer, text: str, sizes: tuple[tuple[int, int], ...], count: int = 8
) -> tuple[list[int], list[float], Ended]:
    marked = text.replace("@", container.info.image_marker or "")
    job = Generation(
        prompt=container.tokenize(marked, special=True),
        images=tuple(map(noise, sizes)),
        sampling=GREEDY,
        max_tokens=count,
        logprobs=0,
    )
    pieces, ended = await run(container, job)
    tokens = [token for piece in pieces for token in piece.tokens]
    return (
        tokens,
        [logprob.chosen.logprob for piece in pieces for logprob in piece.logprobs],
        ended,
    )


def expected(
    peer: qwen2vl.Peer, text: str, sizes: tuple[tuple[int, int], ...], count: int
) -> tuple[list[int], list[float]]:
    pictures = [
        Pillow.frombytes("RGB", (one.width, one.height), one.rgb) for one in map(noise, sizes)
    ]
    placed = text.replace("@", f"{qwen2vl.START}{qwen2vl.PAD}{qwen2vl.END}")
    return peer.answer(placed, pictures, count)


async def test_every_token_stands_where_transformers_has_it(
    peer: qwen2vl.Peer, container: ModelContainer
) -> None:
    for text, sizes in ASKED:
        tokens, logprobs, _ = await answer(container, text, sizes)
        wanted, wanted_logprobs = expected(peer, text, sizes, len(tokens))
        assert tokens == wanted
        assert logprobs == pytest.approx(wanted_logprobs, abs=0.02)


async def test_a_later_turn_goes_on_behind_the_pictures_it_finds(
    peer: qwen2vl.Peer, container: ModelContainer
) -> None:
    text, sizes = ASKED[2]
    _, _, ended = await answer(container, text, sizes)
    longer = f"{text} Tell me more of the second."
    tokens, logprobs, then = await answer(container, longer, sizes)
    assert then.cached_tokens >= ended.prompt_tokens - 2  # the tokenizer may join the last ones
    wanted, wanted_logprobs = expected(peer, longer, sizes, len(tokens))
    assert tokens == wanted
    assert logprobs == pytest.approx(wanted_logprobs, abs=0.02)


async def test_company_changes_nothing(container: ModelContainer) -> None:
    alone = [(await answer(container, *asked))[0] for asked in ASKED]
    together: dict[int, list[int]] = {}

    async def ask(index: int) -> None:
        together[index] = (await answer(container, *ASKED[index]))[0]

    async with anyio.create_task_group() as tasks:
        for index in range(len(ASKED)):
            tasks.start_soon(ask, index)
    assert [together[index] for index in range(len(ASKED))] == alone
