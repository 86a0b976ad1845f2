"""What is exllamav3's own about jobs. The rest is in tests/backends/engines/exllama."""

import msgspec
import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

from backends.contract.errors import GenerationFailed
from backends.contract.protocol import Generation, ModelContainer
from backends.engines.exllama.jobs import STRETCH
from config.engines import DraftOptions
from tests.backends.container_contract import GREEDY, Subject, job, run, text_of
from tests.backends.engines.exllama.machine import GREETING, STORY, answers
from tests.backends.engines.exllamav3.conftest import OPTIONS, load
from tests.backends.engines.exllamav3.standin import Machine

pytestmark = pytest.mark.anyio


def asked(container: ModelContainer, text: str, **changes: object) -> Generation:
    return job(Subject(container, GREETING, STORY), text, **changes)


async def test_a_long_answer_is_one_job_that_takes_its_stretches_itself(
    machine: Machine,
) -> None:
    machine.answers[STORY] = "Puff! " * 1500
    roomy = msgspec.structs.replace(OPTIONS, context_length=2 * STRETCH + 512)
    container = await load(machine, roomy)
    await run(container, asked(container, STORY, max_tokens=STRETCH + 600))
    (made,) = machine.jobs
    assert made.max_new_tokens == STRETCH + 600
    assert made.max_rq_tokens == STRETCH
    assert len(made.stretches) == 2
    await container.aclose()


async def test_a_request_can_fill_the_context_to_its_end(machine: Machine) -> None:
    """The generator keeps a token free behind the longest one: there is a page for it."""
    machine.answers[STORY] = "Puff! " * 300
    container = await load(machine, msgspec.structs.replace(OPTIONS, max_concurrent=1))
    asking = asked(container, STORY)
    _, ended = await run(container, asking)
    assert ended.cause == "context_full"
    assert ended.completion_tokens == 512 - len(asking.prompt)
    assert len(machine.jobs) == 1
    await container.aclose()


async def test_bans_hold_also_where_it_guesses(machine: Machine) -> None:
    guessing = msgspec.structs.replace(
        OPTIONS, ngram_speculation=True, draft=DraftOptions(tokens=3)
    )
    container = await load(machine, guessing)
    banned = msgspec.structs.replace(GREEDY, banned_strings=("help",))
    pieces, _ = await run(container, asked(container, GREETING, sampling=banned, logprobs=1))
    assert "help" not in text_of(pieces)
    assert all(len(piece.tokens) == len(piece.logprobs) for piece in pieces)
    await container.aclose()


async def test_a_job_that_fails_alone_disturbs_nobody(machine: Machine) -> None:
    container = await load(machine)
    for _ in range(3):
        machine.fail_job = RuntimeError("produced 7 non-finite logits")
        with pytest.raises(GenerationFailed, match="7 non-finite logits"):
            await run(container, asked(container, GREETING))
        pieces, _ = await run(container, asked(container, GREETING))
        assert text_of(pieces) == answers()[GREETING]
    assert not machine.generators[0].closed
    await container.aclose()
