"""What a container that batches promises besides the contract, on the bundled model: what is
computed once stays computed, who is long stalls nobody, and a scarce cache serves all.

For containers with four jobs at once and a context of 512 tokens.
"""

import random

import anyio

from backends.contract.protocol import Ended, Generation, ModelContainer, Piece
from backends.contract.samplers import Sampling
from tests.backends.container_contract import GREEDY, Subject, job, run, text_of


def asked(question: str, *, thinking: bool = False) -> str:
    opened = "" if thinking else "<think>\n\n</think>\n\n"
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{opened}"


GREETING = asked("Hello!")
STORY = asked("Tell me a short story.", thinking=True)
ENDLESS = Sampling(temperature=0, ban_eos=True)


def tokens_of(container: ModelContainer, text: str) -> tuple[int, ...]:
    return container.tokenize(text, special=True)


async def said(container: ModelContainer, prompt: str, sampling: Sampling, limit: int = 12) -> str:
    tokens = tokens_of(container, prompt)
    generation = Generation(prompt=tokens, sampling=sampling, max_tokens=limit)
    return text_of((await run(container, generation))[0])


async def the_next_turn_computes_only_what_is_new(container: ModelContainer) -> None:
    """A conversation's earlier turns are found in the cache."""
    conversation, computed = "", []
    for turn in range(6):
        conversation += asked(f"Repeat after me: word {turn}")
        prompt = tokens_of(container, conversation)
        generation = Generation(prompt=prompt, sampling=GREEDY, max_tokens=20)
        pieces, ended = await run(container, generation)
        computed.append(ended.prompt_tokens - ended.cached_tokens)
        conversation += text_of(pieces) + "<|im_end|>\n"
    assert max(computed[1:]) <= computed[0] + 12  # a new question, not the turns before


async def many_alike_compute_their_beginning_once(container: ModelContainer) -> None:
    """Also when they come together."""
    prompt = tokens_of(container, "<|im_start|>system\n" + "You are kind. " * 10 + GREETING)
    ends: list[Ended] = []

    async def one(seed: int) -> None:
        generation = Generation(prompt=prompt, sampling=Sampling(seed=seed), max_tokens=5)
        ends.append((await run(container, generation))[1])

    async with anyio.create_task_group() as tasks:
        for seed in range(4):
            tasks.start_soon(one, seed)
    assert sum(ended.prompt_tokens - ended.cached_tokens for ended in ends) <= len(prompt) + 3


async def a_seed_decides(container: ModelContainer) -> None:
    """The same seed, the same answer; others differ."""
    hot = [Sampling(seed=seed, temperature=5.0) for seed in (1, 1, 2, 3, 4)]
    answers = [await said(container, GREETING, sampling) for sampling in hot]
    assert answers[0] == answers[1]
    assert len(set(answers)) > 1


async def biases_and_bans_are_obeyed(container: ModelContainer) -> None:
    """Logit bias, allowed and banned tokens, the end token banned for good or for a while."""
    (token,) = tokens_of(container, "<think>")
    bias = ((token, 100.0),)
    for forced in (Sampling(temperature=0, logit_bias=bias), Sampling(allowed_tokens=(token,))):
        assert await said(container, GREETING, forced, 3) == "<think>" * 3
    banned = Sampling(temperature=0, logit_bias=bias, banned_tokens=(token,))
    assert "<think>" not in await said(container, GREETING, banned, 3)
    prompt = tokens_of(container, GREETING)
    _, ended = await run(container, Generation(prompt=prompt, sampling=ENDLESS, max_tokens=100))
    assert ended.cause == "max_tokens"
    _, ended = await run(container, Generation(prompt=prompt, sampling=GREEDY, min_tokens=60))
    assert ended.completion_tokens > 60


async def answers_that_fill_the_context_all_end(container: ModelContainer) -> None:
    """Four at once: where the cache is scarce they make room for one another."""
    prompt = tokens_of(container, GREETING)
    ends: list[Ended] = []

    async def fill(start: int) -> None:
        generation = Generation(prompt=(start, *prompt), sampling=ENDLESS)
        ends.append((await run(container, generation))[1])

    async with anyio.create_task_group() as tasks:
        for start in range(4):
            tasks.start_soon(fill, 300 + start)
    assert [ended.cause for ended in ends] == ["context_full"] * 4
    assert {ended.prompt_tokens + ended.completion_tokens for ended in ends} == {512}


async def a_long_prompt_does_not_stall_the_others(container: ModelContainer) -> None:
    """While a prompt of many chunks is computed, a running answer gets its tokens."""
    story = job(Subject(container, GREETING, STORY), STORY, sampling=ENDLESS)
    long = Generation(prompt=tuple(range(100, 500)), sampling=GREEDY, max_tokens=1)
    between = 0
    async with container.generate(story) as answer:
        await anext(answer)
        async with container.generate(long) as outputs:
            first = anyio.Event()

            async def wait() -> None:
                await anext(outputs)
                first.set()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                async for output in answer:  # it may end before the other's first is heard of
                    between += len(output.tokens) if isinstance(output, Piece) else 0
                    if first.is_set():
                        break
    assert between > 1


BATCHING = (
    the_next_turn_computes_only_what_is_new,
    many_alike_compute_their_beginning_once,
    a_seed_decides,
    biases_and_bans_are_obeyed,
    answers_that_fill_the_context_all_end,
    a_long_prompt_does_not_stall_the_others,
)


COMPANY = (
    Sampling(temperature=0, repetition_penalty=1.3),
    Sampling(seed=1, temperature=0.9),
    Sampling(seed=2, top_p=0.9, min_p=0.02, temperature=1.3, temperature_last=True),
    Sampling(seed=3, min_temp=0.5, max_temp=1.5, xtc_probability=0.5, xtc_threshold=0.05),
    Sampling(seed=4, typical_p=0.8, tfs=0.95, top_a=0.05, smoothing_factor=0.1),
    Sampling(seed=5, mirostat_mode=1, mirostat_tau=3.0),
    Sampling(seed=6, mirostat_mode=2, mirostat_tau=3.0),
    Sampling(seed=7, adaptive_target=0.3, min_p=0.02, frequency_penalty=0.3),
    Sampling(seed=8, skew=0.4, dry_multiplier=0.8, banned_strings=("e ", "th")),
    Sampling(
        seed=9,
        repetition_penalty=1.2,
        penalty_range=6,
        repetition_decay=8,
        top_k=30,
        samplers=("penalties", "top_k", "temperature", "min_p"),
        min_p=0.05,
        temperature=1.4,
    ),
)


async def a_seed_gives_the_same_text_in_any_company(
    container: ModelContainer, *, seed: int, rounds: int = 3
) -> None:
    """Jobs of all kinds come and go at random moments; some leave before they have ended."""
    prompts = [asked("Hello!"), asked("Tell me a short story.", thinking=True)]
    cases = [(prompt, wish) for prompt in prompts for wish in COMPANY]
    alone = {case: await said(container, *case) for case in cases}
    rng = random.Random(seed)
    different: list[tuple[object, str, str]] = []

    async def one(case: tuple[str, Sampling], patience: float | None) -> None:
        with anyio.move_on_after(patience):
            text = await said(container, *case)
            if text != alone[case]:
                different.append((case, text, alone[case]))

    for _ in range(rounds):
        async with anyio.create_task_group() as tasks:
            for case in rng.sample(cases, len(cases)):
                patience = rng.choice((None, None, None, 0.01, 0.05))
                tasks.start_soon(one, case, patience)
                for _ in range(rng.choice((0, 0, 1, 5, 20))):
                    await anyio.lowlevel.checkpoint()
    assert not different
