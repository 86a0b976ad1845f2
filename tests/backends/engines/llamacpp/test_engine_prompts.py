"""Which prompts are computed in which steps."""

import random
from collections.abc import Iterator, Sequence

import msgspec
import pytest

import bundled
from backends.contract import catalog
from backends.contract.protocol import Generation
from backends.engines.engine import PromptRead, Token
from backends.engines.llamacpp import loading
from backends.engines.llamacpp.engine import LlamaCppEngine
from backends.engines.llamacpp.sequences import IDLE
from backends.engines.prefill import BLOCK
from backends.places.kept.store import KeptStore
from config.engines import LlamaCppOptions
from tests.backends.container_contract import GREEDY
from tests.backends.places.kept.dear import DearBeginnings

OPTIONS = LlamaCppOptions(max_concurrent=4, context_length=1024, gpu_layers=0, threads=1)


@pytest.fixture
def engine() -> Iterator[LlamaCppEngine]:
    files = catalog.recognise(bundled.GGUF)
    assert files is not None
    engine = LlamaCppEngine(loading.load(files, OPTIONS, lambda _: True))
    yield engine
    engine.close()


def prompt(length: int, start: int = 0) -> tuple[int, ...]:
    """Tokens like no other's of another `start`."""
    return tuple(300 + (start + place * place) % 400 for place in range(length))


def admit(engine: LlamaCppEngine, key: int, length: int) -> None:
    engine.admit(key, Generation(prompt=prompt(length, key * 7), sampling=GREEDY), None)


def read(engine: LlamaCppEngine) -> dict[int, int]:
    """How many tokens of each prompt, by key, a step computes, besides those of answers."""
    before = {key: job.fed for key, job in engine._running.items()}  # noqa: SLF001 - counted
    left = {key: job.left for key, job in engine._running.items()}  # noqa: SLF001
    engine.step()
    after = {key: job.fed for key, job in engine._running.items()}  # noqa: SLF001
    return {
        key: after[key] - before[key] for key in after if left[key] > 1 and after[key] > before[key]
    }


def slow(engine: LlamaCppEngine) -> None:
    """As if a token of a prompt took 10 ms."""
    engine._prompts.rate = 100.0  # noqa: SLF001


def test_a_short_prompt_waits_for_one_block_of_a_long_one(engine: LlamaCppEngine) -> None:
    admit(engine, 1, 900)
    slow(engine)
    assert read(engine) == {1: BLOCK}
    admit(engine, 2, 30)
    slow(engine)
    assert read(engine) == {2: 30}
    found: list[dict[int, int]] = []
    while not found:
        slow(engine)
        found += [step for step in [read(engine)] if step]
    assert found == [{1: BLOCK}]


def test_short_prompts_that_come_together_share_a_step_up_to_a_block(
    engine: LlamaCppEngine,
) -> None:
    for key in (1, 2, 3):
        admit(engine, key, 25)
    assert read(engine) == {1: 25, 2: 25}


def test_a_piece_of_a_block_has_a_step_of_its_own(engine: LlamaCppEngine) -> None:
    """Answers are rounded as they are without it."""
    admit(engine, 1, 20)
    engine.step()
    admit(engine, 2, 300)
    tokens: list[Sequence[int]] = []
    while engine._running[2].left > 1:  # noqa: SLF001
        tokens.append([result.key for result in engine.step() if isinstance(result, Token)])
    assert [] in tokens
    assert [1] in tokens
    assert [1, 2] not in tokens


def answer(engine: LlamaCppEngine, key: int, count: int) -> list[int]:
    """`key` is answered to the end, whoever else is there."""
    tokens: list[int] = []
    while len(tokens) < count:
        tokens += [one.id for one in engine.step() if isinstance(one, Token) and one.key == key]
    return tokens


@pytest.mark.parametrize("length", [40, 200, 500])
def test_an_answer_is_the_same_whatever_load_it_met(engine: LlamaCppEngine, length: int) -> None:
    """Cold each time, beside others that come and go, at rates that a busy machine measures."""
    chance, texts = random.Random(length), set()
    for _ in range(20):
        engine.recover()
        for other in range(chance.randrange(3)):
            admit(engine, 100 + other, chance.choice([10, 60, 130, 400]))
        for _ in range(chance.randrange(4)):
            engine.step()
        engine._prompts.rate = 10 ** chance.uniform(1, 5)  # noqa: SLF001
        admit(engine, 1, length)
        texts.add(tuple(answer(engine, 1, 24)))
    assert len(texts) == 1


POOL = msgspec.structs.replace(OPTIONS, cache_tokens=4000)


def idle_cells(engine: LlamaCppEngine) -> int:
    """Cells of conversations that nobody computes, at which each token of the others looks."""
    return sum(len(slot.tokens) for slot in engine._slots if not slot.busy)  # noqa: SLF001


def answered(engine: LlamaCppEngine, key: int, length: int) -> int:
    """A whole turn; how many of its tokens were there, or were put back."""
    admit(engine, key, length)
    answer(engine, key, 3)
    return engine.release(key)


@pytest.mark.parametrize("kept", [True, False])
def test_idle_conversations_leave_a_pool_where_they_can_come_back(kept: bool) -> None:
    files = catalog.recognise(bundled.GGUF)
    assert files is not None
    engine = LlamaCppEngine(loading.load(files, POOL, lambda _: True))
    most = IDLE * files.size_bytes / files.cache_bytes_per_token
    try:
        if kept:
            engine.kept = DearBeginnings(KeptStore(memory=50_000_000), "the same", "model")
        for key in (1, 2, 3, 4):
            assert answered(engine, key, 700) == 0
        admit(engine, 5, 40)
        answer(engine, 5, 2)
        assert (idle_cells(engine) <= most) == kept
        engine.release(5)
        assert all(answered(engine, key, 700) >= 690 for key in (1, 2, 3, 4))
    finally:
        engine.close()


def test_who_waits_for_another_s_prompt_is_told_so(engine: LlamaCppEngine) -> None:
    """Without asking for it; and nobody whose prompt is read in one piece is told anything."""
    admit(engine, 1, 900)
    slow(engine)
    [told] = engine.step()
    assert isinstance(told, PromptRead)
    assert (told.progress.done, told.progress.total, told.progress.position) == (BLOCK, 900, 0)
    admit(engine, 2, 30)
    slow(engine)
    steps = [engine.step()]
    for _ in range(3):
        slow(engine)
        steps.append(engine.step())
    reports = [one for step in steps for one in step if isinstance(one, PromptRead)]
    assert all(one.key == 1 for one in reports)
    admit(engine, 3, 30)
    engine._prompts._ahead = 60.0  # noqa: SLF001 - the oldest is next
    engine._prompts.answered(1.0)  # noqa: SLF001
    slow(engine)
    [waits] = [one for one in engine.step() if isinstance(one, PromptRead) and one.key == 3]
    assert (waits.progress.position, waits.progress.done, waits.progress.total) == (1, 0, 30)
    assert waits.progress.ahead > 500


def test_what_is_forced_waits_for_one_piece_of_a_long_prompt(engine: LlamaCppEngine) -> None:
    admit(engine, 1, 20)
    answer(engine, 1, 1)
    admit(engine, 2, 900)
    for _ in range(3):
        engine.force(1, prompt(5))
        slow(engine)
        steps = [engine.step(), engine.step(), engine.step()]
        assert any(isinstance(one, Token) and one.key == 1 for step in steps[1:] for one in step)
    assert engine._running[2].left > 500  # noqa: SLF001
