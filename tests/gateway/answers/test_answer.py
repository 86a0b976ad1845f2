"""Counting and joining do not depend on how late the reader comes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.contract.protocol import Candidate, Ended, Generation, Output, Piece, TokenLogprob
from backends.places.container import Mailbox
from gateway.answers.answer import Choice
from gateway.answers.stopping import StopStrings
from gateway.splitter import FORMATS, Splitter
from gateway.terms.events import (
    ArgumentsGrown,
    Content,
    Delta,
    Event,
    Finished,
    Reasoning,
    ToolClosed,
    ToolOpened,
    joined,
)
from gateway.terms.request import Tool

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


class GivenOutputs:
    """A job's outputs; when it is stopped, its end is the next that comes."""

    def __init__(self, outputs: Sequence[Output]) -> None:
        self._coming = list(outputs)
        self.stopped = False

    def __aiter__(self) -> AsyncIterator[Output]:
        return self

    async def __anext__(self) -> Output:
        if not self._coming:
            raise StopAsyncIteration
        return self._coming.pop(0)

    def stop(self) -> None:
        assert not self.stopped, "once is enough"
        self.stopped = True
        self._coming = [msgspec.structs.replace(ENDED, cause="stopped", completion_tokens=99)]


async def read(outputs: Sequence[Output]) -> tuple[Choice, list[Delta]]:
    splitter = Splitter(FORMATS["hermes_json"], in_reasoning=False)
    choice = Choice(0, Generation(prompt=(1, 2, 3)), splitter)

    return choice, [delta async for delta in choice.deltas(GivenOutputs(outputs))]


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


@pytest.mark.parametrize(
    "said",
    [
        "if a < b, <tool_cal and <think are text.",  # beginnings of markers, and white space
        "It is over.\n",
        "It is over <tool",
        'Now: <tool_call>\n{"name": "f", "argu',  # a call that was cut is text
        "Now: <tool_call>none at all</tool_call> of them",
    ],
)
async def test_what_was_held_back_has_its_log_probabilities_when_it_is_text(said: str) -> None:
    splitter = Splitter(FORMATS["hermes_json"], in_reasoning=False, tools=(Tool(name="f"),))
    choice = Choice(0, Generation(prompt=(1, 2, 3)), splitter)
    letters = [
        Piece(letter, (k,), (TokenLogprob(Candidate(k, letter.encode(), -0.1)),))
        for k, letter in enumerate(said)
    ]
    deltas = [delta async for delta in choice.deltas(GivenOutputs([*letters, ENDED]))]
    content = joined([event for delta in deltas for event in delta.events])[0]
    assert content == Content(said)
    assert b"".join(one.chosen.text for delta in deltas for one in delta.logprobs).decode() == said


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


async def stopped(stop: str, *groups: Sequence[Piece]) -> tuple[Choice, list[Delta], GivenOutputs]:
    """A choice with a stop string; `groups` are what came together."""
    splitter = Splitter(FORMATS["hermes_json"], in_reasoning=False)
    choice = Choice(0, Generation(prompt=(1, 2, 3)), StopStrings(splitter, (stop,)))
    outputs = GivenOutputs([*(_join(group) for group in groups), ENDED])
    return choice, [delta async for delta in choice.deltas(outputs)], outputs


@given(st.lists(st.integers(1, len(SAID) - 1), max_size=6))
async def test_a_stop_string_ends_the_job_and_nothing_behind_it_is_said_or_counted(
    borders: list[int],
) -> None:
    edges = [0, *sorted(set(borders)), len(SAID)]
    groups = [pieces()[start:end] for start, end in pairwise(edges)]
    choice, deltas, outputs = await stopped("een", *groups)
    events = joined([event for delta in deltas for event in delta.events])
    assert events == [Reasoning("let me"), Content("S"), Finished("stop", stop="een")]
    assert outputs.stopped
    assert choice.ended is not None
    assert choice.ended.completion_tokens == SAID.index("Seen") + 1
    assert choice.ended.prompt_tokens == ENDED.prompt_tokens


@given(st.lists(st.integers(1, len(SAID) - 1), max_size=6))
async def test_a_token_held_back_keeps_its_log_probability(borders: list[int]) -> None:
    edges = [0, *sorted(set(borders)), len(SAID)]
    groups = [pieces()[start:end] for start, end in pairwise(edges)]
    _, deltas, outputs = await stopped("n <b!", *groups)
    content = "".join(
        event.text for delta in deltas for event in delta.events if isinstance(event, Content)
    )
    spoken = b"".join(one.chosen.text for delta in deltas for one in delta.logprobs)
    assert spoken.decode() == content == "Seen <b."
    assert not outputs.stopped


async def test_one_call_is_all_where_calls_may_not_be_parallel() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    splitter = Splitter(FORMATS["hermes_json"], in_reasoning=False, tools=(Tool(name="f"),))
    choice = Choice(0, Generation(prompt=(1,)), splitter, one_call=True)
    outputs = GivenOutputs([Piece(call, (1,)), Piece(call, (2,)), ENDED])
    events = [event async for delta in choice.deltas(outputs) for event in delta.events]
    assert [type(event) for event in events] == [ToolOpened, ArgumentsGrown, ToolClosed, Finished]
    assert outputs.stopped
    assert choice.ended is not None
    assert choice.ended.completion_tokens == 1


@given(st.sets(st.integers(1, len(SAID) - 1)), st.sampled_from(["Seen <", "en <b", "b", "."]))
async def test_a_stop_string_ends_a_job_however_its_tokens_come_together(
    pauses: set[int], stop_string: str
) -> None:
    """`pauses`: before these pieces the reader has its turn."""
    stops: list[int] = []
    mailbox = Mailbox(asyncio.get_running_loop(), lambda: stops.append(1))
    splitter = Splitter(FORMATS["hermes_json"], in_reasoning=False)
    choice = Choice(0, Generation(prompt=(1, 2, 3)), StopStrings(splitter, (stop_string,)))
    said: list[Delta] = []

    async def read_on() -> None:
        said.extend([delta async for delta in choice.deltas(mailbox)])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read_on)
        for number, piece in enumerate(pieces()):
            if number in pauses or not number:
                await anyio.wait_all_tasks_blocked()
            mailbox.put(piece)
        await anyio.wait_all_tasks_blocked()
        mailbox.put(Piece("said before the engine heard of it", (99,)))
        mailbox.put(msgspec.structs.replace(ENDED, cause="stopped", completion_tokens=99))
    events = joined([event for delta in said for event in delta.events])
    before = "Seen <b.".partition(stop_string)[0]
    contents = [Content(before)] if before else []
    assert events == [Reasoning("let me"), *contents, Finished("stop", stop=stop_string)]
    assert stops == [1]
    assert choice.ended is not None
    assert choice.ended.completion_tokens == choice.generated < 99
