"""transformers on a card: the contract, the CPU's text, drafts that change nothing, and memory that
comes back.
"""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from backends.contract.protocol import ModelContainer
from config.engines import SpeculationOptions, TransformersOptions
from tests.backends.container_contract import PROMISES, Subject
from tests.backends.parity import load, prompts
from tests.gpu.asking import QUESTIONS, Said, greedy, near
from tests.gpu.conftest import DEVICE

pytestmark = [pytest.mark.gpu, pytest.mark.anyio, pytest.mark.filterwarnings("ignore")]

ON_CARD = TransformersOptions(device=DEVICE, max_concurrent=8, context_length=1024)
ON_CPU = TransformersOptions(device="cpu", dtype="float32", context_length=1024)
MIB = 1 << 20
Record = Callable[[str, Any], None]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_contract(promise: Callable[[Subject], Awaitable[None]], card: str) -> None:
    container = await load("transformers", ON_CARD)
    await promise(Subject(container, prompt=prompts()[1], long=prompts()[6]))
    await container.aclose()


async def together(container: ModelContainer) -> list[Said]:
    """All questions at once, in one batch."""
    said: dict[str, Said] = {}

    async def ask(question: str) -> None:
        said[question] = await greedy(container, question)

    async with anyio.create_task_group() as tasks:
        for question in QUESTIONS:
            tasks.start_soon(ask, question)
    return [said[question] for question in QUESTIONS]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"speculation": SpeculationOptions(mode="ngram")},
        {"attn_implementation": "eager"},
        {"dtype": "bfloat16"},
    ],
    ids=["plain", "drafts", "eager", "bfloat16"],
)
async def test_batched_text_is_the_cpus(
    changes: dict[str, Any], real: Path, card: str, record_property: Record
) -> None:
    there = await load("transformers", msgspec.structs.replace(ON_CARD, **changes), real)
    mine = await together(there)
    await there.aclose()
    here = await load("transformers", ON_CPU, real)
    theirs = [await greedy(here, question) for question in QUESTIONS]
    await here.aclose()
    equal = sum(one.text == other.text for one, other in zip(mine, theirs, strict=True))
    record_property("equal", f"{equal} of {len(mine)}")
    record_property("layers", dict(there.info.layers))
    assert [near(one, other) for one, other in zip(mine, theirs, strict=True)] == [""] * len(mine)


async def test_loads_give_the_memory_back(
    real: Path, used: Callable[[], int], record_property: Record
) -> None:
    left, taken, promised = list[int](), 0, 0
    for _ in range(5):
        container = await load("transformers", ON_CARD, real)
        await together(container)
        taken = used()
        assert container.info.memory is not None
        promised = container.info.memory.total
        await container.aclose()
        del container
        left.append(used())
    record_property("taken_MiB", (taken - left[-1]) // MIB)
    record_property("promised_MiB", promised // MIB)
    record_property("left_MiB", [size // MIB for size in left])
    assert max(left[1:]) - left[0] <= 64 * MIB
