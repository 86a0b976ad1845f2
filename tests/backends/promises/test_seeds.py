"""The same seed, parameters and prompt give the same text again, whoever else is in the batch."""

import pytest

pytest.importorskip("backends.engines.llamacpp.library")
pytest.importorskip("transformers")

import bundled
from backends.contract.protocol import ModelContainer
from config.engines import LlamaCppOptions, TransformersOptions
from tests.backends.batching import a_seed_gives_the_same_text_in_any_company
from tests.backends.pairs import quick
from tests.backends.parity import load

pytestmark = pytest.mark.anyio


async def made(name: str) -> ModelContainer:
    if name == "llamacpp":
        options = LlamaCppOptions(context_length=1024, gpu_layers=0, max_concurrent=4)
        return await load("llamacpp", options, bundled.GGUF)
    shared = TransformersOptions(device="cpu", context_length=1024, max_concurrent=4)
    return await load("transformers", shared)


@pytest.mark.parametrize("name", ["llamacpp", "transformers"])
@pytest.mark.parametrize("seed", quick(range(2), 0))
async def test_a_seed_gives_the_same_text_in_any_company(name: str, seed: int) -> None:
    container = await made(name)
    await a_seed_gives_the_same_text_in_any_company(container, seed=seed)
    await container.aclose()


@pytest.mark.long
@pytest.mark.parametrize("name", ["llamacpp", "transformers"])
async def test_however_many_they_are(name: str) -> None:
    container = await made(name)
    await a_seed_gives_the_same_text_in_any_company(container, seed=7, rounds=40)
    await container.aclose()
