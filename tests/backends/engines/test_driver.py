"""When an engine fails: who is told, who goes on, and when it is given up."""

import threading
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise

import anyio
import msgspec
import numpy as np
import pytest
from anyio import to_thread
from hypothesis import given
from hypothesis import strategies as st

from backends.contract.beginnings import Bytes, SavedSlot
from backends.contract.errors import BackendError, GenerationFailed, InvalidJob, OutOfMemory
from backends.contract.protocol import (
    Constraint,
    Ended,
    Generation,
    Image,
    Modality,
    ModelInfo,
    Outputs,
    Piece,
    Pixels,
    SlotState,
    ThinkingBudget,
)
from backends.engines.constraints import Mask
from backends.engines.driver import DrivenContainer
from backends.engines.engine import JobFailed, Token
from backends.engines.jobs import WaitingLine
from tests.hang import HANG

pytestmark = pytest.mark.anyio

END = 0
SHORT, LONG = (1,), (2,)  # prompts: a job of one token, and one that goes on


class Engine:
    """Answers every job with `a`s; a SHORT one ends after the first. Its errors are laid out."""

    def __init__(self, slots: int = 4, length: int = 10) -> None:
        self.info = ModelInfo(
            backend="scripted",
            format="script",
            architecture="fragile",
            context_length=length,
            max_concurrent=slots,
            vocab_size=256,
            size_bytes=0,
        )
        self.admitting: list[Exception] = []
        self.stepping: list[Exception] = []
        self.recovering: list[Exception] = []
        self.failing: list[BackendError] = []  # of the first job alone
        self.releasing: list[Exception] = []
        self.reading: list[Exception] = []  # the text of a token
        self.forcing: list[Exception] = []
        self.closing: list[Exception] = []
        self.pictured = 0  # tokens that the pictures of a prompt take
        self.steps = 0
        self._jobs: dict[int, int] = {}

    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
        raise NotImplementedError

    def detokenize(self, tokens: Sequence[int]) -> str:
        raise NotImplementedError

    def piece(self, token: int) -> bytes:
        if self.reading:
            raise self.reading.pop()
        return bytes((token,))

    def ends(self, token: int) -> bool:
        return token == END

    def admit(self, key: int, job: Generation, mask: Mask | None = None) -> int:
        if self.admitting:
            raise self.admitting.pop()
        self._jobs[key] = 1 if job.prompt == SHORT else self.info.context_length
        return len(job.prompt) + self.pictured

    def step(self) -> Sequence[Token | JobFailed]:
        self.steps += 1
        if self.stepping:
            raise self.stepping.pop()
        first, *others = self._jobs
        begun = JobFailed(first, self.failing.pop()) if self.failing else self._next(first)
        return [begun, *map(self._next, others)]

    def _next(self, key: int) -> Token:
        self._jobs[key] -= 1
        return Token(key, ord("a") if self._jobs[key] >= 0 else END)

    def force(self, key: int, tokens: Sequence[int]) -> None:
        if self.forcing:
            raise self.forcing.pop()

    def rewind(self, key: int, count: int, banned: Collection[int]) -> None:
        raise NotImplementedError  # only where `info.rewinds`

    def release(self, key: int) -> int:
        if self.releasing:
            raise self.releasing.pop()
        del self._jobs[key]
        return 0

    def recover(self) -> None:
        self._jobs.clear()
        if self.recovering:
            raise self.recovering.pop()

    def close(self) -> None:
        self._jobs.clear()
        if self.closing:
            raise self.closing.pop()


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
async def container(engine: Engine) -> AsyncIterator[DrivenContainer]:
    made = DrivenContainer(engine)
    yield made
    with anyio.fail_after(HANG):
        await made.aclose()


async def outcome(
    container: DrivenContainer, prompt: tuple[int, ...] = SHORT
) -> Ended | BackendError:
    """How a job ended: well, or with which error."""
    try:
        with anyio.fail_after(HANG):
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


async def test_after_the_second_failure_no_job_runs_and_the_reason_is_reported(
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


async def test_who_waits_for_a_slot_is_reported_too() -> None:
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

        async def ask(outcomes: list[Ended | BackendError]) -> None:
            outcomes.append(await outcome(container, LONG))

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


async def test_a_job_whose_release_fails_has_ended_and_the_next_one_runs(
    engine: Engine, container: DrivenContainer
) -> None:
    engine.releasing = [RuntimeError("stuck")]
    assert isinstance(await outcome(container), Ended)
    assert isinstance(await outcome(container), Ended)
    assert container.failure is None


async def test_who_leaves_is_let_go_although_the_release_fails(
    engine: Engine, container: DrivenContainer
) -> None:
    engine.releasing = [RuntimeError("stuck")]
    with anyio.fail_after(HANG):
        async with container.generate(Generation(prompt=LONG)) as outputs:
            await anext(outputs)
    assert isinstance(await outcome(container), Ended)


async def test_a_release_that_fails_twice_ends_the_engine_with_the_reason(
    engine: Engine, container: DrivenContainer
) -> None:
    for _ in range(2):
        engine.releasing = [RuntimeError("stuck")]
        with anyio.fail_after(HANG):
            async with container.generate(Generation(prompt=LONG)) as outputs:
                await anext(outputs)
    failed = await outcome(container)
    assert isinstance(failed, GenerationFailed)
    assert "stuck" in str(failed)


async def test_a_failed_release_rebuilds_the_engine_and_the_others_are_reported() -> None:
    engine = Engine(length=1 << 40)
    container = DrivenContainer(engine)
    async with container.generate(Generation(prompt=LONG)) as outputs:
        await anext(outputs)
        engine.releasing = [RuntimeError("stuck")]
        async with container.generate(Generation(prompt=LONG)) as others:
            await anext(others)
        with anyio.fail_after(HANG), pytest.raises(GenerationFailed, match="stuck"):
            [output async for output in outputs]
    await container.aclose()


@pytest.mark.parametrize("where", ["reading", "forcing"])
async def test_a_token_that_cannot_be_handed_on_fails_its_own_job_alone(where: str) -> None:
    engine = Engine(length=1 << 40)
    container = DrivenContainer(engine)
    budget = ThinkingBudget(tokens=1, closing=(1,), opens=("<",), closes=(">",), is_open=True)
    failed: list[str] = []

    async def ask(job: Generation) -> None:
        try:
            async with container.generate(job) as outputs:
                seen = 0
                async for output in outputs:
                    seen += isinstance(output, Piece)
                    if seen == 3:
                        return
        except GenerationFailed as error:
            failed.append(str(error))

    setattr(engine, where, [ValueError("odd")])
    with anyio.fail_after(HANG):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(ask, Generation(prompt=LONG, thinking=budget))
    assert ["odd" in reason for reason in failed] == [True]
    assert container.failure is None
    assert isinstance(await outcome(container), Ended)
    await container.aclose()


async def test_a_prompt_too_long_whose_release_fails_is_still_too_long(
    engine: Engine, container: DrivenContainer
) -> None:
    engine.pictured, engine.releasing = 50, [RuntimeError("stuck")]
    assert isinstance(await outcome(container), InvalidJob)
    engine.pictured = 0
    assert isinstance(await outcome(container), Ended)


async def test_closing_is_over_although_the_engine_fails_to(engine: Engine) -> None:
    engine.closing = [RuntimeError("stuck")]
    container = DrivenContainer(engine)
    with anyio.fail_after(HANG):
        await container.aclose()


async def test_whoever_comes_after_the_end_is_reported(engine: Engine) -> None:
    container = DrivenContainer(engine)
    await container.aclose()
    failed = await outcome(container)
    assert isinstance(failed, GenerationFailed)
    assert "closed" in str(failed)


async def test_whoever_is_left_when_it_closes_is_let_go(engine: Engine) -> None:
    container = DrivenContainer(engine)
    with anyio.fail_after(HANG):
        async with container.generate(Generation(prompt=LONG)) as outputs:
            await anext(outputs)
            await container.aclose()


async def test_an_engine_whose_own_description_fails_ends_nobody_s_wait(engine: Engine) -> None:
    """What no engine should do, and the driver does not guard call by call."""
    container = DrivenContainer(engine)
    info = engine.info

    class Unsaid:
        context_length, vocab_size, modalities = 10, 256, info.modalities
        adapter_scales = info.adapter_scales

        @property
        def max_concurrent(self) -> int:
            raise ValueError("no idea")

    engine.info = Unsaid()  # type: ignore[assignment]
    failed = await outcome(container)
    assert isinstance(failed, GenerationFailed)
    assert "no idea" in str(container.failure)
    engine.info = info
    with anyio.fail_after(HANG):
        await container.aclose()


async def test_tokens_of_no_vocabulary_have_no_text(container: DrivenContainer) -> None:
    for token in (-1, 256, 99_999_999, 2**40):
        with pytest.raises(InvalidJob, match="not in the vocabulary") as caught:
            container.detokenize((1, token))
        assert caught.value.param == "prompt"


class Gated(Engine):
    """Takes a step only when it is let. `admitted` and `released` are jobs by their keys."""

    def __init__(self, slots: int = 4) -> None:
        super().__init__(slots)
        self._gate = threading.Semaphore(0)
        self.stepping_now = threading.Event()
        self.admitted: list[tuple[int, ...]] = []
        self.released: list[int] = []

    def admit(self, key: int, job: Generation, mask: Mask | None = None) -> int:
        self.admitted.append(job.prompt)
        return super().admit(key, job, mask)

    def step(self) -> Sequence[Token | JobFailed]:
        self.stepping_now.set()
        assert self._gate.acquire(timeout=HANG), "the test lets no more steps happen"
        return super().step()

    def release(self, key: int) -> int:
        self.released.append(key)
        return super().release(key) + 1

    def let(self, steps: int) -> None:
        self._gate.release(steps)

    @property
    def jobs(self) -> Collection[int]:
        return self._jobs.keys()


@asynccontextmanager
async def gated(slots: int = 4) -> AsyncIterator[tuple[Gated, DrivenContainer]]:
    engine = Gated(slots)
    container = DrivenContainer(engine)
    try:
        yield engine, container
    finally:
        engine.let(1000)
        await container.aclose()


class Keeper:
    """Of one slot, which is busy as long as the engine has a job."""

    def __init__(self, engine: Gated) -> None:
        self._engine = engine
        self.erased: list[int] = []
        self.broken: list[Exception] = []

    def cells(self) -> Sequence[int]:
        return [3]

    def places(self) -> Mapping[int, int]:
        return dict.fromkeys(self._engine.jobs, 0)

    def save(self, slot: int) -> SavedSlot:
        return SavedSlot(3, np.frombuffer(b"abc", np.uint8))

    def restore(self, slot: int, data: Bytes) -> int:
        return len(data)

    def erase(self, slot: int) -> int:
        if self.broken:
            raise self.broken.pop()
        self.erased.append(slot)
        return 3


async def test_an_order_for_a_slot_waits_until_it_is_idle_and_is_dropped_with_who_gave_it() -> None:
    engine = Gated(slots=1)
    modalities: tuple[Modality, ...] = ("text", "image")
    engine.info = msgspec.structs.replace(engine.info, keeps_slots=True, modalities=modalities)
    keeper = Keeper(engine)
    container = DrivenContainer(engine, keeper)
    tokens: list[int] = []

    async def erase() -> None:
        tokens.append(await container.slots.erase(0))

    with anyio.fail_after(HANG):
        picture = Image(1, 1, Pixels(b"rgb"))  # which isn't shown with its slot
        job = Generation(prompt=LONG, images=(picture,))
        async with container.generate(job) as outputs:
            await to_thread.run_sync(engine.stepping_now.wait, HANG)
            async with anyio.create_task_group() as leaves:
                leaves.start_soon(erase)
                await anyio.wait_all_tasks_blocked()
                leaves.cancel_scope.cancel()
            async with anyio.create_task_group() as stays:
                stays.start_soon(erase)
                await anyio.wait_all_tasks_blocked()
                engine.let(1)
                await anext(outputs)
                (state,) = await let_go_on(engine, container)
                assert (state.cells, state.job, keeper.erased) == (3, Generation(prompt=LONG), [])
                outputs.stop()
                engine.let(1000)
        assert (tokens, keeper.erased) == ([3], [0])
        assert await container.slots.restore(0, b"ab") == 2
        keeper.broken = [ValueError("odd")]
        with pytest.raises(GenerationFailed, match="odd"):
            await container.slots.erase(0)
        await container.aclose()
        with pytest.raises(GenerationFailed, match="closed"):
            await container.slots.states()


async def let_go_on(engine: Gated, container: DrivenContainer) -> Sequence[SlotState]:
    """The states of the slots, which are read between two steps."""
    states: list[Sequence[SlotState]] = []

    async def read() -> None:
        states.append(await container.slots.states())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        engine.let(1)
    return states[0]


class Compiling(Engine):
    """Has texts, which grammars need; while they are not `readable` a grammar is being compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.info = msgspec.structs.replace(self.info, constrains=True)
        self.readable = threading.Event()
        self.reading_now = threading.Event()

    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
        self.reading_now.set()
        assert self.readable.wait(HANG), "the test lets nothing be read"
        return tuple(text.encode())


GRAMMAR = '{"grammars": [{"lark_grammar": "start: /a*/"}]}'


@pytest.mark.parametrize("ending", ["runs", "is refused", "leaves"])
async def test_a_job_whose_grammar_is_compiled_leaves_nothing_behind(ending: str) -> None:
    engine = Compiling()
    container = DrivenContainer(engine)
    grammar = "{}" if ending == "is refused" else GRAMMAR
    job = Generation(prompt=SHORT, constraint=Constraint(grammar=grammar))
    ends: list[object] = []

    async def run() -> None:
        try:
            async with container.generate(job) as outputs:
                *_, last = [output async for output in outputs]
                ends.append(type(last))
        except InvalidJob as error:
            ends.append(error.param)

    with anyio.fail_after(HANG):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await to_thread.run_sync(engine.reading_now.wait, HANG)
            if ending == "leaves":
                tasks.cancel_scope.cancel()
            else:
                engine.readable.set()
        assert ends == {"runs": [Ended], "is refused": ["response_format"], "leaves": []}[ending]
        assert isinstance(await outcome(container), Ended)
        engine.readable.set()
        await container.aclose()


async def test_a_job_never_waits_behind_the_many_of_another_request() -> None:
    async with gated(slots=1) as (engine, container), AsyncExitStack() as held:

        async def ask(prompt: int, request: int | None) -> None:
            job = Generation(prompt=(prompt,), max_tokens=1, request=request)
            outputs = await held.enter_async_context(container.generate(job))
            tasks.start_soon(drained, outputs)

        async with anyio.create_task_group() as tasks:
            await ask(50, None)  # it has the slot while the others come
            await to_thread.run_sync(engine.stepping_now.wait, HANG)
            for prompt in (10, 11, 12, 13):
                await ask(prompt, 1)
            await ask(20, 2)
            await ask(21, 2)
            await ask(30, None)
            await ask(40, None)
            engine.let(1000)
    order = [prompt for (prompt,) in engine.admitted]
    assert order == [50, 10, 20, 30, 40, 11, 21, 12, 13]


async def drained(outputs: Outputs) -> None:
    async for _ in outputs:
        pass


async def test_a_job_that_is_stopped_leaves_before_the_next_step_and_tells_its_cost() -> None:
    async with (
        gated() as (engine, container),
        container.generate(Generation(prompt=LONG)) as stopped,
        container.generate(Generation(prompt=LONG)) as other,
    ):
        with anyio.fail_after(HANG):
            await to_thread.run_sync(engine.stepping_now.wait, HANG)
            stopped.stop()  # while a step goes on
            engine.let(1)
            *_, last = [output async for output in stopped]
        assert isinstance(last, Ended)
        assert (last.cause, last.prompt_tokens, last.cached_tokens) == ("stopped", 1, 1)
        assert last.completion_tokens <= 1
        assert engine.released == [1]
        stopped.stop()  # harmless
        engine.let(1000)
        *_, last = [output async for output in other]
        assert isinstance(last, Ended)
        assert last.cause == "context_full"


async def test_a_job_that_is_stopped_in_line_never_reaches_the_engine() -> None:
    async with gated(slots=1) as (engine, container):
        async with container.generate(Generation(prompt=LONG)):
            await to_thread.run_sync(engine.stepping_now.wait, HANG)
            async with container.generate(Generation(prompt=(7,))) as waiting:
                waiting.stop()
                engine.let(1)
                with anyio.fail_after(HANG):
                    (last,) = [output async for output in waiting]
            engine.let(1000)
        assert isinstance(last, Ended)
        assert (last.cause, last.completion_tokens, last.cached_tokens) == ("stopped", 0, 0)
        assert engine.admitted == [LONG]


async def test_jobs_that_are_stopped_together_leave_together() -> None:
    async with gated(slots=8) as (engine, container):
        async with AsyncExitStack() as held:
            jobs = [container.generate(Generation(prompt=LONG, request=1)) for _ in range(20)]
            outputs = [await held.enter_async_context(job) for job in jobs]
            await to_thread.run_sync(engine.stepping_now.wait, HANG)
            for one in outputs:
                one.stop()
            engine.let(1)  # only the step that has begun: a second would wait for ever
        assert engine.steps == 1


def test_a_keys_hundred_requests_delay_another_keys_by_one_turn() -> None:
    line: WaitingLine[str] = WaitingLine()
    for number in range(100):
        line.join("many", number, f"many {number}")
    line.join("few", 100, "few 0")
    line.join("few", 101, "few 1")
    came = [line.next(["many"] * 4), *(line.next() for _ in range(4))]
    assert came == ["few 0", "many 0", "few 1", "many 1", "many 2"]


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=40))
def test_the_line_loses_nobody_and_takes_turns(history: list[tuple[int, bool]]) -> None:
    line: WaitingLine[tuple[int, int]] = WaitingLine()
    there: list[tuple[int, int]] = []
    for number, (request, leaves) in enumerate(history):
        if leaves and there:
            job = there.pop(request % len(there))
            line.leave("", job[0], job)
        else:
            there.append((request, number))
            line.join("", request, (request, number))
    came = []
    while line:
        came.append(line.next())
    assert sorted(came) == sorted(there)
    for request in range(4):
        mine = [number for whose, number in came if whose == request]
        assert mine == sorted(mine)
        turns = [place for place, (whose, _) in enumerate(came) if whose == request]
        assert all(second - first <= 4 for first, second in pairwise(turns))
