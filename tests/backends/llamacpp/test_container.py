"""The llama.cpp container keeps the contract, on the bundled model."""

from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import pytest

import bundled
from backends import catalog
from backends.protocol import ModelContainer, Sampling
from config.engines import LlamaCppOptions
from tests.backends.contract import PROMISES, Subject, job, run, text_of

pytestmark = pytest.mark.anyio
GREETING = "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
COUNTING = "<|im_start|>user\nCount to 20.<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
STORY = "<|im_start|>user\nTell me a short story.<|im_end|>\n<|im_start|>assistant\n"


async def load(options: LlamaCppOptions) -> ModelContainer:
    files = catalog.recognise(bundled.GGUF)
    return await catalog.BACKENDS["llamacpp"].container.load(files, options, lambda _: None)


@pytest.fixture
async def container() -> AsyncIterator[ModelContainer]:
    loaded = await load(LlamaCppOptions(max_concurrent=4, context_length=512))
    yield loaded
    await loaded.aclose()


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_contract(promise: Callable[[Subject], Awaitable[None]], container: ModelContainer) -> None:
    await promise(Subject(container, prompt=GREETING, long=STORY))
