"""The llama.cpp container keeps the contract on the bundled model, and its own promises: what is
computed once stays computed, who is long stalls nobody, and what can't be loaded is said in words.
"""

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio
import pytest

import bundled
from backends import catalog
from backends.errors import LoadFailed, OutOfMemory
from backends.protocol import Ended, Generation, ModelContainer, Progress, Sampling
from config.engines import LlamaCppOptions
from tests.backends.contract import GREEDY, PROMISES, Subject, job, run, text_of

pytestmark = pytest.mark.anyio


def asked(question: str, *, thinking: bool = False) -> str:
    opened = "" if thinking else "<think>\n\n</think>\n\n"
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{opened}"


GREETING = asked("Hello!")
STORY = asked("Tell me a short story.", thinking=True)


async def load(
    options: LlamaCppOptions,
    path: Path = bundled.GGUF,
    report: Callable[[Progress], None] = lambda _: None,
) -> ModelContainer:
    files = catalog.recognise(path)
    return await catalog.BACKENDS["llamacpp"].container.load(files, options, report)


SPLIT = LlamaCppOptions(max_concurrent=4, context_length=512)
SHARED = LlamaCppOptions(max_concurrent=4, context_length=512, cache_tokens=1024)


@pytest.fixture(params=[SPLIT, SHARED], ids=["split", "shared"])
async def container(request: pytest.FixtureRequest) -> AsyncIterator[ModelContainer]:
    loaded = await load(request.param)
    yield loaded
    await loaded.aclose()


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_contract(
    promise: Callable[[Subject], Awaitable[None]], container: ModelContainer
) -> None:
    await promise(Subject(container, prompt=GREETING, long=STORY))


def tokens_of(container: ModelContainer, text: str) -> tuple[int, ...]:
    return container.tokenize(text, special=True)


async def test_the_next_turn_computes_only_what_is_new(container: ModelContainer) -> None:
    conversation, computed = "", []
    for turn in range(6):
        conversation += asked(f"Repeat after me: word {turn}")
        prompt = tokens_of(container, conversation)
        pieces, ended = await run(
            container, Generation(prompt=prompt, sampling=GREEDY, max_tokens=20)
        )
        computed.append(ended.prompt_tokens - ended.cached_tokens)
        conversation += text_of(pieces) + "<|im_end|>\n"
    assert max(computed[1:]) <= computed[0] + 12  # a new question, not the turns before


async def test_many_alike_compute_their_beginning_once(container: ModelContainer) -> None:
    prompt = tokens_of(container, "<|im_start|>system\n" + "You are kind. " * 20 + GREETING)
    ends: list[Ended] = []

    async def answer(seed: int) -> None:
        generation = Generation(prompt=prompt, sampling=Sampling(seed=seed), max_tokens=5)
        ends.append((await run(container, generation))[1])

    async with anyio.create_task_group() as tasks:
        for seed in range(4):
            tasks.start_soon(answer, seed)
    assert sum(ended.prompt_tokens - ended.cached_tokens for ended in ends) <= len(prompt) + 3


async def test_the_same_seed_gives_the_same_answer(container: ModelContainer) -> None:
    prompt = tokens_of(container, GREETING)

    async def answer(seed: int) -> str:
        sampling = Sampling(seed=seed, temperature=2.0)
        return text_of(
            (await run(container, Generation(prompt=prompt, sampling=sampling, max_tokens=12)))[0]
        )

    assert await answer(1) == await answer(1)
    assert len({await answer(seed) for seed in range(4)}) > 1


async def test_biases_and_bans_are_obeyed(container: ModelContainer) -> None:
    prompt = tokens_of(container, GREETING)
    (token,) = tokens_of(container, "<think>")
    forced = Sampling(temperature=0, logit_bias=((token, 100.0),))
    pieces, _ = await run(container, Generation(prompt=prompt, sampling=forced, max_tokens=3))
    assert text_of(pieces) == "<think>" * 3
    endless = Sampling(temperature=0, ban_eos=True)
    _, ended = await run(container, Generation(prompt=prompt, sampling=endless, max_tokens=100))
    assert ended.cause == "max_tokens"
    _, ended = await run(container, Generation(prompt=prompt, sampling=GREEDY, min_tokens=60))
    assert ended.completion_tokens > 60


async def test_a_pool_too_small_for_all_serves_all(container: ModelContainer) -> None:
    """Four answers that fill the context each: in a pool they make room for one another."""
    prompt = tokens_of(container, GREETING)
    sampling = Sampling(temperature=0, ban_eos=True)
    ends: list[Ended] = []

    async def answer(start: int) -> None:
        ends.append(
            (await run(container, Generation(prompt=(start, *prompt), sampling=sampling)))[1]
        )

    async with anyio.create_task_group() as tasks:
        for start in range(4):
            tasks.start_soon(answer, 300 + start)
    assert [ended.cause for ended in ends] == ["context_full"] * 4
    assert {ended.prompt_tokens + ended.completion_tokens for ended in ends} == {512}


async def test_a_long_prompt_does_not_stall_the_others(container: ModelContainer) -> None:
    """While a prompt of many chunks is computed, a running answer gets its tokens."""
    story = job(
        Subject(container, GREETING, STORY), STORY, sampling=Sampling(temperature=0, ban_eos=True)
    )
    long = Generation(prompt=tuple(range(100, 500)), sampling=GREEDY, max_tokens=1)
    between = 0
    async with container.generate(story) as told:
        await anext(told)
        async with container.generate(long) as answer:
            first = anyio.Event()

            async def wait() -> None:
                await anext(answer)
                first.set()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                while not first.is_set():
                    between += len((await anext(told)).tokens)  # type: ignore[union-attr]
    assert between > 1


async def test_a_token_the_file_does_not_name_is_none(container: ModelContainer) -> None:
    special = container.info.special
    assert (special.bos, special.eos) == ("", "<|im_end|>")
    assert "<think>" in special.control


async def test_loading_reports_bytes() -> None:
    progress: list[Progress] = []
    loaded = await load(SPLIT, report=progress.append)
    await anyio.lowlevel.checkpoint()
    await loaded.aclose()
    assert progress[-1].done == progress[-1].total == bundled.GGUF.stat().st_size
    assert [step.done for step in progress] == sorted(step.done for step in progress)


async def test_an_abandoned_load_leaves_nothing() -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(load, SPLIT)
        await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    loaded = await load(SPLIT)
    await loaded.aclose()


async def test_a_file_that_changed_for_the_worse_is_an_error_in_words(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    shutil.copy(bundled.GGUF, path)
    files = catalog.recognise(path)
    path.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(LoadFailed, match=r"can't load model\.gguf"):
        await catalog.BACKENDS["llamacpp"].container.load(files, SPLIT, lambda _: None)


async def test_a_cache_that_does_not_fit_is_out_of_memory() -> None:
    with pytest.raises(OutOfMemory, match="no room"):
        await load(LlamaCppOptions(context_length=2_000_000_000, max_concurrent=1))
