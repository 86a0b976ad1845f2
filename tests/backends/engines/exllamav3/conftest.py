"""A machine with two answers, and containers loaded in it."""

from collections.abc import Callable
from pathlib import Path

import pytest

import bundled
from backends.contract.catalog import ModelFiles, recognise
from backends.contract.protocol import ModelContainer, Progress
from backends.engines.exllama.container import driven
from backends.engines.exllamav3.container import LOADING
from config.engines import ExLlamaV3Options
from tests.backends.engines.exllama.machine import answers
from tests.backends.engines.exllamav3.standin import Machine

OPTIONS = ExLlamaV3Options(max_concurrent=4, context_length=512)


@pytest.fixture
def machine() -> Machine:
    return Machine(answers())


def files(path: Path = bundled.SAFETENSORS) -> ModelFiles:
    return recognise(path, "exllamav3")


async def load(
    machine: Machine,
    options: ExLlamaV3Options = OPTIONS,
    model: ModelFiles | None = None,
    report: Callable[[Progress], None] = lambda _: None,
) -> ModelContainer:
    return await driven(LOADING, machine.library, model or files(), options, report)
