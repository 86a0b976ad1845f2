"""A draft model changes no answer, and is refused where it can't draft."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

import bundled
from backends.contract import catalog
from backends.contract.errors import LoadFailed
from backends.contract.protocol import Generation
from backends.contract.samplers import Sampling
from backends.engines.driver import DrivenContainer
from backends.engines.llamacpp import files as llama_files
from backends.engines.llamacpp import loading
from backends.engines.llamacpp.engine import LlamaCppEngine
from config.engines import DraftOptions, LlamaCppOptions, SpeculationOptions
from tests.backends.drafting import (
    OFF,
    answers,
    check_distribution,
    check_modelled_answers,
    same,
)
from tests.backends.engines.llamacpp import cache_kinds
from tests.backends.pairs import quick

pytestmark = pytest.mark.anyio
MODEL = SpeculationOptions(mode="model")
EXACT = LlamaCppOptions(
    max_concurrent=4,
    context_length=160,
    threads=1,
    cache_type_k="f32",
    cache_type_v="f32",
    flash_attention="off",
    speculation=OFF,
)
LAYOUTS = {"split": EXACT, "small pool": msgspec.structs.replace(EXACT, cache_tokens=256)}


@asynccontextmanager
async def container(path: Path, options: LlamaCppOptions) -> AsyncIterator[DrivenContainer]:
    files = catalog.recognise(path)
    made = DrivenContainer(LlamaCppEngine(loading.load(files, options, lambda _: True)))
    try:
        yield made
    finally:
        await made.aclose()


def drafted_by(path: Path, options: LlamaCppOptions = EXACT) -> LlamaCppOptions:
    draft = DraftOptions(model=str(path))
    return msgspec.structs.replace(options, speculation=MODEL, draft=draft)


@pytest.mark.parametrize("layout", quick(LAYOUTS, "small pool"))
@pytest.mark.parametrize(("kind", "small"), [("llama", "llama"), ("gemma3", "gemma3")])
async def test_greedy_answers_are_the_same(
    tmp_path: Path, kind: str, small: str, layout: str
) -> None:
    """By itself: nearly all is accepted, the more is cut where something else comes."""
    path = cache_kinds.write(kind, tmp_path / "model.gguf")
    by = cache_kinds.write(small, tmp_path / "draft.gguf")
    plain, drafting = LAYOUTS[layout], drafted_by(by, LAYOUTS[layout])
    async with container(path, plain) as expected, container(path, drafting) as tested:
        assert await check_modelled_answers(expected, tested)


@pytest.mark.parametrize("layout", quick(LAYOUTS, "small pool"))
@pytest.mark.parametrize(("kind", "small"), [("llama", "gemma3"), ("lfm2", "llama")])
async def test_another_model_s_drafts_change_nothing(
    tmp_path: Path, kind: str, small: str, layout: str
) -> None:
    """Nearly all is refused, and states are turned back."""
    path = cache_kinds.write(kind, tmp_path / "model.gguf")
    by, plain = cache_kinds.write(small, tmp_path / "draft.gguf"), LAYOUTS[layout]
    async with container(path, plain) as expected, container(path, drafted_by(by, plain)) as tested:
        assert tested.info.drafts
        await check_modelled_answers(expected, tested)


@pytest.mark.slow
async def test_what_is_sampled_has_the_same_distribution(tmp_path: Path) -> None:
    path = cache_kinds.write("llama", tmp_path / "model.gguf")
    sampling = Sampling(temperature=1.0, top_k=4)
    job = Generation(prompt=tuple(range(97, 117)), sampling=sampling, max_tokens=4)
    async with container(path, drafted_by(path)) as tested:
        assert await check_distribution(tested, job) > 400


async def test_a_model_whose_states_stay_loads_none(tmp_path: Path) -> None:
    path = cache_kinds.write("mamba", tmp_path / "model.gguf")
    files = catalog.recognise(path)
    alone = llama_files.estimate(files, EXACT)
    assert llama_files.estimate(files, drafted_by(path)) == alone
    async with container(path, drafted_by(tmp_path / "none.gguf")) as recurrent:
        assert recurrent.info.undrafted


async def test_a_seed_gives_the_same_text() -> None:
    options = msgspec.structs.replace(EXACT, context_length=512)
    fast = drafted_by(bundled.GGUF, options)
    async with container(bundled.GGUF, options) as plain, container(bundled.GGUF, fast) as tested:
        prompt = plain.tokenize("one two three four one two three four one two", special=True)
        accepted = 0
        for seed in range(6):
            sampling = Sampling(temperature=0.7, seed=seed)
            job = Generation(prompt=prompt, sampling=sampling, max_tokens=40)
            [expected], [found] = await answers(plain, [job]), await answers(tested, [job])
            same(found, expected)
            assert found.ended is not None
            accepted += found.ended.accepted_tokens
        assert accepted > 60


def test_its_memory_is_counted(tmp_path: Path) -> None:
    path = cache_kinds.write("llama", tmp_path / "model.gguf")
    files = catalog.recognise(path)
    alone, both = llama_files.estimate(files, EXACT), llama_files.estimate(files, drafted_by(path))
    assert both.weights == 2 * alone.weights
    assert both.cache == 2 * alone.cache
    loaded = loading.load(files, drafted_by(path), lambda _: True)
    try:
        assert loaded.info.memory is not None
        assert loaded.info.memory.weights == 2 * loaded_alone(path)
    finally:
        loaded.free()


def loaded_alone(path: Path) -> int:
    loaded = loading.load(catalog.recognise(path), EXACT, lambda _: True)
    try:
        assert loaded.info.memory is not None
        return loaded.info.memory.weights
    finally:
        loaded.free()


@pytest.mark.parametrize(
    ("kind", "reason"), [("mamba", "recurrent"), ("bundled", "vocabulary"), ("none", "not found")]
)
def test_what_cannot_draft_is_refused(tmp_path: Path, kind: str, reason: str) -> None:
    path = cache_kinds.write("llama", tmp_path / "model.gguf")
    by = tmp_path / "draft.gguf"
    if kind == "bundled":
        by = bundled.GGUF
    elif kind != "none":
        cache_kinds.write(kind, by)
    with pytest.raises(LoadFailed, match=reason):
        loading.load(catalog.recognise(path), drafted_by(by), lambda _: True)
