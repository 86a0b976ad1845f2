"""The containers keep the contract on their stand-ins, with guesses too; and the promises about
jobs, forced tokens, and failures that the two have in common.
"""

import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest

pytest.importorskip("torch")
pytest.importorskip("tokenizers")

import torch

from backends.contract.errors import GenerationFailed, OutOfMemory
from backends.contract.protocol import Generation, ModelContainer, Piece, ThinkingBudget
from backends.contract.samplers import Sampling
from backends.engines.exllama.jobs import STRETCH
from tests.backends.constrained import PROMISES as CONSTRAINED
from tests.backends.constraints import lark, regex
from tests.backends.container_contract import GREEDY, PROMISES, Subject, job, run, text_of
from tests.backends.engines.exllama.conftest import Kind
from tests.backends.engines.exllama.machine import GREETING, STORY, STORY_TEXT, Machine, answers
from tests.patches import NOTATION, SHORT

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["plain", "guessing"])
async def subject(
    request: pytest.FixtureRequest, kind: Kind, machine: Machine
) -> AsyncIterator[Subject]:
    options = kind.guessing() if request.param == "guessing" else kind.options
    container = await kind.load(machine, options)
    yield Subject(container, prompt=GREETING, long=STORY)
    await container.aclose()
    assert machine.loaded == []


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_contract(promise: Callable[[Subject], Awaitable[None]], subject: Subject) -> None:
    await promise(subject)


@pytest.mark.parametrize("promise", CONSTRAINED, ids=lambda promise: promise.__name__)
async def test_constrained(promise: Callable[[Subject], Awaitable[None]], subject: Subject) -> None:
    await promise(subject)


@pytest.fixture
async def container(kind: Kind, machine: Machine) -> AsyncIterator[ModelContainer]:
    loaded = await kind.load(machine)
    yield loaded
    await loaded.aclose()


def asked(container: ModelContainer, text: str = GREETING, **changes: object) -> Generation:
    return job(Subject(container, GREETING, STORY), text, **changes)


# -- many requests ---------------------------------------------------------------------------------


async def test_what_left_is_cancelled_in_the_generator(
    machine: Machine, container: ModelContainer
) -> None:
    async with container.generate(asked(container, STORY)) as outputs:
        await anext(aiter(outputs))
    assert machine.generators[-1].num_remaining_jobs() == 0


async def test_the_next_turn_finds_its_beginning_in_the_cache(container: ModelContainer) -> None:
    first = asked(container, GREETING)
    pieces, ended = await run(container, first)
    assert ended.cached_tokens == 0
    answer = tuple(token for piece in pieces for token in piece.tokens)
    again = container.tokenize("<|im_end|>\n" + GREETING, special=True)
    prompt = (*first.prompt, *answer, *again)
    _, ended = await run(container, Generation(prompt=prompt, sampling=GREEDY))
    assert ended.cached_tokens >= len(first.prompt) + len(answer)


async def test_a_long_answer_goes_on_stretch_by_stretch(kind: Kind, machine: Machine) -> None:
    machine.answers[STORY] = "Puff! " * 1500
    container = await kind.load(machine, kind.with_options(context_length=2 * STRETCH + 512))
    first = asked(container, STORY, max_tokens=STRETCH + 600)
    pieces, ended = await run(container, first)
    assert ended.completion_tokens == STRETCH + 600
    assert ended.cached_tokens == 0  # what its own first stretch computed was not there before
    assert text_of(pieces).startswith("Puff! Puff!")
    _, again = await run(container, first)
    assert again.cached_tokens == len(first.prompt) - 1
    await container.aclose()


async def test_a_budget_goes_on_with_the_prompt_and_all_that_was_said(
    machine: Machine, container: ModelContainer
) -> None:
    closing = container.tokenize("enough</think>", special=False)
    budget = ThinkingBudget(
        tokens=4, closing=closing, opens=("<think>",), closes=("</think>",), is_open=True
    )
    asking = asked(container, STORY, thinking=budget, max_tokens=40, min_tokens=30)
    pieces, ended = await run(container, asking)
    said = [token for piece in pieces for token in piece.tokens]
    first, second = machine.jobs
    assert second.prompt == [*asking.prompt, *said[:4], *closing]
    assert first.max_new_tokens == 40
    assert second.max_new_tokens == 40 - 4 - len(closing)
    assert ended.completion_tokens == 40
    assert ended.cached_tokens == 0  # what its own first job computed was not there before


# -- grammars of agents' tools ---------------------------------------------------------------------

PATCHES = 200


@pytest.mark.slow
async def test_two_hundred_patches_at_a_high_temperature_all_parse(
    kind: Kind, machine: Machine
) -> None:
    """Those that came to their end: a stand-in knows nothing, and may write on."""
    container = await kind.load(machine, kind.with_options(context_length=2048))
    whole: list[str] = []

    async def patch(seed: int) -> None:
        held = Sampling(temperature=1.5, seed=seed)
        written = asked(container, constraint=lark(SHORT), sampling=held, max_tokens=900)
        pieces, ended = await run(container, written)
        if ended.cause == "end_token":
            whole.append(text_of(pieces))

    for first in range(0, 10 * PATCHES, 40):
        async with anyio.create_task_group() as tasks:
            for seed in range(first, first + 40):
                tasks.start_soon(patch, seed)
        if len(whole) >= PATCHES:
            break
    assert len(whole) >= PATCHES
    assert not [text for text in whole if not NOTATION.fullmatch(text)]
    assert len(set(whole)) > PATCHES // 2
    await container.aclose()


# -- what is drawn ---------------------------------------------------------------------------------


async def test_the_same_seed_gives_the_same_answer(container: ModelContainer) -> None:
    async def answer(seed: int) -> str:
        wild = Sampling(seed=seed, temperature=8.0)
        return text_of((await run(container, asked(container, sampling=wild, max_tokens=20)))[0])

    assert await answer(1) == await answer(1)
    assert len({await answer(seed) for seed in range(4)}) > 1


async def test_biases_and_bans_are_obeyed(container: ModelContainer) -> None:
    (think,) = container.tokenize("<think>", special=True)
    pushed = Sampling(temperature=0, logit_bias=((think, 100.0),))
    pieces, _ = await run(container, asked(container, sampling=pushed, max_tokens=3))
    assert text_of(pieces) == "<think>" * 3
    endless = Sampling(temperature=0, ban_eos=True)
    _, ended = await run(container, asked(container, sampling=endless, max_tokens=100))
    assert ended.cause == "max_tokens"
    _, ended = await run(container, asked(container, min_tokens=60))
    assert ended.completion_tokens > 60


async def test_a_banned_string_is_taken_back_with_its_tokens(container: ModelContainer) -> None:
    banned = Sampling(temperature=0, banned_strings=("help",))
    asking = asked(container, sampling=banned, logprobs=1)
    pieces, ended = await run(container, asking)
    assert "help" not in text_of(pieces).lower()
    tokens = [token for piece in pieces for token in piece.tokens]
    chosen = [logprob.chosen.token for piece in pieces for logprob in piece.logprobs]
    assert chosen == tokens
    assert container.detokenize(tokens) == text_of(pieces)
    assert ended.completion_tokens == len(tokens) + 1


async def test_logprobs_are_the_model_s_own(container: ModelContainer) -> None:
    """A bias changes what is drawn, not what the model thought of it."""
    plain, _ = await run(container, asked(container, max_tokens=1, logprobs=2))
    (best,) = plain[0].logprobs
    (other,) = container.tokenize("<think>", special=True)
    pushed = Sampling(temperature=0, logit_bias=((other, 100.0),))
    biased, _ = await run(container, asked(container, sampling=pushed, max_tokens=1, logprobs=2))
    (logprob,) = biased[0].logprobs
    assert logprob.chosen.token == other
    assert logprob.chosen.logprob < best.chosen.logprob
    assert logprob.top == best.top


async def test_guesses_that_come_true_are_handed_over_one_by_one(
    kind: Kind, machine: Machine
) -> None:
    """So that a budget may end between two of them."""
    container = await kind.load(machine, kind.guessing())
    closing = container.tokenize("enough</think>", special=False)
    budget = ThinkingBudget(
        tokens=2, closing=closing, opens=("<think>",), closes=("</think>",), is_open=True
    )
    asking = asked(container, STORY, thinking=budget, max_tokens=30, logprobs=1)
    pieces, ended = await run(container, asking)
    tokens = [token for piece in pieces for token in piece.tokens]
    assert tuple(tokens[2 : 2 + len(closing)]) == closing
    assert ended.completion_tokens == 30
    assert text_of(pieces).startswith(STORY_TEXT[:3])
    await container.aclose()


async def test_penalties_count_the_answer_alone(container: ModelContainer) -> None:
    """What the prompt says often is not held against the answer; what the answer says is."""
    (newline,) = container.tokenize("\n", special=False)
    prompt = (*[newline] * 30, *container.tokenize(GREETING, special=True))
    plain = Sampling(
        temperature=0, logit_bias=((newline, 12.0),)
    )  # above what the model is sure of
    wary = Sampling(temperature=0, logit_bias=((newline, 12.0),), frequency_penalty=1.5)

    async def said(sampling: Sampling) -> list[int]:
        job = Generation(prompt=prompt, sampling=sampling, max_tokens=4)
        pieces, _ = await run(container, job)
        return [token for piece in pieces for token in piece.tokens]

    assert await said(plain) == [newline] * 4
    assert [token == newline for token in await said(wary)] == [True, True, False, False]


# -- failures --------------------------------------------------------------------------------------


async def test_a_failed_step_fails_its_own_requests_and_a_new_generator_serves_the_next(
    machine: Machine, container: ModelContainer
) -> None:
    machine.fail_iterate = RuntimeError("CUDA error: an illegal memory access")
    with pytest.raises(GenerationFailed, match="illegal memory access"):
        await run(container, asked(container))
    pieces, _ = await run(container, asked(container))
    assert text_of(pieces) == answers()[GREETING]
    assert len(machine.generators) == 2


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"),
        RuntimeError("HIP out of memory"),
    ],
)
async def test_memory_that_runs_out_is_reported_as_such(
    error: Exception, machine: Machine, container: ModelContainer
) -> None:
    machine.fail_iterate = error
    with pytest.raises(OutOfMemory, match="out of memory"):
        await run(container, asked(container))


async def test_a_job_the_generator_refuses_fails_alone(
    machine: Machine, container: ModelContainer
) -> None:
    generator = machine.generators[-1]
    pages, generator.max_pages = generator.max_pages, 0
    with pytest.raises(GenerationFailed, match="Job requires"):
        await run(container, asked(container, STORY))
    generator.max_pages = pages
    pieces, _ = await run(container, asked(container, max_tokens=5))
    assert pieces
    assert machine.generators == [generator]


async def test_a_job_that_can_t_be_continued_fails_alone(
    machine: Machine, container: ModelContainer
) -> None:
    (forced,) = container.tokenize("~", special=False)  # in no prompt and no answer
    machine.refused_token = forced
    budget = ThinkingBudget(
        tokens=2, closing=(forced,), opens=("<think>",), closes=("</think>",), is_open=True
    )
    whole: list[str] = []

    async def answer() -> None:
        whole.append(text_of((await run(container, asked(container, STORY)))[0]))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer)
        await anyio.lowlevel.checkpoint()
        for _ in range(3):  # it never counts as the engine's failure
            with pytest.raises(GenerationFailed, match="may not"):
                await run(container, asked(container, STORY, thinking=budget, max_tokens=30))
    assert whole == [STORY_TEXT]
    assert container.failure is None
    assert len(machine.generators) == 1


async def test_cells_for_fewer_than_all_serve_all(kind: Kind, machine: Machine) -> None:
    """The generator lets jobs wait for pages; the driver does not notice."""
    container = await kind.load(machine, kind.with_options(cache_tokens=512))
    texts: list[str] = []

    async def answer() -> None:
        texts.append(text_of((await run(container, asked(container, STORY)))[0]))

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(answer)
    assert len(set(texts)) == 1
    await container.aclose()


async def test_pieces_come_while_the_answer_is_written(
    machine: Machine, container: ModelContainer
) -> None:
    machine.steps = threading.Semaphore(5)
    async with container.generate(asked(container, STORY)) as outputs:
        first = await anext(aiter(outputs))
        machine.steps.release(1000)
    assert isinstance(first, Piece)
    assert STORY_TEXT.startswith(first.text)
    assert first.text != STORY_TEXT


# -- grammars --------------------------------------------------------------------------------------


async def test_forced_tokens_are_one_new_job(machine: Machine, container: ModelContainer) -> None:
    held = lark('start: /[A-Z]/ "x and so on, and so on" /[0-9]/')
    pieces, ended = await run(container, asked(container, constraint=held))
    assert re.fullmatch("[A-Z]x and so on, and so on[0-9]", text_of(pieces))
    assert ended.cause == "end_token"
    assert len(machine.jobs) == 2


async def test_a_banned_string_within_a_grammar(container: ModelContainer) -> None:
    """The grammar goes back with the text."""
    sampling = Sampling(temperature=0, banned_strings=("help",))
    wanted = asked(container, sampling=sampling, constraint=regex("[a-zA-Z !?]*"), max_tokens=40)
    pieces, _ = await run(container, wanted)
    assert "help" not in text_of(pieces)
    assert re.fullmatch("[a-zA-Z !?]*", text_of(pieces))
