"""What every container promises. A backend's test calls `check_all` or picks single promises with
its own model.

A container under test is described by `Subject`: prompts that are known to lead somewhere. Nothing
here knows an engine.
"""

from collections.abc import Sequence

import anyio
import msgspec
import pytest

from backends.contract.errors import InvalidJob, PromptTooLong
from backends.contract.protocol import Ended, Generation, ModelContainer, Piece, ThinkingBudget
from backends.contract.samplers import Sampling

GREEDY = Sampling(temperature=0)


class Subject(msgspec.Struct, frozen=True):
    """A loaded container, and prompts. `long` leads to a greedy text of at least 40 tokens."""

    container: ModelContainer
    prompt: str
    long: str


def job(subject: Subject, text: str, **changes: object) -> Generation:
    prompt = subject.container.tokenize(text, special=True)
    return msgspec.structs.replace(Generation(prompt=prompt, sampling=GREEDY), **changes)


async def run(container: ModelContainer, generation: Generation) -> tuple[list[Piece], Ended]:
    """All outputs; asserts their order: pieces, then exactly one end."""
    pieces: list[Piece] = []
    ended: list[Ended] = []
    async with container.generate(generation) as outputs:
        async for output in outputs:
            assert not ended, "nothing comes after the end"
            match output:
                case Piece():
                    pieces.append(output)
                case Ended():
                    ended.append(output)
    assert len(ended) == 1
    return pieces, ended[0]


def text_of(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


async def ends_by_itself(subject: Subject) -> None:
    """A greedy answer ends with the end token, and its counts are right."""
    generation = job(subject, subject.prompt)
    pieces, ended = await run(subject.container, generation)
    assert ended.cause == "end_token"
    assert ended.prompt_tokens == len(generation.prompt)
    tokens = [token for piece in pieces for token in piece.tokens]
    assert ended.completion_tokens == len(tokens) + 1  # the end token has no piece
    assert ended.token not in (None, *tokens)
    assert ended.logprob is None
    assert text_of(pieces) == subject.container.detokenize(tokens)


async def two_jobs_at_once(subject: Subject) -> None:
    """Jobs that run together get what each would get alone."""
    alone = [
        text_of((await run(subject.container, job(subject, prompt)))[0])
        for prompt in (subject.prompt, subject.long)
    ]
    together: dict[int, str] = {}

    async def answer(index: int, prompt: str) -> None:
        together[index] = text_of((await run(subject.container, job(subject, prompt)))[0])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer, 0, subject.prompt)
        tasks.start_soon(answer, 1, subject.long)
    assert [together[0], together[1]] == alone


async def token_limit(subject: Subject) -> None:
    """`max_tokens` is exact and is told."""
    for limit in (1, 3):
        pieces, ended = await run(subject.container, job(subject, subject.long, max_tokens=limit))
        assert (ended.cause, ended.completion_tokens) == ("max_tokens", limit)
        assert sum(len(piece.tokens) for piece in pieces) == limit


async def stops_across_pieces(subject: Subject) -> None:
    """A stop string ends the text at its first character, wherever the tokens' borders are."""
    whole = text_of((await run(subject.container, job(subject, subject.long)))[0])
    for start in range(2, min(len(whole) - 6, 12)):
        stop = whole[start : start + 5]
        pieces, ended = await run(subject.container, job(subject, subject.long, stop=(stop,)))
        assert text_of(pieces) == whole[: whole.index(stop)]
        assert (ended.cause, ended.stop_string) == ("stop_string", stop)


async def stop_that_never_comes(subject: Subject) -> None:
    """Text held back for a stop string is not lost at the end."""
    whole = text_of((await run(subject.container, job(subject, subject.long)))[0])
    never = whole[-3:] + "never"
    pieces, ended = await run(subject.container, job(subject, subject.long, stop=(never,)))
    assert text_of(pieces) == whole
    assert ended.cause == "end_token"


async def characters_stay_whole(subject: Subject) -> None:
    """No piece holds half a character: the model is made to say some that take several tokens."""
    wide = "Grüße, 蒸気機関車 🚂"
    closing = subject.container.tokenize(wide, special=False)
    assert len(closing) > len(wide)
    budget = ThinkingBudget(
        tokens=1, closing=closing, opens=("<think>",), closes=("</think>",), is_open=True
    )
    generation = job(subject, subject.long, thinking=budget, max_tokens=len(closing) + 1)
    pieces, _ = await run(subject.container, generation)
    assert text_of(pieces).endswith(wide)
    assert not any("\ufffd" in piece.text for piece in pieces)


async def too_long_is_refused(subject: Subject) -> None:
    """A prompt that fills the context is an error before anything runs."""
    length = subject.container.info.context_length
    (token, *_) = subject.container.tokenize(subject.prompt, special=True)
    with pytest.raises(PromptTooLong) as caught:
        async with subject.container.generate(Generation(prompt=(token,) * length)):
            pass
    assert caught.value.context_length == length
    with pytest.raises(InvalidJob):
        async with subject.container.generate(Generation(prompt=())):
            pass


async def leaving_frees_the_device(subject: Subject) -> None:
    """When the context has exited the job is gone: a full house of others fits at once, again and
    again.
    """
    room = subject.container.info.max_concurrent
    generation = job(subject, subject.long)

    async def begin_and_leave() -> None:
        async with subject.container.generate(generation) as outputs:
            await anext(aiter(outputs))

    for _ in range(3):
        async with anyio.create_task_group() as tasks:
            for _ in range(room + 1):
                tasks.start_soon(begin_and_leave)
    await ends_by_itself(subject)


async def cancelled_anywhere(subject: Subject) -> None:
    """Cancelled while waiting for the first output, in line, or not even started: nothing is left
    behind.
    """
    room = subject.container.info.max_concurrent
    async with anyio.create_task_group() as tasks:
        for _ in range(2 * room):
            tasks.start_soon(run, subject.container, job(subject, subject.long))
        await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    await ends_by_itself(subject)


async def budget_is_kept(subject: Subject) -> None:
    """When the thinking budget is spent the closing is said, and the answer goes on after it."""
    closing = subject.container.tokenize("enough</think>", special=False)
    budget = ThinkingBudget(
        tokens=4, closing=closing, opens=("<think>",), closes=("</think>",), is_open=True
    )
    generation = job(subject, subject.long, thinking=budget, max_tokens=60)
    pieces, _ = await run(subject.container, generation)
    tokens = [token for piece in pieces for token in piece.tokens]
    assert tuple(tokens[4 : 4 + len(closing)]) == closing
    assert len(tokens) > 4 + len(closing)


async def logprobs_are_reported(subject: Subject) -> None:
    """Every token has its logprob; greedy choices are the best alternative."""
    pieces, _ = await run(subject.container, job(subject, subject.prompt, logprobs=2))
    for piece in pieces:
        assert len(piece.logprobs) == len(piece.tokens)
        for token, logprob in zip(piece.tokens, piece.logprobs, strict=True):
            assert logprob.chosen.token == token
            assert logprob.chosen.logprob <= 0
            if logprob.top:
                assert logprob.top[0].token == token


async def every_counted_token_has_a_logprob(subject: Subject) -> None:
    """The end token too, those of a stop string, and those that were forced."""
    whole = text_of((await run(subject.container, job(subject, subject.long)))[0])
    closing = subject.container.tokenize("enough</think>", special=False)
    budget = ThinkingBudget(
        tokens=2, closing=closing, opens=("<think>",), closes=("</think>",), is_open=True
    )
    ways: tuple[dict[str, object], ...] = (
        {},
        {"max_tokens": 3},
        {"stop": (whole[4:12],)},
        {"thinking": budget},
    )
    for way in ways:
        generation = job(subject, subject.long, logprobs=1, **way)
        pieces, ended = await run(subject.container, generation)
        counted = [token for piece in pieces for token in piece.tokens]
        scored = [one.chosen.token for piece in pieces for one in piece.logprobs]
        if ended.token is not None:
            assert ended.logprob is not None
            counted.append(ended.token)
            scored.append(ended.logprob.chosen.token)
        assert (ended.cause == "end_token") == (ended.token is not None)
        assert scored == counted
        assert len(counted) == ended.completion_tokens


async def texts_have_a_least_count(subject: Subject) -> None:
    """Where the longest token is known, a text has at least so many tokens."""
    longest = subject.container.info.longest_token_bytes
    for text in (subject.long, "a" * 500, " " * 500, "蒸気機関車🚂" * 50, "\n\t\x00" * 50):
        tokens = subject.container.tokenize(text, special=True)
        assert longest * len(tokens) >= len(text.encode()) or not longest


async def closes_while_idle(subject: Subject) -> None:
    """Closing is prompt and harmless twice."""
    await subject.container.aclose()
    await subject.container.aclose()


LASTING = (  # a container that kept them can keep them again
    ends_by_itself,
    two_jobs_at_once,
    token_limit,
    stops_across_pieces,
    stop_that_never_comes,
    characters_stay_whole,
    too_long_is_refused,
    leaving_frees_the_device,
    cancelled_anywhere,
    budget_is_kept,
    logprobs_are_reported,
    every_counted_token_has_a_logprob,
    texts_have_a_least_count,
)
PROMISES = (*LASTING, closes_while_idle)
