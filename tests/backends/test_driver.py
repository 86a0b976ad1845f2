"""When an engine fails: who is told, who goes on, and when it is given up."""

from collections.abc import AsyncIterator, Sequence

import anyio
import pytest

from backends.driver import DrivenContainer, Failed, Token
from backends.errors import BackendError, GenerationFailed, InvalidJob, OutOfMemory
from backends.protocol import Ended, Generation, ModelInfo

pytestmark = pytest.mark.anyio

END = 0
SHORT, LONG = (1,), (2,)  # prompts: a job of one token, and one that goes on


class Engine:
    """Answers every job with `a`s; a SHORT one ends after the first. Its errors are laid out."""

    def __init__(self, slots: int = 4) -> None:
        self.info = ModelInfo(
            backend="scripted",
            format="script",
            architecture="fragile",
            context_length=10,
            max_concurrent=slots,
            vocab_size=256,
            size_bytes=0,
        )
        self.admitting: list[Exception] = []
        self.stepping: list[Exception] = []
        self.recovering: list[Exception] = []
        self.failing: list[BackendError] = []  # of the first job alone
        self.pictured = 0  # tokens that the pictures of a prompt take
        self.steps = 0
        self._jobs: dict[int, int] = {}

    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
        raise NotImplementedError

    def detokenize(self, tokens: Sequence[int]) -> str:
        raise NotImplementedError

    def piece(self, token: int) -> bytes:
        return bytes((token,))

    def ends(self, token: int) -> bool:
        return token == END

    def admit(self, key: int, job: Generation) -> int:
        if self.admitting:
            raise self.admitting.pop()
        self._jobs[key] = 1 if job.prompt == SHORT else 1000
        return len(job.prompt) + self.pictured

    def step(self) -> Sequence[Token | Failed]:
        self.steps += 1
        if self.stepping:
            raise self.stepping.pop()
        first, *others = self._jobs
        begun = Failed(first, self.failing.pop()) if self.failing else self._next(first)
        return [begun, *map(self._next, others)]

    def _next(self, key: int) -> Token:
        self._jobs[key] -= 1
        return Token(key, ord("a") if self._jobs[key] >= 0 else END)

    def force(self, key: int, tokens: Sequence[int]) -> None:
        raise NotImplementedError

    def release(self, key: int) -> int:
        del self._jobs[key]
        return 0

    def recover(self) -> None:
        self._jobs.clear()
        if self.recovering:
            raise self.recovering.pop()

    def close(self) -> None:
        self._jobs.clear()


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
async def container(engine: Engine) -> AsyncIterator[DrivenContainer]:
    made = DrivenContainer(engine)
    yield made
    with anyio.fail_after(5):
        await made.aclose()


async def outcome(
    container: DrivenContainer, prompt: tuple[int, ...] = SHORT
) -> Ended | BackendError:
    """How a job ended: well, or with which error."""
    try:
        with anyio.fail_after(5):
            async with container.generate(Generation(prompt=prompt)) as outputs:
                *_, last = [output async for output in outputs]
    except BackendError as error:
        return error
    assert isinstance(last, Ended)
    return last


async def test_one_failed_step_is_forgiven(engine: Engine, container: DrivenContainer) -> None:
    engine.stepping = [ValueError("strange")]
    failed = await outcome(container)
    assert isinstance(failed, GenerationFailed)
    assert "ValueError: strange" in str(failed)
    assert isinstance(await outcome(container), Ended)
    assert container.failure is None


async def test_a_success_between_two_failures_makes_both_of_them_first_ones(
    engine: Engine, container: DrivenContainer
) -> None:
    for _ in range(3):
        engine.stepping = [ValueError("strange")]
        assert isinstance(await outcome(container), GenerationFailed)
        assert isinstance(await outcome(container), Ended)
    assert container.failure is None


async def test_after_the_second_failure_no_job_runs_and_the_reason_is_told(
    engine: Engine, container: DrivenContainer
) -> None:
    engine.stepping = [ValueError("second"), ValueError("first")]
    await outcome(container)
    await outcome(container)
    assert container.failure is not None
    assert "second" in container.failure
    steps = engine.steps
    refused = await outcome(container)
    assert isinstance(refused, GenerationFailed)
    assert "second" in str(refused)
    assert engine.steps == steps


async def test_who_waits_for_a_slot_is_told_too() -> None:
    engine = Engine(slots=1)
    engine.stepping = [ValueError("second"), ValueError("first")]
    container = DrivenContainer(engine)
    outcomes: list[Ended | BackendError] = []

    async def ask() -> None:
        outcomes.append(await outcome(container))

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(ask)
    assert [type(one) for one in outcomes] == [GenerationFailed] * 4
    await container.aclose()


async def test_an_engine_that_cannot_be_rebuilt_is_given_up_at_once(
    engine: Engine, container: DrivenContainer
) -> None:
    engine.stepping, engine.recovering = [ValueError("one")], [RuntimeError("no way back")]
    await outcome(container)
    assert container.failure is not None
    assert "no way back" in container.failure


async def test_a_job_that_fails_alone_leaves_the_others_and_the_engine_alone(
    engine: Engine, container: DrivenContainer
) -> None:
    for _ in range(3):
        engine.failing = [GenerationFailed("only me")]
        outcomes: list[Ended | BackendError] = []

        async def ask(told: list[Ended | BackendError]) -> None:
            told.append(await outcome(container, LONG))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(ask, outcomes)
        assert sorted(type(one).__name__ for one in outcomes) == [
            "Ended",
            "Ended",
            "GenerationFailed",
        ]
    assert container.failure is None


async def test_memory_may_run_out_again_and_again(
    engine: Engine, container: DrivenContainer
) -> None:
    engine.stepping = [OutOfMemory("too much"), OutOfMemory("too much")]
    for _ in range(2):
        assert isinstance(await outcome(container), OutOfMemory)
    assert container.failure is None
    assert isinstance(await outcome(container), Ended)


@pytest.mark.parametrize("error", [KeyError("odd"), MemoryError(), InvalidJob("no", "prompt")])
async def test_a_job_that_cannot_start_harms_nobody(
    engine: Engine, container: DrivenContainer, error: Exception
) -> None:
    engine.admitting = [error]
    failed = await outcome(container)
    assert isinstance(failed, InvalidJob if isinstance(error, InvalidJob) else GenerationFailed)
    assert isinstance(await outcome(container), Ended)


async def test_the_room_for_an_answer_is_what_the_engine_s_prompt_leaves(
    engine: Engine, container: DrivenContainer
) -> None:
    engine.pictured = 5
    ended = await outcome(container, LONG)
    assert isinstance(ended, Ended)
    assert ended.cause == "context_full"
    assert (ended.prompt_tokens, ended.completion_tokens) == (6, 4)
