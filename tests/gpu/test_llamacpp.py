"""llama.cpp with real weights on a card: the CPU's text, and the bytes that the ledger promised."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.engines.llamacpp.layout import WORKSPACE
from config.engines import LlamaCppOptions
from tests.backends.parity import load
from tests.gpu.asking import QUESTIONS, TIE, TIE_OF_4_BITS, greedy, near
from tests.gpu.conftest import DEVICE, DRY
from tests.real import lab

pytestmark = [pytest.mark.gpu, pytest.mark.anyio, pytest.mark.filterwarnings("ignore")]
ON_CPU = LlamaCppOptions(context_length=2048, max_concurrent=4, gpu_layers=0)
ON_CARD = ON_CPU if DRY else msgspec.structs.replace(ON_CPU, gpu_layers="auto")
MIB = 1 << 20


@pytest.fixture(scope="module", params=["Q4_1", "F16"])
def model(request: pytest.FixtureRequest) -> Path:
    return {"Q4_1": lab.smollm2, "F16": lab.smollm2_half}[request.param]()


async def test_the_greedy_text_is_the_cpus(
    model: Path, card: str, record_property: Callable[[str, Any], None]
) -> None:
    there = await load("llamacpp", ON_CARD, model)
    layers = dict(there.info.layers)
    mine = [await greedy(there, question) for question in QUESTIONS]
    await there.aclose()
    here = await load("llamacpp", ON_CPU, model)
    theirs = [await greedy(here, question) for question in QUESTIONS]
    await here.aclose()
    record_property("layers", layers)
    record_property(
        "equal", sum(one.text == other.text for one, other in zip(mine, theirs, strict=True))
    )
    assert set(layers) == {DEVICE}
    tie = TIE_OF_4_BITS if "Q4" in model.name else TIE
    both = zip(mine, theirs, strict=True)
    assert [near(one, other, tie) for one, other in both] == [""] * len(mine)


async def test_the_ledger_promises_what_the_driver_counts(
    model: Path, used: Callable[[], int], record_property: Callable[[str, Any], None]
) -> None:
    """Of a second load, since the first takes CUDA's own part along."""
    first = await load("llamacpp", ON_CARD, model)
    await greedy(first, QUESTIONS[0])
    before = used()
    second = await load("llamacpp", ON_CARD, model)
    await greedy(second, QUESTIONS[0])
    taken = used() - before
    assert second.info.memory is not None
    promised = second.info.memory.total
    await second.aclose()
    left = used() - before
    await first.aclose()
    record_property("taken_MiB", taken // MIB)
    record_property("promised_MiB", promised // MIB)
    record_property("left_MiB", left // MIB)
    record_property("buffers", second.info.buffers)
    assert left <= 16 * MIB
    assert taken == pytest.approx(promised, rel=0.15, abs=WORKSPACE)
    assert taken <= promised + 16 * MIB
