"""exllamav2 itself, behind our container: the contract, the same text as the other engines, and
memory that comes back.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
import torch

import bundled
from backends.exllamav2.library import Library
from backends.protocol import Generation, ModelContainer, Sampling
from config.engines import ExLlamaV2Options, LlamaCppOptions, TransformersOptions
from tests.backends.contract import GREEDY, PROMISES, Subject, run
from tests.backends.parity import LOGPROB_TOLERANCE, answers, load, logprobs, prompts

T = TypeVar("T")

# What exllamav2 and flash-attn warn of while they are imported is their own.
pytestmark = [pytest.mark.gpu, pytest.mark.anyio, pytest.mark.filterwarnings("ignore")]

OPTIONS = ExLlamaV2Options(max_concurrent=4, context_length=1024, autosplit_reserve=(64.0,))
PRECISE = TransformersOptions(device="cpu", dtype="float32", context_length=1024)
ON_CPU = LlamaCppOptions(context_length=1024, gpu_layers=0)
SLACK = 64 << 20  # bytes: what CUDA and its libraries keep for themselves now and then


async def load_ours(library: Library) -> ModelContainer:
    return await load("exllamav2", OPTIONS)


def test_the_extension_compiles_and_loads(library: Library, card: str) -> None:
    assert library.devices >= 1
    assert card


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_contract(promise: Callable[[Subject], Awaitable[None]], library: Library) -> None:
    container = await load_ours(library)
    greeting, story = prompts()[1], prompts()[6]
    await promise(Subject(container, prompt=greeting, long=story))
    await container.aclose()


async def closing(container: ModelContainer, ask: Callable[[ModelContainer], Awaitable[T]]) -> T:
    """What `ask` gets of it."""
    try:
        return await ask(container)
    finally:
        await container.aclose()


async def test_the_greedy_text_is_that_of_transformers_and_llama_cpp(library: Library) -> None:
    mine = await closing(await load_ours(library), answers)
    assert mine == await closing(await load("transformers", PRECISE), answers)
    assert mine == await closing(await load("llamacpp", ON_CPU, bundled.GGUF), answers)


async def test_logprobs_are_those_of_transformers(library: Library) -> None:
    mine = await closing(await load_ours(library), logprobs)
    theirs = await closing(await load("transformers", PRECISE), logprobs)
    assert mine == pytest.approx(theirs, abs=LOGPROB_TOLERANCE)


async def test_samplers_run_in_the_real_sampler(library: Library) -> None:
    """Each at a value that works, all at once where they can be combined; the real code accepts
    them.
    """
    container = await load_ours(library)
    prompt = container.tokenize(prompts()[0], special=True)
    wishes = (
        Sampling(seed=1, temperature=0.8, top_k=40, top_p=0.9, min_p=0.02, top_a=0.1, tfs=0.95),
        Sampling(typical_p=0.9, skew=0.2, smoothing_factor=0.3, temperature_last=True),
        Sampling(min_temp=0.5, max_temp=1.5, xtc_probability=0.5, xtc_threshold=0.1),
        Sampling(mirostat_mode=2),
        Sampling(repetition_penalty=1.1, frequency_penalty=0.1, repetition_decay=64),
        Sampling(dry_multiplier=0.8, dry_range=64),
        Sampling(banned_strings=("the", "hello"), logit_bias=((5, 1.0),), ban_eos=True),
        Sampling(allowed_tokens=tuple(range(100, 200))),
    )
    for sampling in wishes:
        generation = Generation(prompt=prompt, sampling=sampling, max_tokens=24, logprobs=1)
        _, ended = await run(container, generation)
        assert ended.completion_tokens > 0
    await container.aclose()


async def test_loading_ten_times_gives_the_memory_back(library: Library) -> None:
    free = []
    for _ in range(10):
        container = await load_ours(library)
        prompt = container.tokenize(prompts()[0], special=True)
        await run(container, Generation(prompt=prompt, sampling=GREEDY, max_tokens=20))
        await container.aclose()
        free.append(torch.cuda.mem_get_info()[0])
    # The first load leaves CUDA's context and kernels behind; after it nothing more may go.
    assert min(free[1:]) >= free[0] - SLACK
