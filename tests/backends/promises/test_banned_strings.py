"""Answers go back before banned strings on every engine that can: what a client gets is as if the
tokens taken back had never been.
"""

from collections.abc import AsyncIterator

import anyio
import msgspec
import pytest

pytest.importorskip("backends.engines.llamacpp.library")
pytest.importorskip("transformers")

import bundled
from backends.contract.protocol import Ended, Generation, ModelContainer, Piece, ThinkingBudget
from backends.contract.samplers import Sampling
from config.engines import LlamaCppOptions, TransformersOptions
from tests.backends.container_contract import run, text_of
from tests.backends.engines.transformers.test_container import load_solo
from tests.backends.pairs import quick
from tests.backends.parity import load, prompts
from tests.hang import HANG

pytestmark = pytest.mark.anyio
GREEDY = Sampling(temperature=0, ban_eos=True)


ENGINES = quick(["llamacpp", "transformers", "alone"], "llamacpp", "transformers")


@pytest.fixture(params=ENGINES, scope="module")
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[ModelContainer]:
    match request.param:
        case "llamacpp":
            options = LlamaCppOptions(context_length=1024, gpu_layers=0)
            made = await load("llamacpp", options, bundled.GGUF)
        case "transformers":
            made = await load("transformers", TransformersOptions(device="cpu"))
        case _:
            made = await load_solo()
    yield made
    await made.aclose()


async def said(
    engine: ModelContainer, sampling: Sampling, limit: int = 40, **changes: object
) -> tuple[list[Piece], Ended]:
    tokens = engine.tokenize(prompts()[3], special=True)
    job = Generation(prompt=tokens, sampling=sampling, max_tokens=limit)
    return await run(engine, msgspec.structs.replace(job, **changes))


def banning(sampling: Sampling, *strings: str) -> Sampling:
    return msgspec.structs.replace(sampling, banned_strings=strings)


def tokens_of(pieces: list[Piece]) -> list[int]:
    return [token for piece in pieces for token in piece.tokens]


async def test_the_answer_is_the_same_up_to_the_string_and_goes_on_without_it(
    engine: ModelContainer,
) -> None:
    free = text_of((await said(engine, GREEDY))[0])
    banned = free[20:26]
    pieces, ended = await said(engine, banning(GREEDY, banned.upper()), logprobs=1)
    text = text_of(pieces)
    assert banned.lower() not in text.lower()
    at = free.lower().find(banned.lower())
    assert text[: max(0, at - 12)] == free[: max(0, at - 12)]
    assert len(text) > at
    assert ended.completion_tokens == len(tokens_of(pieces)) == 40
    logprobs = [one for piece in pieces for one in piece.logprobs]
    assert [one.chosen.token for one in logprobs] == tokens_of(pieces)


async def test_what_follows_is_what_the_kept_tokens_alone_lead_to(engine: ModelContainer) -> None:
    """Nothing of what was taken back is left in the cache."""
    free = text_of((await said(engine, GREEDY))[0])
    pieces, _ = await said(engine, banning(GREEDY, free[20:26]))
    tokens = tokens_of(pieces)
    tail = banning(GREEDY, free[20:26])
    prompt = (*engine.tokenize(prompts()[3], special=True), *tokens[:30])
    job = Generation(prompt=prompt, sampling=tail, max_tokens=10)
    again, _ = await run(engine, job)
    assert tokens_of(again) == tokens[30:]


@pytest.mark.parametrize("wishes", [{}, {"repetition_penalty": 1.2, "mirostat_mode": 2}])
async def test_a_seed_gives_the_same_text_again(
    engine: ModelContainer, wishes: dict[str, float]
) -> None:
    sampling = Sampling(seed=5, temperature=1.5, ban_eos=True, **wishes)  # type: ignore[arg-type]
    wish = banning(sampling, "e", "the")
    texts = [text_of((await said(engine, wish))[0]) for _ in range(2)]
    assert texts[0] == texts[1]
    assert "e" not in texts[0].lower()
    assert texts[0]


async def test_neighbours_change_nothing(engine: ModelContainer) -> None:
    wishes = [banning(Sampling(seed=seed, temperature=1.2), "a", " th") for seed in range(4)]
    alone = [text_of((await said(engine, wish, 25))[0]) for wish in wishes]
    together = [""] * len(wishes)

    async def one(place: int) -> None:
        together[place] = text_of((await said(engine, wishes[place], 25))[0])

    async with anyio.create_task_group() as tasks:
        for place in range(len(wishes)):
            tasks.start_soon(one, place)
    assert together == alone


async def test_the_thinking_budget_is_kept(engine: ModelContainer) -> None:
    closing = engine.tokenize("enough</think>", special=True)
    budget = ThinkingBudget(
        tokens=6, closing=closing, opens=("<think>",), closes=("</think>",), is_open=True
    )
    wish = banning(GREEDY, "a", "e", "enough", "</think>x")
    pieces, _ = await said(engine, wish, 60, thinking=budget)
    tokens = tokens_of(pieces)
    assert tuple(tokens[6 : 6 + len(closing)]) == closing
    before, _, after = text_of(pieces).lower().partition("enough</think>")
    assert not set("ae") & set(before + after)


async def test_stop_strings_and_banned_strings_together(engine: ModelContainer) -> None:
    free = text_of((await said(engine, GREEDY))[0])
    stop = free[20:23]
    wish = banning(GREEDY, free[20:28])
    pieces, ended = await said(engine, wish, stop=(stop,))
    assert stop not in text_of(pieces)
    assert ended.cause in ("stop_string", "max_tokens")


async def test_where_nothing_else_may_come_the_answer_ends(engine: ModelContainer) -> None:
    (token,) = engine.tokenize("a", special=False)
    wish = banning(Sampling(allowed_tokens=(token,)), "aaa")
    pieces, ended = await said(engine, wish)
    assert text_of(pieces) == "a" * len(tokens_of(pieces))
    assert "aaa" not in text_of(pieces)
    assert (ended.cause, ended.stop_string) == ("stop_string", "aaa")


async def test_everything_banned_comes_to_an_end(engine: ModelContainer) -> None:
    letters = tuple("abcdefghijklmnopqrstuvwxyz0123456789 .,;:!?'\"-<>\n")
    with anyio.fail_after(HANG):
        pieces, ended = await said(engine, banning(Sampling(seed=1), *letters))
    assert not set(letters) & set(text_of(pieces).lower())
    assert ended.completion_tokens <= len(tokens_of(pieces)) + 1  # an end token has no text
