"""exllamav2 and exllamav3 themselves, behind our container: the contract, the same text as the
other engines, and memory that comes back. Both read the bundled safetensors.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import msgspec
import pytest
import torch

import bundled
from backends.contract.protocol import Generation, ModelContainer
from backends.contract.samplers import NEUTRAL, Sampling
from config.engines import (
    DraftOptions,
    ExLlamaOptions,
    ExLlamaV2Options,
    ExLlamaV3Options,
    LlamaCppOptions,
    TransformersOptions,
)
from tests.backends.container_contract import GREEDY, PROMISES, Subject, run
from tests.backends.parity import LOGPROB_TOLERANCE, answers, load, logprobs, prompts

T = TypeVar("T")

# What the libraries and flash-attn warn of while they are imported is their own.
pytestmark = [pytest.mark.gpu, pytest.mark.anyio, pytest.mark.filterwarnings("ignore")]

OPTIONS: Mapping[str, ExLlamaOptions] = {
    "exllamav2": ExLlamaV2Options(max_concurrent=4, context_length=1024, autosplit_reserve=(64.0,)),
    "exllamav3": ExLlamaV3Options(max_concurrent=4, context_length=1024),
}
PRECISE = TransformersOptions(device="cpu", dtype="float32", context_length=1024)
ON_CPU = LlamaCppOptions(context_length=1024, gpu_layers=0)
SLACK = 64 << 20  # bytes: what CUDA and its libraries keep for themselves now and then


async def load_ours(backend: str, **changes: Any) -> ModelContainer:
    return await load(backend, msgspec.structs.replace(OPTIONS[backend], **changes))


def test_the_extension_compiles_and_loads(library: Any, card: str) -> None:
    assert library.devices >= 1
    assert card


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_contract(
    promise: Callable[[Subject], Awaitable[None]], backend: str, library: Any
) -> None:
    container = await load_ours(backend)
    greeting, story = prompts()[1], prompts()[6]
    await promise(Subject(container, prompt=greeting, long=story))
    await container.aclose()


async def closing(container: ModelContainer, ask: Callable[[ModelContainer], Awaitable[T]]) -> T:
    """What `ask` gets of it."""
    try:
        return await ask(container)
    finally:
        await container.aclose()


async def test_the_greedy_text_is_that_of_transformers_and_llama_cpp(
    backend: str, library: Any
) -> None:
    mine = await closing(await load_ours(backend), answers)
    assert mine == await closing(await load("transformers", PRECISE), answers)
    assert mine == await closing(await load("llamacpp", ON_CPU, bundled.GGUF), answers)


async def test_logprobs_are_those_of_transformers(backend: str, library: Any) -> None:
    mine = await closing(await load_ours(backend), logprobs)
    theirs = await closing(await load("transformers", PRECISE), logprobs)
    assert mine == pytest.approx(theirs, abs=LOGPROB_TOLERANCE)


async def test_samplers_run_in_the_real_sampler(backend: str, library: Any) -> None:
    """Each at a value that works, all at once where they can be combined; the real code accepts
    them.
    """
    container = await load_ours(backend)
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
    for whole in wishes:
        lacking = whole.requested() - container.info.samplers
        neutral = {name: getattr(NEUTRAL, name) for name in lacking}
        sampling = msgspec.structs.replace(whole, **neutral)
        generation = Generation(prompt=prompt, sampling=sampling, max_tokens=24, logprobs=1)
        _, ended = await run(container, generation)
        assert ended.completion_tokens > 0
    await container.aclose()


async def test_loading_ten_times_gives_the_memory_back(backend: str, library: Any) -> None:
    free = []
    for _ in range(10):
        container = await load_ours(backend)
        prompt = container.tokenize(prompts()[0], special=True)
        await run(container, Generation(prompt=prompt, sampling=GREEDY, max_tokens=20))
        await container.aclose()
        free.append(torch.cuda.mem_get_info()[0])
    # The first load leaves CUDA's context and kernels behind; after it nothing more may go.
    assert min(free[1:]) >= free[0] - SLACK


async def test_other_caches_and_guesses_give_an_answer(backend: str, library: Any) -> None:
    for changes in (
        {"cache_type": "q6"},
        {"ngram_speculation": True, "draft": DraftOptions(tokens=3)},
    ):
        container = await load_ours(backend, **changes)
        prompt = container.tokenize(prompts()[0], special=True)
        generation = Generation(prompt=prompt, sampling=GREEDY, max_tokens=20, logprobs=2)
        pieces, ended = await run(container, generation)
        assert ended.completion_tokens > 0
        assert all(len(piece.logprobs) == len(piece.tokens) for piece in pieces)
        await container.aclose()
