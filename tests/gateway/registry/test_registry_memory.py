"""With a real engine: after an unload the memory is back, however often a model comes and goes."""

import gc

import pytest

import bundled
from config.settings import Config, ModelConfig
from gateway.registry import History, ModelLibrary, Registry
from gateway.registry.gauges import SystemGauge

pytestmark = pytest.mark.anyio
pytest.importorskip("backends.engines.llamacpp.library")

CYCLES = 20
GROWTH = 1.02  # over all cycles together


async def test_the_process_does_not_grow_over_many_loads_and_unloads() -> None:
    config = Config(models=(ModelConfig(name="tiny", path=str(bundled.GGUF)),))
    async with Registry(ModelLibrary(config), config, history=History(None)) as registry:
        await cycle(registry)  # the first load brings the library itself, and warms the allocators
        await cycle(registry)
        before = resident_set()
        for _ in range(CYCLES):
            await cycle(registry)
        assert resident_set() <= before * GROWTH


async def cycle(registry: Registry) -> None:
    """Load, use, unload."""
    async with registry.lease("tiny") as lease:
        assert lease.local.tokenize("hello", special=False)
    await registry.unload("tiny")


def resident_set() -> int:
    gc.collect()
    return SystemGauge().used()["cpu"]
