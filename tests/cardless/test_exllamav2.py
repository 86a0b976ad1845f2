"""exllamav2 behind our container keeps every promise, with pages: flash-attn is there."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import msgspec
import pytest

import bundled
from backends.contract import catalog
from backends.contract.errors import GenerationFailed, InvalidJob
from backends.contract.protocol import Generation, ModelContainer
from backends.contract.samplers import Sampling
from backends.engines.exllama.container import driven
from backends.engines.exllama.jobs import STRETCH
from backends.engines.exllamav2.container import LOADING, ExLlamaV2Library, installed
from config.engines import DraftOptions, ExLlamaV2Options
from tests.backends.batching import (
    BATCHING,
    GREETING,
    STORY,
    a_seed_gives_the_same_text_in_any_company,
)
from tests.backends.constrained import PROMISES as CONSTRAINED
from tests.backends.constraints import regex
from tests.backends.container_contract import (
    GREEDY,
    LASTING,
    Subject,
    closes_while_idle,
    ends_by_itself,
    job,
    run,
)
from tests.backends.parity import load

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

OPTIONS = ExLlamaV2Options(max_concurrent=4, context_length=512)
GUESSING = msgspec.structs.replace(OPTIONS, ngram_speculation=True, draft=DraftOptions(tokens=3))
DRAFTING = msgspec.structs.replace(
    OPTIONS, draft=DraftOptions(model=str(bundled.SAFETENSORS), tokens=3)
)
WAYS = {"plain": OPTIONS, "n-grams": GUESSING, "draft": DRAFTING}


@pytest.fixture(params=WAYS, scope="module")
async def container(request: pytest.FixtureRequest) -> AsyncIterator[ModelContainer]:
    """Loaded once: what one promise leaves in the cache must not break the next."""
    loaded = await load("exllamav2", WAYS[request.param])
    yield loaded
    await loaded.aclose()


@pytest.mark.parametrize("promise", [*LASTING, *CONSTRAINED], ids=lambda promise: promise.__name__)
async def test_contract(
    promise: Callable[[Subject], Awaitable[None]], container: ModelContainer
) -> None:
    await promise(Subject(container, prompt=GREETING, long=STORY))


@pytest.mark.parametrize("promise", BATCHING, ids=lambda promise: promise.__name__)
async def test_batching(
    promise: Callable[[ModelContainer], Awaitable[None]], container: ModelContainer
) -> None:
    await promise(container)


async def test_a_seed_gives_the_same_text_in_any_company(container: ModelContainer) -> None:
    await a_seed_gives_the_same_text_in_any_company(container, seed=1)


async def test_it_closes_while_idle() -> None:
    subject = Subject(await load("exllamav2", OPTIONS), prompt=GREETING, long=STORY)
    await closes_while_idle(subject)


@pytest.mark.parametrize("length", [1, 2])
async def test_a_short_prompt_ends_no_step_of_n_gram_speculation(length: int) -> None:
    """exllamav2 by itself would look for tokens before the first, and all jobs would fail."""
    container = await load("exllamav2", GUESSING)
    short = Generation(prompt=tuple(range(300, 300 + length)), sampling=GREEDY, max_tokens=8)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ends_by_itself, Subject(container, prompt=GREETING, long=STORY))
        _, ended = await run(container, short)
    assert ended.completion_tokens == 8
    await container.aclose()


async def test_a_long_answer_takes_several_jobs() -> None:
    """Each reserves pages for its own stretch alone, and computes nothing again."""
    roomy = msgspec.structs.replace(OPTIONS, context_length=STRETCH + 512, max_concurrent=1)
    container = await load("exllamav2", roomy)
    prompt = container.tokenize(STORY, special=True)
    endless = Sampling(temperature=0, ban_eos=True)
    asked = Generation(prompt=prompt, sampling=endless, max_tokens=STRETCH + 40)
    _, ended = await run(container, asked)
    assert ended.completion_tokens == STRETCH + 40
    assert ended.cached_tokens == 0  # what its own first stretch computed was not there before
    await container.aclose()


# -- failures --------------------------------------------------------------------------------------


def broken_library(steps: int) -> ExLlamaV2Library:
    """Whose first generator's step after so many fails."""
    library = installed()
    left = [steps]

    class Generator(library.generator):  # type: ignore[misc, name-defined]
        def iterate(self) -> Any:
            left[0] -= 1
            if left[0] == -1:
                raise RuntimeError("CUDA error: an illegal memory access")
            return super().iterate()

    return msgspec.structs.replace(library, generator=Generator)


async def test_a_failed_step_fails_its_requests_and_a_new_generator_serves_the_next() -> None:
    files = catalog.recognise(bundled.SAFETENSORS, "exllamav2")
    container = await driven(LOADING, lambda: broken_library(3), files, OPTIONS, lambda _: None)
    subject = Subject(container, prompt=GREETING, long=STORY)
    with pytest.raises(GenerationFailed, match="illegal memory access"):
        await run(container, job(subject, STORY))
    await ends_by_itself(subject)
    await container.aclose()


async def test_what_one_job_s_sampler_can_t_do_is_that_job_s_failure(
    container: ModelContainer,
) -> None:
    subject = Subject(container, prompt=GREETING, long=STORY)
    both = container.tokenize("a", special=False) + container.tokenize("b", special=False)
    contradiction = job(
        subject, GREETING, sampling=Sampling(banned_tokens=both), constraint=regex("(a|b)")
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ends_by_itself, subject)
        with pytest.raises(InvalidJob, match="no token is left"):
            await run(container, contradiction)
