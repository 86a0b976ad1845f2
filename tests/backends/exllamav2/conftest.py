"""A machine with two answers, and containers loaded in it."""

from collections.abc import Callable
from pathlib import Path

import pytest

import bundled
from backends.catalog import ModelFiles, recognise
from backends.exllamav2.container import load_with
from backends.protocol import ModelContainer, Progress
from config.engines import ExLlamaV2Options
from tests.backends.exllama.machine import answers
from tests.backends.exllamav2.standin import Machine

OPTIONS = ExLlamaV2Options(max_concurrent=4, context_length=512)


@pytest.fixture
def machine() -> Machine:
    return Machine(answers())


def files(path: Path = bundled.SAFETENSORS) -> ModelFiles:
    return recognise(path, "exllamav2")


async def load(
    machine: Machine,
    options: ExLlamaV2Options = OPTIONS,
    model: ModelFiles | None = None,
    report: Callable[[Progress], None] = lambda _: None,
) -> ModelContainer:
    return await load_with(machine.library, model or files(), options, report)
