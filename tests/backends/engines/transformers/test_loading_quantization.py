"""Weights quantized while they load: still the same model, still batched."""

from importlib.util import find_spec
from typing import Literal

import msgspec
import pytest

import bundled
from backends.contract import catalog
from backends.contract.errors import BackendMissing
from backends.engines.transformers.loading import load as load_model
from tests.backends.batching import GREETING, STORY, said
from tests.backends.container_contract import GREEDY
from tests.backends.engines.transformers.test_container import OPTIONS, load

pytestmark = pytest.mark.anyio

THERE = find_spec("bitsandbytes") is not None
Ways = Literal["bnb-4bit", "bnb-8bit"]


@pytest.mark.skipif(not THERE, reason="bitsandbytes isn't installed")
@pytest.mark.parametrize("way", ["bnb-4bit", "bnb-8bit"])
async def test_it_answers_as_before(way: Ways) -> None:
    whole, quantized = await load(), await load(msgspec.structs.replace(OPTIONS, quantization=way))
    try:
        assert quantized.info.max_concurrent == OPTIONS.max_concurrent  # batched
        for prompt in (GREETING, STORY):
            assert await said(quantized, prompt, GREEDY) == await said(whole, prompt, GREEDY)
    finally:
        await whole.aclose()
        await quantized.aclose()


@pytest.mark.skipif(not THERE, reason="bitsandbytes isn't installed")
@pytest.mark.parametrize(("way", "share"), [("bnb-4bit", 0.25), ("bnb-8bit", 0.35)])
def test_it_takes_less_memory(way: Ways, share: float) -> None:
    """Of float32, which is what the bundled model is computed in; its embeddings stay."""
    files = catalog.recognise(bundled.SAFETENSORS, "transformers")
    whole, quantized = (
        load_model(
            files, msgspec.structs.replace(OPTIONS, quantization=quantization), lambda _: True
        )
        for quantization in (None, way)
    )
    assert quantized.model.get_memory_footprint() < share * whole.model.get_memory_footprint()


@pytest.mark.skipif(THERE, reason="bitsandbytes is installed")
async def test_without_its_library_that_is_said() -> None:
    with pytest.raises(BackendMissing, match="needs bitsandbytes"):
        await load(msgspec.structs.replace(OPTIONS, quantization="bnb-4bit"))
