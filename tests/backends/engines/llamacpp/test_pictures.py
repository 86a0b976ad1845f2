"""llama.cpp sees through a projector: what every container that sees promises, and what is its own:
pictures in the KV cache, in a scarce one too, and the same answers as transformers gives.
"""

import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import islice, permutations
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from backends.contract import catalog
from backends.contract.errors import GenerationFailed, InvalidJob
from backends.contract.protocol import Generation, ModelContainer, Piece
from backends.engines.driver import DrivenContainer
from backends.engines.llamacpp import pictures
from backends.engines.llamacpp.vocabulary import LlamaVocabulary
from config.engines import LlamaCppOptions, TransformersOptions
from tests.backends import trained_vision, trained_vision_gguf, vision_contract
from tests.backends.container_contract import GREEDY, run, text_of

pytestmark = [pytest.mark.anyio, pytest.mark.slow]  # the model is taught first


@pytest.fixture(scope="session")
def model(seeing_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_vision_gguf.convert(seeing_folder, tmp_path_factory.mktemp("gguf"))


@asynccontextmanager
async def loaded(model: Path, **options: Any) -> AsyncIterator[ModelContainer]:
    chosen = LlamaCppOptions(max_concurrent=4, **options)
    files = catalog.recognise(model)
    container = await catalog.BACKENDS["llamacpp"].container.load(files, chosen, lambda _: None)
    try:
        yield container
    finally:
        await container.aclose()


@pytest.mark.parametrize("promise", vision_contract.PROMISES, ids=lambda promise: promise.__name__)
async def test_it_sees(promise: Callable[[ModelContainer], Awaitable[None]], model: Path) -> None:
    async with loaded(model) as container:
        await promise(container)


async def test_the_next_turn_finds_its_picture_in_the_cache(model: Path) -> None:
    async with loaded(model) as container:
        first = vision_contract.job(container, "red")
        _, ended = await run(container, first)
        again = Generation(
            prompt=first.prompt + container.tokenize("red<|im_end|>\nAnd now?", special=True),
            images=first.images,
            sampling=GREEDY,
            max_tokens=3,
        )
        _, then = await run(container, again)
        assert then.cached_tokens >= ended.prompt_tokens
        other = Generation(
            prompt=again.prompt,
            images=(vision_contract.shown("blue"),),
            sampling=GREEDY,
            max_tokens=3,
        )
        _, changed = await run(container, other)
        assert (
            changed.cached_tokens < trained_vision.PATCHES
        )  # up to the picture, which is another one


async def test_a_scarce_cache_serves_all_alike(model: Path) -> None:
    """Four jobs of up to 70 cells don't fit into 256: cells are taken away and computed again."""
    asked = [
        colours
        for count in (3, 4, 5)
        for colours in islice(permutations(trained_vision.COLOURS, count), 0, 60, 10)
    ]

    async def answers(**options: int) -> dict[tuple[str, ...], str]:
        found: dict[tuple[str, ...], str] = {}
        async with loaded(model, **options) as container, anyio.create_task_group() as tasks:

            async def ask(colours: tuple[str, ...]) -> None:
                found[colours] = await vision_contract.answer(container, *colours)

            for colours in asked:
                tasks.start_soon(ask, colours)
        return found

    assert await answers(context_length=256, cache_tokens=256) == await answers()


async def test_text_a_tokenizer_joins_with_a_picture_s_place_is_not_lost(model: Path) -> None:
    async with loaded(model) as container:
        marker = container.info.image_marker
        assert marker is not None
        for around in ("Look {}now", "<{}>", "\n{}\n\nWhat?", "é{}é"):
            prompt = container.tokenize(around.format(marker), special=True)
            blind = container.tokenize(around.format(""), special=True)
            job = Generation(
                prompt=prompt, images=(vision_contract.shown("red"),), sampling=GREEDY, max_tokens=1
            )
            _, ended = await run(container, job)
            assert ended.prompt_tokens >= trained_vision.PATCHES + len(around.split("{}"))
            assert ended.prompt_tokens <= trained_vision.PATCHES + len(blind) + 2


async def test_a_prompt_that_ends_with_a_picture_is_refused(model: Path) -> None:
    async with loaded(model) as container:
        prompt = container.tokenize(f"See {container.info.image_marker}", special=True)
        with pytest.raises(InvalidJob, match="end with an image"):
            await run(container, Generation(prompt=prompt, images=(vision_contract.shown("red"),)))


class Eyes:
    """The real ones, but they look only when they may, and fail when they are told to."""

    def __init__(self, real: Any) -> None:
        self._real = real
        self.open = threading.Event()
        self.blind = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def encode(self, picture: Any) -> None:
        assert self.open.wait(10)
        if self.blind:
            raise GenerationFailed("an image could not be encoded (code 1)")
        self._real.encode(picture)


@asynccontextmanager
async def with_eyes(model: Path) -> AsyncIterator[tuple[ModelContainer, Eyes]]:
    from backends.engines.llamacpp import engine, loading

    files, options = catalog.recognise(model), LlamaCppOptions(max_concurrent=4)
    loaded = loading.load(files, options, lambda _: True)
    eyes = Eyes(loaded.pictures)
    seeing = msgspec.structs.replace(loaded, pictures=eyes)
    container = DrivenContainer(engine.LlamaCppEngine(seeing))
    try:
        yield container, eyes
    finally:
        eyes.open.set()
        await container.aclose()


async def test_nobody_waits_for_a_look_at_another_s_picture(model: Path) -> None:
    async with with_eyes(model) as (container, eyes):
        async with container.generate(vision_contract.job(container, "red")) as outputs:
            for _ in range(3):
                assert await vision_contract.answer(container) == "nothing"
            eyes.open.set()
            pieces = [output async for output in outputs]
            assert text_of([piece for piece in pieces if isinstance(piece, Piece)]) == "red"


async def test_who_leaves_during_the_look_is_forgotten_when_it_is_over(model: Path) -> None:
    async with with_eyes(model) as (container, eyes):
        async with container.generate(vision_contract.job(container, "red")):
            await vision_contract.answer(container)  # by now it looks
            eyes.open.set()
        assert await vision_contract.answer(container, "blue") == "blue"


async def test_a_look_that_fails_fails_its_own_job_alone(model: Path) -> None:
    async with with_eyes(model) as (container, eyes):
        eyes.blind = True
        eyes.open.set()
        for _ in range(3):
            with pytest.raises(GenerationFailed, match="could not be encoded"):
                await vision_contract.answer(container, "red")
            assert await vision_contract.answer(container) == "nothing"
        eyes.blind = False
        assert await vision_contract.answer(container, "red") == "red"


async def test_it_sees_what_transformers_sees(model: Path, seeing_folder: Path) -> None:
    files = catalog.recognise(seeing_folder, "transformers")
    options = TransformersOptions(device="cpu", max_concurrent=4)
    load = catalog.BACKENDS["transformers"].container.load
    peer = await load(files, options, lambda _: None)
    try:
        async with loaded(model) as container:
            for colours in (("red",), ("black",), ("white", "green")):
                ours, theirs = [
                    await run(one, _with_logprobs(one, *colours)) for one in (container, peer)
                ]
                assert text_of(ours[0]) == text_of(theirs[0])
                assert ours[1].prompt_tokens == theirs[1].prompt_tokens
                assert _logprobs(ours[0]) == pytest.approx(_logprobs(theirs[0]), abs=0.05)
    finally:
        await peer.aclose()


def _with_logprobs(container: ModelContainer, *colours: str) -> Generation:
    asked = vision_contract.job(container, *colours)
    return Generation(
        prompt=asked.prompt, images=asked.images, sampling=GREEDY, max_tokens=20, logprobs=0
    )


def _logprobs(pieces: object) -> list[float]:
    return [logprob.chosen.logprob for piece in pieces for logprob in piece.logprobs]  # type: ignore[attr-defined]


async def test_the_places_of_many_pictures_are_found_at_once(model: Path) -> None:
    """Every token is read a few times, however many pictures there are; and none is lost."""
    async with loaded(model) as container:
        marker = container.info.image_marker or ""
        reads = Counter[int]()

        class Reading(LlamaVocabulary):
            def __init__(self) -> None:
                pass

            def piece(self, token: int) -> bytes:
                reads[token] += 1
                return container.detokenize((token,)).encode()

            def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
                return container.tokenize(text, special=special)

        for text in ("a", "a b", "", "xyz"):
            prompt = container.tokenize(f"{marker}{text}" * 40, special=True)
            reads.clear()
            between = list(pictures._between_markers(prompt, Reading()))  # noqa: SLF001
            assert [container.detokenize(tokens) for tokens in between] == ["", *[text] * 40]
            assert reads.total() <= 3 * len(prompt)
