"""exllamav3 behind our container keeps every promise."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path

import msgspec
import pytest

import bundled
from backends.contract import catalog
from backends.contract.protocol import ModelContainer
from backends.engines.exllamav3 import loading
from backends.engines.exllamav3.container import installed
from config.engines import DraftOptions, ExLlamaV3Options, TransformersOptions
from tests.backends.batching import (
    BATCHING,
    GREETING,
    STORY,
    a_seed_gives_the_same_text_in_any_company,
)
from tests.backends.constrained import PROMISES as CONSTRAINED
from tests.backends.container_contract import LASTING, Subject, closes_while_idle, ends_by_itself
from tests.backends.parity import LOGPROB_TOLERANCE, answers, load, logprobs
from tests.cardless.random_models import FAMILIES, write
from tests.cardless.test_exllamav2_architectures import NEAR, chances, expected, farthest

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ENVIRONMENT: Mapping[str, str] = {"EXL3_FUSED_SAMPLER": "0"}  # one kernel for several steps
OPTIONS = ExLlamaV3Options(max_concurrent=4, context_length=512, warmup=False)
PRECISE = TransformersOptions(device="cpu", dtype="float32", context_length=1024)
WAYS = {
    "plain": OPTIONS,
    "n-grams": msgspec.structs.replace(
        OPTIONS, ngram_speculation=True, draft=DraftOptions(tokens=3)
    ),
    "draft": msgspec.structs.replace(
        OPTIONS, draft=DraftOptions(model=str(bundled.SAFETENSORS), tokens=3)
    ),
    "quantized": msgspec.structs.replace(OPTIONS, cache_type="8,6"),
}


@pytest.fixture(params=WAYS, scope="module")
async def container(request: pytest.FixtureRequest) -> AsyncIterator[ModelContainer]:
    """Loaded once: what one promise leaves in the cache must not break the next."""
    loaded = await load("exllamav3", WAYS[request.param])
    yield loaded
    await loaded.aclose()


@pytest.fixture(scope="module")
async def plain() -> AsyncIterator[ModelContainer]:
    loaded = await load("exllamav3", OPTIONS)
    yield loaded
    await loaded.aclose()


@pytest.mark.parametrize("promise", LASTING, ids=lambda promise: promise.__name__)
async def test_contract(
    promise: Callable[[Subject], Awaitable[None]], container: ModelContainer
) -> None:
    await promise(Subject(container, prompt=GREETING, long=STORY))


@pytest.mark.parametrize("promise", CONSTRAINED, ids=lambda promise: promise.__name__)
async def test_constrained(
    promise: Callable[[Subject], Awaitable[None]], plain: ModelContainer
) -> None:
    await promise(Subject(plain, prompt=GREETING, long=STORY))


@pytest.mark.parametrize("promise", BATCHING, ids=lambda promise: promise.__name__)
async def test_batching(
    promise: Callable[[ModelContainer], Awaitable[None]], plain: ModelContainer
) -> None:
    await promise(plain)


async def test_a_seed_gives_the_same_text_in_any_company(plain: ModelContainer) -> None:
    await a_seed_gives_the_same_text_in_any_company(plain, seed=1)


async def test_it_closes_while_idle() -> None:
    subject = Subject(await load("exllamav3", OPTIONS), prompt=GREETING, long=STORY)
    await closes_while_idle(subject)


async def test_the_greedy_text_is_that_of_transformers() -> None:
    longer = msgspec.structs.replace(OPTIONS, context_length=1024)
    mine = await load("exllamav3", longer)
    theirs = await load("transformers", PRECISE)
    assert await answers(mine) == await answers(theirs)
    assert await logprobs(mine) == pytest.approx(await logprobs(theirs), abs=LOGPROB_TOLERANCE)
    await mine.aclose()
    await theirs.aclose()


async def test_a_cache_that_is_smaller_than_a_chunk_is_loaded() -> None:
    """exllamav3 refuses to load where its longest pass doesn't fit into the cache."""
    alone = msgspec.structs.replace(OPTIONS, max_concurrent=1, chunk_size=2048)
    container = await load("exllamav3", alone)
    await ends_by_itself(Subject(container, prompt=GREETING, long=STORY))
    await container.aclose()


@pytest.mark.parametrize(
    "family", ["llama 3.1", "llama, yarn", "qwen3", "phi 4 mini", "glm 4", "mistral"]
)
async def test_its_numbers_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "model", *FAMILIES[family])
    longer = msgspec.structs.replace(OPTIONS, context_length=768)
    ours, theirs = await chances(longer, folder), expected(folder)
    assert max(farthest(*pair) for pair in zip(ours, theirs, strict=True)) < NEAR


async def test_the_generator_s_own_options_are_its_own() -> None:
    """Of its prefill and its drafts."""
    chosen = msgspec.structs.replace(WAYS["draft"], prefill_cooldown=0, dynamic_draft_tokens=True)
    files = catalog.recognise(bundled.SAFETENSORS, "exllamav3")
    loaded = loading.load(files, chosen, installed(), lambda _: True)
    assert loaded.generator.prefill_cooldown == 0
    assert loaded.generator.dynamic_draft
    loaded.free()
    container = await load("exllamav3", chosen)
    await ends_by_itself(Subject(container, prompt=GREETING, long=STORY))
    await container.aclose()
