"""The same weights give the same text, whichever engine computes them (exllamav2: tests/gpu)."""

from collections.abc import AsyncIterator

import pytest

pytest.importorskip("backends.engines.llamacpp.library")
pytest.importorskip("transformers")

import bundled
from backends.contract.protocol import ModelContainer
from config.engines import LlamaCppOptions, TransformersOptions
from tests.backends.parity import LOGPROB_TOLERANCE, answers, load, logprobs

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
async def both() -> AsyncIterator[tuple[ModelContainer, ModelContainer]]:
    precise = TransformersOptions(device="cpu", dtype="float32", context_length=1024)
    one = await load("transformers", precise)
    other = await load("llamacpp", LlamaCppOptions(context_length=1024, gpu_layers=0), bundled.GGUF)
    yield one, other
    await one.aclose()
    await other.aclose()


Both = tuple[ModelContainer, ModelContainer]


async def test_fifty_greedy_answers_are_the_same(both: Both) -> None:
    """With tools and without, thinking and not: text, cause and counts."""
    one, other = both
    theirs = await answers(one)
    assert len(theirs) == 50
    assert theirs == await answers(other)
    assert len({answer.text for answer in theirs}) > 25  # they say something


async def test_a_stop_string_ends_all_at_the_same_character(both: Both) -> None:
    """Each of these spans tokens and occurs in many of the answers."""
    one, other = both
    stops = ("er me", "o! How c", 'ity": "')
    theirs = await answers(one, stops)
    assert theirs == await answers(other, stops)
    assert sum(answer.cause == "stop_string" for answer in theirs) >= 5


async def test_logprobs_agree(both: Both) -> None:
    one, other = both
    ours = await logprobs(one)
    assert len(ours) > 40
    assert ours == pytest.approx(await logprobs(other), abs=LOGPROB_TOLERANCE)
