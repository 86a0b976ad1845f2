"""llama.cpp on devices: on any of Vulkan's, which Mesa is in software (`make test-vulkan`, which
takes one for two), or on cards (`make test-gpu`, with llama.cpp built for them).

Mesa's device compiles a kernel in up to half a minute, so prompts are short, and passes have few
tokens.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest

import bundled
from backends.contract import catalog
from backends.contract.protocol import ModelContainer
from backends.machine import devices
from config.engines import LlamaCppOptions

FIRST, SECOND, *_ = (*devices.of_llamacpp(), "", "")
SHORT = LlamaCppOptions(
    context_length=512, max_concurrent=4, micro_batch_size=32, threads=1, main_gpu=0
)
Loaded: TypeAlias = Callable[..., AbstractAsyncContextManager[ModelContainer]]


@pytest.fixture(scope="session", autouse=True)
def first() -> str:
    """A device's name. Who asks for these tests wants them run: without any they fail."""
    if not FIRST:
        pytest.fail("llama.cpp finds no device here, or was built for CPUs")
    return FIRST


@pytest.fixture
def second() -> str:
    """Another device's."""
    if not SECOND:
        pytest.skip("there is one device")
    return SECOND


@pytest.fixture
def vulkan() -> None:
    """What only Vulkan's devices do, or can be told to do."""
    if not FIRST.startswith("vulkan"):
        pytest.skip(f"{FIRST} is no device of Vulkan's")


@asynccontextmanager
async def load(model: Path = bundled.GGUF, **changes: Any) -> AsyncIterator[ModelContainer]:
    """On the first device, unless `changes` of the options say otherwise."""
    options = msgspec.structs.replace(SHORT, **changes)
    files = catalog.recognise(model)
    container = await catalog.BACKENDS["llamacpp"].container.load(files, options, lambda _: None)
    try:
        yield container
    finally:
        await container.aclose()


@pytest.fixture(scope="session")
def loaded() -> Loaded:
    return load
