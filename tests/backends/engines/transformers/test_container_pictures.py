"""transformers sees: what every container that sees promises."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from backends.contract import catalog
from backends.contract.protocol import ModelContainer
from config.engines import TransformersOptions
from tests.backends import trained_vision, vision_contract

pytestmark = [pytest.mark.anyio, pytest.mark.slow]  # the model is taught first


@pytest.fixture
async def container(seeing_folder: Path) -> AsyncIterator[ModelContainer]:
    files = catalog.recognise(seeing_folder, "transformers")
    options = TransformersOptions(device="cpu", max_concurrent=4)
    loaded = await catalog.BACKENDS["transformers"].container.load(files, options, lambda _: None)
    yield loaded
    await loaded.aclose()


@pytest.mark.parametrize("promise", vision_contract.PROMISES, ids=lambda promise: promise.__name__)
async def test_it_sees(
    promise: Callable[[ModelContainer], Awaitable[None]], container: ModelContainer
) -> None:
    assert container.info.chat_template == trained_vision.TEMPLATE
    await promise(container)
