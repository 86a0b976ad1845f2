"""A world with two answers, and containers loaded in it."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import bundled
from backends.catalog import ModelFiles, recognise
from backends.exllamav2.container import load_with
from backends.protocol import ModelContainer, Progress
from config.engines import ExLlamaV2Options
from tests.backends.exllamav2.standin import World

GREETING = "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n"
STORY = "<|im_start|>user\nA story.<|im_end|>\n<|im_start|>assistant\n<think>"
STORY_TEXT = "Once there was a little engine that could pull more than anybody thought, " * 3

OPTIONS = ExLlamaV2Options(max_concurrent=4, context_length=512)

Load = Callable[..., Awaitable[ModelContainer]]


def answers() -> dict[str, str]:
    return {GREETING: "Hello! How can I help?", STORY: STORY_TEXT}


@pytest.fixture
def world() -> World:
    return World(answers())


def files(path: Path = bundled.SAFETENSORS) -> ModelFiles:
    return recognise(path, "exllamav2")


async def load(
    world: World,
    options: ExLlamaV2Options = OPTIONS,
    model: ModelFiles | None = None,
    report: Callable[[Progress], None] = lambda _: None,
) -> ModelContainer:
    return await load_with(world.library, model or files(), options, report)
