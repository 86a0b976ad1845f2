"""Random small grammars at any temperature, beside free rows: what is finished matches."""

import random
import re
from collections.abc import Awaitable, Callable

import anyio
import pytest

import bundled
from backends.contract import catalog
from backends.contract.protocol import Constraint, ModelContainer
from backends.contract.samplers import Sampling
from config.engines import LlamaCppOptions, TransformersOptions
from tests.backends.batching import GREETING, STORY
from tests.backends.constraints import regex
from tests.backends.container_contract import Subject, job, run, text_of
from tests.backends.pairs import quick

pytestmark = pytest.mark.anyio

WORDS = ("ab", "Hello", " is ", "42", ": ", "-", "é", "蒸気", "🚂", "<", '"')
CLASSES = ("[a-z]", "[0-9]", "[A-F]", "[xyzé]", "[^a-z]", "[ \\n]")


def pattern(rng: random.Random, depth: int = 3) -> str:
    """A regular expression that Python and llguidance read alike, of bounded texts."""
    if not depth:
        return rng.choice((*map(re.escape, WORDS), *CLASSES)).replace("\\-", "-")
    parts = [pattern(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    match rng.randrange(4):
        case 0:
            return f"({'|'.join(parts)})"
        case 1:
            return f"({''.join(parts)}){{{rng.randint(0, 1)},{rng.randint(1, 3)}}}"
        case _:
            return "".join(parts)


async def llamacpp() -> ModelContainer:
    files = catalog.recognise(bundled.GGUF)
    options = LlamaCppOptions(max_concurrent=6, context_length=512)
    return await catalog.BACKENDS["llamacpp"].container.load(files, options, lambda _: None)


async def transformers() -> ModelContainer:
    files = catalog.recognise(bundled.SAFETENSORS, "transformers")
    options = TransformersOptions(max_concurrent=6, context_length=512)
    return await catalog.BACKENDS["transformers"].container.load(files, options, lambda _: None)


async def fuzz(loaded: Callable[[], Awaitable[ModelContainer]], grammars: int, seed: int) -> None:
    container, rng = await loaded(), random.Random(seed)
    subject = Subject(container, prompt=GREETING, long=STORY)
    limited = anyio.CapacityLimiter(10)

    async def one(wanted: str, sampling: Sampling, forced: bool) -> None:
        constraint: Constraint = regex(wanted, fast_forward=forced)
        async with limited:
            asked = job(subject, GREETING, constraint=constraint, sampling=sampling, max_tokens=200)
            pieces, ended = await run(container, asked)
        assert ended.cause in {"end_token", "max_tokens"}
        if ended.cause == "end_token":
            assert re.fullmatch(wanted, text_of(pieces)), (wanted, text_of(pieces), sampling)

    async def free() -> None:
        async with limited:
            await run(container, job(subject, STORY, max_tokens=30))

    async with anyio.create_task_group() as tasks:
        for number in range(grammars):
            heat = rng.choice((0.0, 0.7, 1.5, 5.0))
            sampling = Sampling(temperature=heat, seed=number, top_p=rng.choice((1.0, 0.8)))
            tasks.start_soon(one, pattern(rng), sampling, rng.random() < 0.7)
            if number % 4 == 0:
                tasks.start_soon(free)
    await container.aclose()


@pytest.mark.parametrize("loaded", quick([llamacpp, transformers], llamacpp))
async def test_texts_match_their_grammar(loaded: Callable[[], Awaitable[ModelContainer]]) -> None:
    await fuzz(loaded, 60, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("loaded", [llamacpp, transformers])
async def test_many_texts_match_their_grammar(
    loaded: Callable[[], Awaitable[ModelContainer]],
) -> None:
    for seed in range(20):
        await fuzz(loaded, 150, seed)
