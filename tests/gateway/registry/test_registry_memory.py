"""With a real engine: after an unload the memory is back, however often a model comes and goes."""

import gc

import pytest

import bundled
from backends.contract.catalog import BACKENDS
from config.engines import LlamaCppOptions
from config.settings import Config, ModelConfig, SwapConfig
from gateway.registry import History, ModelLibrary, Registry
from gateway.registry.gauges import Gauge
from gateway.terms.errors import ModelUnavailable

pytestmark = pytest.mark.anyio
pytest.importorskip("backends.engines.llamacpp.library")

CYCLES = 20
GROWTH = 1.02  # over all cycles together


@pytest.mark.slow
async def test_the_process_does_not_grow_over_many_loads_and_unloads() -> None:
    config = Config(models=(ModelConfig(name="tiny", path=str(bundled.GGUF)),))
    async with Registry(ModelLibrary(config), config, history=History(None)) as registry:
        await cycle(registry)  # the first load brings the library itself, and warms the allocators
        await cycle(registry)
        before = resident_set()
        for _ in range(CYCLES):
            await cycle(registry)
        assert resident_set() <= before * GROWTH


async def test_a_refusal_names_the_context_that_would_fit() -> None:
    def need(length: int) -> int:
        options = LlamaCppOptions(context_length=length, max_concurrent=1)
        return BACKENDS["llamacpp"].files.estimate(files, options).total

    files = BACKENDS.recognise(bundled.GGUF)
    options = {"context_length": 2048, "max_concurrent": 1}
    config = Config(
        models=(ModelConfig(name="tiny", path=str(bundled.GGUF), options=options),),
        swap=SwapConfig(memory={"cpu": need(512)}),
    )
    assert need(512) < need(1024)
    async with Registry(ModelLibrary(config), config, history=History(None)) as registry:
        with pytest.raises(ModelUnavailable, match="; with context_length of 512 it would fit"):
            async with registry.lease("tiny"):
                pass
        with pytest.raises(ModelUnavailable, match="; with context_length of 450 it would fit"):
            await registry.load("tiny", options={"context_length": 1800})


async def cycle(registry: Registry) -> None:
    """Load, use, unload."""
    async with registry.lease("tiny") as lease:
        assert lease.local.tokenize("hello", special=False)
    await registry.unload("tiny")


def resident_set() -> int:
    gc.collect()
    return Gauge().used()["cpu"]
