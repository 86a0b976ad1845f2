"""Counting and joining do not depend on how late the reader comes."""

from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.protocol import Candidate, Ended, Generation, Output, Piece, TokenLogprob
from gateway.answer import Delta
from gateway.answering import Choice
from gateway.events import ArgumentsGrown, Content, Event, Finished, Reasoning, joined
from gateway.splitter import FORMATS, Splitter

pytestmark = pytest.mark.anyio
ENDED = Ended(cause="end_token", prompt_tokens=3, cached_tokens=0, completion_tokens=9)
SAID = ("<think>", "let", " me", "</think>", "\n\n", "Seen", " <", "b", ".")


def pieces() -> list[Piece]:
    return [
        Piece(text, (number,), (TokenLogprob(Candidate(number, text.encode(), -0.1)),))
        for number, text in enumerate(SAID)
    ]


def late(borders: Sequence[int]) -> list[Piece]:
    """The pieces, joined between the borders as the driver joins them."""
    all_pieces, edges = pieces(), [0, *sorted(set(borders)), len(SAID)]
    groups = [all_pieces[start:end] for start, end in pairwise(edges)]
    return [_join(group) for group in groups if group]


def _join(group: Sequence[Piece]) -> Piece:
    if len(group) == 1:
        return group[0]
    return Piece(
        "".join(piece.text for piece in group),
        tuple(token for piece in group for token in piece.tokens),
        tuple(logprob for piece in group for logprob in piece.logprobs),
        tuple(group),
    )


async def read(outputs: Sequence[Output]) -> tuple[Choice, list[Delta]]:
    splitter = Splitter(FORMATS["hermes_json"], in_reasoning=False)
    choice = Choice(0, Generation(prompt=(1, 2, 3)), splitter)

    async def source() -> AsyncIterator[Output]:
        for output in outputs:
            yield output

    return choice, [delta async for delta in choice.deltas(source())]


@given(st.lists(st.integers(1, len(SAID) - 1), max_size=6))
async def test_tokens_and_logprobs_belong_to_their_own_phase(borders: list[int]) -> None:
    choice, deltas = await read([*late(borders), ENDED])
    events = joined([event for delta in deltas for event in delta.events])
    assert events == [Reasoning("let me"), Content("Seen <b."), Finished("stop")]
    assert choice.generated == len(SAID)
    prompt, _ = await read([*pieces(), ENDED])
    assert choice.reasoning_tokens == prompt.reasoning_tokens
    spoken = b"".join(one.chosen.text for delta in deltas for one in delta.logprobs)
    assert spoken.decode() == "Seen <b."


def test_only_neighbours_of_a_kind_are_joined() -> None:
    events: list[Event] = [
        Content("a"),
        Content("b"),
        Reasoning("c"),
        Content("d"),
        ArgumentsGrown(0, "{"),
        ArgumentsGrown(0, "}"),
        ArgumentsGrown(1, "{}"),
    ]
    assert joined(events) == [
        Content("ab"),
        Reasoning("c"),
        Content("d"),
        ArgumentsGrown(0, "{}"),
        ArgumentsGrown(1, "{}"),
    ]
