"""What every container that takes masks promises of a job that is held to a grammar; see
`contract`.
"""

import json
import random
import re
from collections.abc import Sequence

import anyio
import msgspec
import pytest

from backends.contract.errors import InvalidJob
from backends.contract.protocol import Constraint, Ended, ThinkingBudget, TokenLogprob
from backends.contract.samplers import Sampling
from tests.backends.constraints import lark, regex, schema
from tests.backends.container_contract import GREEDY, Subject, job, run, text_of

HOT = 1.5  # a temperature at which nothing keeps to a form by itself
EVERYTHING = lark("start: <[*]>*")
PERSON = {
    "x-guidance": {"whitespace_flexible": False},  # else a hot model may write spaces for ever
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


async def texts_match(subject: Subject) -> None:
    """At a temperature at which nothing else would, beside rows that are free."""
    texts: dict[int, tuple[str, Ended]] = {}
    patterns = ("[a-f]{2,9}!", "(yes|no|perhaps)", "[0-9]{1,3}(\\.[0-9]{2})?", "ab*c")
    free = await _said(subject, None, GREEDY)

    async def one(seed: int, constraint: Constraint) -> None:
        texts[seed] = await _said(subject, constraint, Sampling(temperature=HOT, seed=seed))

    async def beside() -> None:
        assert await _said(subject, None, GREEDY) == free

    async with anyio.create_task_group() as tasks:
        for seed in range(16):
            tasks.start_soon(one, seed, regex(patterns[seed % 4]))
        tasks.start_soon(beside)
        tasks.start_soon(one, 16, schema(PERSON))
    person, ended = texts.pop(16)
    assert ended.cause == "end_token"
    assert set(json.loads(person)) == {"name", "age", "tags"}
    for seed, (text, ended) in texts.items():
        assert ended.cause == "end_token"
        assert re.fullmatch(patterns[seed % 4], text), text


async def a_grammar_of_everything_changes_nothing(subject: Subject) -> None:
    free, ended = await _said(subject, None, GREEDY)
    held, held_ended = await _said(subject, EVERYTHING, GREEDY)
    assert (held, held_ended.cause) == (free, ended.cause)


async def seeds_keep_their_text_within_a_grammar(subject: Subject) -> None:
    """Whatever else runs."""
    sampling = Sampling(temperature=1.0, seed=7, top_p=0.9)
    alone, _ = await _said(subject, schema(PERSON), sampling)
    found: list[str] = []

    async def one(chosen: Sampling) -> None:
        found.append((await _said(subject, schema(PERSON), chosen))[0])

    async with anyio.create_task_group() as tasks:
        for seed in (7, 1, 7, 2, 3, 7):
            tasks.start_soon(one, msgspec.structs.replace(sampling, seed=seed))
    assert found.count(alone) >= 3


async def logprobs_are_the_model_s_own(subject: Subject) -> None:
    """Not those of what the grammar leaves."""
    most = subject.container.info.vocab_size
    ours = await _logprobs(subject, None, min(most, 1_000))
    theirs = {one.token: one.logprob for one in ours[0].top}
    unlikely = min(theirs, key=theirs.__getitem__)
    text = f"start: <[{unlikely}]> <[*]>*"
    [chosen, *_] = await _logprobs(subject, lark(text), 3)
    assert chosen.chosen.token == unlikely
    assert chosen.chosen.logprob == pytest.approx(theirs[unlikely], abs=0.05)
    best = [one.logprob for one in ours[0].top[:3]]
    assert [one.logprob for one in chosen.top] == pytest.approx(best, abs=0.05)


async def contradictions_fail_alone(subject: Subject) -> None:
    alone = await _said(subject, None, GREEDY)
    both = subject.container.tokenize("a", special=False) + subject.container.tokenize(
        "b", special=False
    )
    results: list[str] = []

    async def beside() -> None:
        results.append((await _said(subject, None, GREEDY))[0])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(beside)
        with pytest.raises(InvalidJob, match="no token is left"):
            await _said(subject, regex("(a|b)"), Sampling(banned_tokens=both))
    assert results == [alone[0]]
    for sampling in (Sampling(ban_eos=True), Sampling()):
        generation = job(
            subject, subject.prompt, sampling=sampling, constraint=regex("(a|b)"), min_tokens=9
        )
        pieces, ended = await run(subject.container, generation)
        assert text_of(pieces) in {"a", "b"}
        assert ended.cause == "end_token"


async def a_budget_is_kept_within_a_grammar(subject: Subject) -> None:
    """What closes the reasoning is part of the grammar, and so is what follows it."""
    closing = subject.container.tokenize("enough</think>", special=True)
    marker = "</think>" in subject.container.info.special.control
    budget = ThinkingBudget(
        tokens=4, closing=closing, opens=("<think>",), closes=("</think>",), is_open=True
    )
    thoughts = "/(.|\\n)*/ </think>" if marker else "thoughts"
    text = 'thoughts[suffix="</think>"]: /(.|\\n)*/'
    grammar = lark(f"start: {thoughts} /[0-9]{{3}}/" + ("" if marker else f"\n{text}"))
    generation = job(subject, subject.long, thinking=budget, constraint=grammar, max_tokens=60)
    pieces, ended = await run(subject.container, generation)
    assert re.fullmatch(r"(?s).*enough</think>[0-9]{3}", text_of(pieces))
    assert ended.cause == "end_token"


async def banned_strings_hold_within_a_grammar(subject: Subject) -> None:
    """The grammar goes back with the text, wherever tokens' borders are."""
    if not subject.container.info.rewinds:
        return
    banned = ("aa", "ab", "1-", "b2")
    for seed in range(12):
        sampling = Sampling(temperature=HOT, seed=seed, banned_strings=banned)
        text, ended = await _said(subject, regex("[ab]{6}[0-9]{3}-[ab0-9]{9}"), sampling)
        assert ended.cause == "end_token"
        assert re.fullmatch("[ab]{6}[0-9]{3}-[ab0-9]{9}", text)
        assert not any(one in text for one in banned)


async def leaving_a_constrained_job_frees_the_device(subject: Subject) -> None:
    """Wherever it is left: while its grammar compiles, in line, while a mask is computed."""
    rng = random.Random(3)
    for turn in range(12):
        grammar = regex(f"[a-z ]{{30,60}}{turn}")
        async with anyio.create_task_group() as tasks:
            for _ in range(6):
                wanted = job(subject, subject.long, constraint=grammar)
                tasks.start_soon(run, subject.container, wanted)
            for _ in range(rng.choice((0, 1, 5))):
                await anyio.lowlevel.checkpoint()
            if turn % 3 == 2:
                await anyio.sleep(0.002 * turn)  # somewhere within the answer
            tasks.cancel_scope.cancel()
    assert (await _said(subject, regex("ab?c"), GREEDY))[0] in {"abc", "ac"}


PROMISES = (
    texts_match,
    a_grammar_of_everything_changes_nothing,
    seeds_keep_their_text_within_a_grammar,
    logprobs_are_the_model_s_own,
    contradictions_fail_alone,
    a_budget_is_kept_within_a_grammar,
    banned_strings_hold_within_a_grammar,
    leaving_a_constrained_job_frees_the_device,
)


async def _said(
    subject: Subject, constraint: Constraint | None, sampling: Sampling
) -> tuple[str, Ended]:
    generation = job(subject, subject.prompt, constraint=constraint, sampling=sampling)
    pieces, ended = await run(subject.container, generation)
    return text_of(pieces), msgspec.structs.replace(
        ended,
        cached_tokens=0,
        drafted_tokens=0,
        accepted_tokens=0,
        queued=0,
        prefill=0,
        decode=0,
    )


async def _logprobs(
    subject: Subject, constraint: Constraint | None, count: int
) -> Sequence[TokenLogprob]:
    generation = job(subject, subject.prompt, constraint=constraint, logprobs=count, max_tokens=4)
    pieces, _ = await run(subject.container, generation)
    return [logprob for piece in pieces for logprob in piece.logprobs]
