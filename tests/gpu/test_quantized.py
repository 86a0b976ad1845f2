"""EXL2 and EXL3 models, which only a card computes: SmolLM2 by the packages' own quantizers says
nearly what its 16 bits say, streams, stops and is left.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.backends.container_contract import (
    PROMISES,
    Subject,
    ends_by_itself,
    stop_that_never_comes,
    two_jobs_at_once,
)
from tests.backends.parity import load
from tests.gpu import quantizers
from tests.gpu.asking import QUESTIONS, greedy
from tests.gpu.conftest import DRY
from tests.gpu.test_exllama import OPTIONS

pytestmark = [pytest.mark.gpu, pytest.mark.anyio, pytest.mark.filterwarnings("ignore")]
KINDS = {"exllamav2": "exl2", "exllamav3": "exl3"}


@pytest.fixture(scope="module")
def quantized(backend: str, request: pytest.FixtureRequest) -> Path:
    if DRY:
        pytest.skip("the quantizers need a card")
    request.getfixturevalue("library")
    return quantizers.made(KINDS[backend])


def chat(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


# Not those that compare two texts or wait for a real model's end: with 6 bits a prompt that is
# found in the cache gives other sums than one that is read.
KEPT = [
    one for one in PROMISES if one not in (ends_by_itself, two_jobs_at_once, stop_that_never_comes)
]


@pytest.mark.parametrize("promise", KEPT, ids=lambda promise: promise.__name__)
async def test_contract(
    promise: Callable[[Subject], Awaitable[None]], backend: str, quantized: Path
) -> None:
    container = await load(backend, OPTIONS[backend], quantized)
    assert container.info.format == KINDS[backend]
    greeting, story = chat("Say hello."), chat("Explain why the sky is blue.")
    await promise(Subject(container, prompt=greeting, long=story))
    await container.aclose()


async def test_it_says_nearly_what_its_16_bits_say(
    backend: str, quantized: Path, record_property: Callable[[str, Any], None]
) -> None:
    """Which token comes first, and how likely it is."""
    told: list[list[tuple[int, float]]] = []
    texts: list[list[str]] = []
    for model in (quantized, quantizers.source(KINDS[backend])):
        container = await load(backend, OPTIONS[backend], model)
        said = [await greedy(container, question) for question in QUESTIONS]
        told.append([(one.steps[0].chosen.token, one.steps[0].chosen.logprob) for one in said])
        texts.append([one.text for one in said])
        await container.aclose()
    record_property("texts", texts[0][:3])
    same = [mine for mine, theirs in zip(*told, strict=True) if mine[0] == theirs[0]]
    record_property("first tokens alike", f"{len(same)} of {len(QUESTIONS)}")
    assert len(same) >= len(QUESTIONS) - 1
    for mine, theirs in zip(*told, strict=True):
        assert mine[0] != theirs[0] or mine[1] == pytest.approx(theirs[1], abs=0.4)
