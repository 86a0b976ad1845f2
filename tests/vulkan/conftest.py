"""These tests need llama.cpp built for Vulkan, and the same device twice: `make test-vulkan`.

Mesa's device in software compiles a kernel in up to half a minute, so prompts are short, and passes
have few tokens.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest

import bundled
from backends import catalog, devices
from backends.protocol import ModelContainer
from config.engines import LlamaCppOptions

FIRST, SECOND = "vulkan:0", "vulkan:1"
SHORT = LlamaCppOptions(
    context_length=512, max_concurrent=4, micro_batch_size=32, threads=1, main_gpu=0
)
Loaded: TypeAlias = Callable[..., AbstractAsyncContextManager[ModelContainer]]


@pytest.fixture(scope="session", autouse=True)
def cards() -> dict[str, int]:
    """The devices, with their bytes. Who asks for these tests wants them run: without they fail."""
    found = {name: one.total for name, one in devices.devices().items()}
    if not {FIRST, SECOND} <= found.keys():
        pytest.fail(f"there are no two Vulkan devices, but {found or 'none'}")
    return found


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
