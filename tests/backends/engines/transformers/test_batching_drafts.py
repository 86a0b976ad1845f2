"""Drafts change no answer of the transformers engine, for every kind of layer that can be taken
back; the others draft nothing.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from backends.contract import catalog
from backends.contract.protocol import Generation
from backends.contract.samplers import Sampling
from backends.engines.driver import DrivenContainer
from backends.engines.speculation import Speculation
from backends.engines.transformers import loading
from backends.engines.transformers.engine import TransformersEngine
from config.engines import TransformersOptions
from tests.backends.container_contract import GREEDY
from tests.backends.drafting import (
    ALWAYS,
    OFF,
    Oracle,
    answers,
    check_distribution,
    check_greedy_answers,
    same,
)
from tests.backends.engines.transformers.test_batching_architectures import BATCHED, STATEFUL, write
from tests.backends.pairs import quick

pytestmark = pytest.mark.anyio
PLAIN = TransformersOptions(
    device="cpu", threads=1, max_concurrent=4, context_length=160, speculation=OFF
)
DRAFTING = msgspec.structs.replace(PLAIN, speculation=ALWAYS)


@asynccontextmanager
async def container(
    path: Path, options: TransformersOptions, speculation: Speculation | None = None
) -> AsyncIterator[DrivenContainer]:
    files = catalog.recognise(path, "transformers")
    loaded = loading.load(files, options, lambda _: True)
    made = DrivenContainer(TransformersEngine(loaded, speculation))
    try:
        yield made
    finally:
        await made.aclose()


@pytest.fixture(scope="module", params=quick(BATCHED, "gemma3_text"))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("made") / request.param
    write(request.param, folder)
    return folder


async def test_greedy_answers_are_the_same(model: Path) -> None:
    oracle = Oracle(even=True)
    async with container(model, PLAIN) as plain, container(model, PLAIN, oracle) as tested:
        assert tested.info.drafts == (model.name not in STATEFUL)
        await check_greedy_answers(plain, tested, oracle, rounds=3)


async def test_a_seed_gives_the_same_text(tmp_path: Path) -> None:
    write("llama", tmp_path / "model")
    path = tmp_path / "model"
    async with container(path, PLAIN) as plain, container(path, DRAFTING) as fast:
        sampling = Sampling(temperature=0.3, seed=4, repetition_penalty=1.1)
        prompt = plain.tokenize("one two three four one two three four one two", special=False)
        jobs = [
            Generation(
                prompt=prompt, sampling=msgspec.structs.replace(sampling, seed=n), max_tokens=50
            )
            for n in range(6)
        ]
        for found, expected in zip(
            await answers(fast, jobs), await answers(plain, jobs), strict=True
        ):
            same(found, expected)


async def test_drafts_are_counted(tmp_path: Path) -> None:
    write("llama", tmp_path / "model")
    async with container(tmp_path / "model", DRAFTING) as drafting:
        only = msgspec.structs.replace(GREEDY, allowed_tokens=(97,))
        job = Generation(prompt=(97, 98, 99), sampling=only, max_tokens=40)
        [answer] = await answers(drafting, [job])
        ended = answer.ended
        assert ended is not None
        assert answer.tokens == [97] * 40
        assert 20 < ended.accepted_tokens <= ended.drafted_tokens < 40


@pytest.mark.slow
async def test_what_is_sampled_has_the_same_distribution(tmp_path: Path) -> None:
    write("llama", tmp_path / "model")
    letters = tuple(range(105, 109))
    sampling = Sampling(temperature=1.0, allowed_tokens=letters)
    runs = [
        [110, 111, one, two, three] for one in letters for two in letters for three in (105, 107)
    ]
    prompt = (*[token for run in runs for token in run][-100:], 110, 111)
    job = Generation(prompt=prompt, sampling=sampling, max_tokens=4)
    async with container(tmp_path / "model", DRAFTING) as drafting:
        assert await check_distribution(drafting, job) > 400
