"""What is exllamav2's own about jobs: stretches of ours, no batches where flash-attn is missing.
The rest is in tests/backends/exllama.
"""

from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from backends.exllama.jobs import STRETCH
from tests.backends.contract import PROMISES, Subject, job, run
from tests.backends.exllama.machine import GREETING, STORY, answers
from tests.backends.exllamav2.conftest import OPTIONS, load
from tests.backends.exllamav2.standin import Machine

pytestmark = pytest.mark.anyio


@pytest.fixture
async def unpaged() -> AsyncIterator[Subject]:
    machine = Machine(answers(), paged=False)
    container = await load(machine)
    yield Subject(container, prompt=GREETING, long=STORY)
    await container.aclose()
    assert machine.loaded == []


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_contract(promise: Callable[[Subject], Awaitable[None]], unpaged: Subject) -> None:
    await promise(unpaged)


async def test_without_pages_jobs_run_one_after_another(unpaged: Subject) -> None:
    assert unpaged.container.info.max_concurrent == 1


async def test_a_long_answer_takes_several_jobs(machine: Machine) -> None:
    """With the same rng and the same samplers, and nothing is computed again."""
    machine.answers[STORY] = "Puff! " * 1500
    roomy = msgspec.structs.replace(OPTIONS, context_length=2 * STRETCH + 512)
    container = await load(machine, roomy)
    subject = Subject(container, prompt=GREETING, long=STORY)
    await run(container, job(subject, STORY, max_tokens=STRETCH + 100))
    assert [made.max_new_tokens for made in machine.jobs] == [STRETCH, 100]
    assert machine.jobs[1].cached_pages > 0
    assert machine.jobs[1].rng is machine.jobs[0].rng
    assert machine.jobs[1].gen_settings is machine.jobs[0].gen_settings
    await container.aclose()
