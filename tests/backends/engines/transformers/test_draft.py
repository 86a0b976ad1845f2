"""A draft model changes no answer, and is refused where it can't draft."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

pytest.importorskip("transformers")

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import bundled
from backends.contract import catalog
from backends.contract.errors import LoadFailed
from backends.contract.protocol import Generation
from backends.contract.samplers import Sampling
from backends.engines.driver import DrivenContainer
from backends.engines.transformers import files as its_files
from backends.engines.transformers import loading
from backends.engines.transformers.engine import TransformersEngine
from benchmarks.vocabulary import tokenizer
from config.engines import DraftOptions, SpeculationOptions, TransformersOptions
from tests.backends.drafting import (
    OFF,
    answers,
    check_distribution,
    check_modelled_answers,
    same,
)

pytestmark = pytest.mark.anyio
EXACT = TransformersOptions(
    device="cpu", max_concurrent=4, context_length=256, threads=1, speculation=OFF
)
DRAFTED = msgspec.structs.replace(
    EXACT,
    speculation=SpeculationOptions(mode="model"),
    draft=DraftOptions(model=str(bundled.SAFETENSORS)),
)


@asynccontextmanager
async def container(options: TransformersOptions) -> AsyncIterator[DrivenContainer]:
    files = catalog.recognise(bundled.SAFETENSORS, "transformers")
    made = DrivenContainer(TransformersEngine(loading.load(files, options, lambda _: True)))
    try:
        yield made
    finally:
        await made.aclose()


@pytest.mark.slow
async def test_greedy_answers_are_the_same() -> None:
    async with container(EXACT) as plain, container(DRAFTED) as tested:
        assert await check_modelled_answers(plain, tested, rounds=3) > 20


@pytest.mark.slow
async def test_a_seed_gives_the_same_text() -> None:
    async with container(EXACT) as plain, container(DRAFTED) as tested:
        prompt = plain.tokenize("one two three four one two three four one two", special=True)
        accepted = 0
        for seed in range(4):
            sampling = Sampling(temperature=0.7, seed=seed)
            job = Generation(prompt=prompt, sampling=sampling, max_tokens=40)
            [expected], [found] = await answers(plain, [job]), await answers(tested, [job])
            same(found, expected)
            assert found.ended is not None
            accepted += found.ended.accepted_tokens
        assert accepted > 40


@pytest.mark.slow
async def test_what_is_sampled_has_the_same_distribution() -> None:
    sampling = Sampling(temperature=1.0, top_k=4)
    async with container(DRAFTED) as tested:
        prompt = tested.tokenize("Once upon a time", special=True)
        job = Generation(prompt=prompt, sampling=sampling, max_tokens=4)
        assert await check_distribution(tested, job) > 400


def test_its_memory_is_counted() -> None:
    files = catalog.recognise(bundled.SAFETENSORS, "transformers")
    alone, both = its_files.estimate(files, EXACT), its_files.estimate(files, DRAFTED)
    assert both.weights == 2 * alone.weights
    loaded = loading.load(files, DRAFTED, lambda _: True)
    try:
        assert loaded.info.memory is not None
        assert alone.weights < loaded.info.memory.weights <= both.weights
    finally:
        loaded.free()


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    config = LlamaConfig(vocab_size=512, num_attention_heads=2, **sizes)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    tokenizer(512).save(str(tmp_path / "tokenizer.json"))
    options = msgspec.structs.replace(DRAFTED, draft=DraftOptions(model=str(tmp_path)))
    files = catalog.recognise(bundled.SAFETENSORS, "transformers")
    with pytest.raises(LoadFailed, match="another vocabulary"):
        loading.load(files, options, lambda _: True)
