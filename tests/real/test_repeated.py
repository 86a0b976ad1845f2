"""The same request says the same on a real model, whatever else keeps the machine busy: a prompt is
computed in whole blocks at fixed places, and time decides over no row's rounding.
"""

import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from backends.contract.catalog import BACKENDS
from backends.contract.protocol import Generation, Piece
from backends.contract.samplers import Sampling
from config.engines import LlamaCppOptions
from tests.real import lab

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

STARTS = 20
ASKED = (
    "<|im_start|>user\n"
    + "The harbour of a small town lies open to the wind. " * 12
    + "\nWhy do people sail?<|im_end|>\n<|im_start|>assistant\n"
)


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes compute for nothing."""
    begun = [subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in begun:
            process.kill()
            process.wait()


async def said_cold() -> str:
    """The answer of a model that was just loaded."""
    files, options = BACKENDS.recognise(lab.smollm2()), LlamaCppOptions(context_length=2048)
    container = await BACKENDS["llamacpp"].container.load(files, options, lambda _: None)
    try:
        prompt = container.tokenize(ASKED, special=True)
        job = Generation(prompt=prompt, max_tokens=40, sampling=Sampling(temperature=0.0))
        async with container.generate(job) as outputs:
            return "".join([each.text async for each in outputs if isinstance(each, Piece)])
    finally:
        await container.aclose()


async def test_twenty_cold_starts_beside_random_load_say_one_text() -> None:
    chance, said = random.Random(7), set[str]()
    for _ in range(STARTS):
        with busy(chance.randint(0, 3)):
            said.add(await said_cold())
    assert len(said) == 1, said
    assert all(said)
