"""A world with two answers, and containers loaded in it."""

from collections.abc import Callable
from pathlib import Path

import pytest

import bundled
from backends.catalog import ModelFiles, recognise
from backends.exllamav3.container import load_with
from backends.protocol import ModelContainer, Progress
from config.engines import ExLlamaV3Options
from tests.backends.exllama.world import answers
from tests.backends.exllamav3.standin import World

OPTIONS = ExLlamaV3Options(max_concurrent=4, context_length=512)


@pytest.fixture
def world() -> World:
    return World(answers())


def files(path: Path = bundled.SAFETENSORS) -> ModelFiles:
    return recognise(path, "exllamav3")


async def load(
    world: World,
    options: ExLlamaV3Options = OPTIONS,
    model: ModelFiles | None = None,
    report: Callable[[Progress], None] = lambda _: None,
) -> ModelContainer:
    return await load_with(world.library, model or files(), options, report)
