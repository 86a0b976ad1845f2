"""The llama.cpp container keeps the contract on the bundled model, and its own promises: what is
computed once stays computed, who is long stalls nobody, and what can't be loaded is said in words.
"""

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio
import msgspec
import pytest

import bundled
from backends.contract import catalog
from backends.contract.errors import CLOSED, GenerationFailed, LoadFailed, OutOfMemory
from backends.contract.protocol import Generation, ModelContainer, Progress
from backends.contract.samplers import Sampling
from backends.engines.llamacpp import loading
from config.engines import LlamaCppOptions, SpeculationOptions
from tests.backends import gguf_grown
from tests.backends.batching import BATCHING, GREETING, STORY
from tests.backends.constrained import PROMISES as CONSTRAINED
from tests.backends.container_contract import PROMISES, Subject, run, text_of
from tests.backends.loopback import over_bytes

pytestmark = pytest.mark.anyio


async def load(
    options: LlamaCppOptions,
    path: Path = bundled.GGUF,
    report: Callable[[Progress], None] = lambda _: None,
) -> ModelContainer:
    files = catalog.recognise(path)
    return await catalog.BACKENDS["llamacpp"].container.load(files, options, report)


SPLIT = LlamaCppOptions(max_concurrent=4, context_length=512)
SHARED = LlamaCppOptions(max_concurrent=4, context_length=512, cache_tokens=1024)


DRAFTING = msgspec.structs.replace(SPLIT, speculation=SpeculationOptions(mode="ngram"))
SHARED_DRAFTING = msgspec.structs.replace(SHARED, speculation=SpeculationOptions(mode="ngram"))


LAYOUTS = [
    pytest.param(SPLIT, id="split"),
    pytest.param(SHARED, id="shared", marks=pytest.mark.slow),
    pytest.param(DRAFTING, id="split with drafts", marks=pytest.mark.slow),
    pytest.param(SHARED_DRAFTING, id="shared with drafts", marks=pytest.mark.slow),
]


@pytest.fixture(params=LAYOUTS)
async def container(request: pytest.FixtureRequest) -> AsyncIterator[ModelContainer]:
    loaded = await load(request.param)
    yield loaded
    await loaded.aclose()


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_contract(
    promise: Callable[[Subject], Awaitable[None]], container: ModelContainer
) -> None:
    await promise(Subject(container, prompt=GREETING, long=STORY))


@pytest.mark.parametrize("promise", [*PROMISES, *CONSTRAINED], ids=lambda promise: promise.__name__)
async def test_contract_over_bytes(promise: Callable[[Subject], Awaitable[None]]) -> None:
    container = over_bytes(await load(SPLIT))
    try:
        await promise(Subject(container, prompt=GREETING, long=STORY))
    finally:
        await container.aclose()


@pytest.mark.parametrize("promise", CONSTRAINED, ids=lambda promise: promise.__name__)
async def test_constrained(
    promise: Callable[[Subject], Awaitable[None]], container: ModelContainer
) -> None:
    await promise(Subject(container, prompt=GREETING, long=STORY))


@pytest.mark.parametrize("promise", BATCHING, ids=lambda promise: promise.__name__)
async def test_batching(
    promise: Callable[[ModelContainer], Awaitable[None]], container: ModelContainer
) -> None:
    await promise(container)


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


async def test_a_model_that_was_read_says_the_same_whatever_becomes_of_its_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "model.gguf"
    shutil.copy(bundled.GGUF, path)
    options = msgspec.structs.replace(SPLIT, mmap=False)
    backend = catalog.BACKENDS["llamacpp"].container
    loaded = await backend.load(catalog.recognise(path), options, lambda _: None)
    asked = Generation(
        prompt=loaded.tokenize("What is 2 + 3?", special=True),
        sampling=Sampling(temperature=0),
        max_tokens=16,
    )
    before, _ = await run(loaded, asked)
    path.write_bytes(b"")  # a mapped one would end the process: SIGBUS
    after, _ = await run(loaded, asked)
    await loaded.aclose()
    assert text_of(after) == text_of(before) != ""


async def test_a_cache_that_does_not_fit_is_out_of_memory() -> None:
    with pytest.raises(OutOfMemory, match="not enough memory"):
        await load(LlamaCppOptions(context_length=2_000_000_000, max_concurrent=1))


async def test_a_model_that_is_closed_reads_no_text_and_ends_no_process() -> None:
    container = await load(SPLIT)
    (token, *_) = container.tokenize("Hello!", special=True)
    await container.aclose()
    for read in (
        lambda: container.tokenize("Hello!", special=True),
        lambda: container.detokenize([*range(token + 1)]),
    ):
        with pytest.raises(GenerationFailed, match=CLOSED):
            read()


async def test_a_token_of_no_vocabulary_has_no_text_and_ends_no_process() -> None:
    """Below the driver's check, too: llama.cpp itself would abort."""
    loaded = loading.load(catalog.recognise(bundled.GGUF), SPLIT, lambda _: True)
    try:
        for token in (-1, -(2**40), loaded.vocabulary.size, 99_999_999, 2**31, 2**64):
            assert loaded.vocabulary.detokenize((token,)) == ""
    finally:
        loaded.free()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (LlamaCppOptions(context_length=2**27, max_concurrent=256), "not enough memory"),
        (LlamaCppOptions(context_length=64, max_concurrent=257, trial="never"), "at most 256"),
    ],
)
async def test_more_than_llama_cpp_counts_is_refused_in_words(
    options: LlamaCppOptions, reason: str
) -> None:
    with pytest.raises(LoadFailed, match=reason):
        await load(options)


async def test_a_file_with_a_layer_that_predicts_further_tokens_is_loaded_without_it(
    tmp_path: Path,
) -> None:
    numbers = {"block_count": 5, "nextn_predict_layers": 1}
    path = gguf_grown.write("qwen35", tmp_path / "model.gguf", numbers)
    container = await load(LlamaCppOptions(threads=1, context_length=256), path)
    pieces, ended = await run(container, Generation(prompt=(80, 81), max_tokens=4, min_tokens=4))
    await container.aclose()
    assert ended.completion_tokens == 4
    assert pieces
