"""Where prompts part, and what is said of it."""

from array import array
from collections.abc import Sequence

import pytest

from backends.contract.beginnings import common_length
from backends.contract.conversation import Message, TextPart, Tool, ToolCall
from gateway.prompt.parting import (
    Outline,
    Turn,
    in_known_order,
    is_same_conversation,
    outline,
    parting,
)

READ, WRITE, RUN = (Tool(name=name, parameters={"type": "object"}) for name in ("r", "w", "x"))
SYSTEM = "You edit files.\nToday is 2026-11-23."


def said(*texts: str, system: str = SYSTEM) -> list[Message]:
    roles = ("user", "assistant")
    turns = [
        Message(role=roles[k % 2], parts=(TextPart(text),))  # type: ignore[arg-type]
        for k, text in enumerate(texts)
    ]
    return [Message(role="system", parts=(TextPart(system),)), *turns]


def turn(shape: Outline, tokens: Sequence[int]) -> Turn:
    return Turn(shape, array("I", tokens))


@pytest.mark.parametrize("common", [0, 1, 17, 999, 1000])
def test_the_common_beginning_is_found(common: int) -> None:
    first, second = [*range(1000)], [*range(common), *([7_000] * (1500 - common))]
    assert common_length(first, second) == common
    assert common_length(array("I", second), array("I", first)) == common


def test_a_prompt_that_goes_on_doesn_t_part() -> None:
    before = turn(outline(said("Go."), [READ]), range(100))
    more = turn(outline(said("Go.", "Done.", "More."), [READ]), [*range(98), *range(500, 600)])
    assert parting(before, more) is None


@pytest.mark.parametrize(
    ("messages", "tools", "what", "sentence"),
    [
        (said("Go."), [READ, RUN], "tools", "tool list changed (+x, -w) at token 40 of 100"),
        (said("Go."), [WRITE, READ], "tools", "tool list changed (order) at token 40 of 100"),
        (
            said("Go.", system="You edit files.\nToday is 2026-11-24."),
            [READ, WRITE],
            "system",
            "system prompt changed (line 2, a time) at token 40 of 100",
        ),
        (
            said("Go.", system="You write files.\nToday is 2026-11-23."),
            [READ, WRITE],
            "system",
            "system prompt changed (line 1) at token 40 of 100",
        ),
        (said("Stop."), [READ, WRITE], "message", "message 1 of 1 changed at token 40 of 100"),
        (
            said("Go."),
            [READ, WRITE],
            "template",
            "the template wrote earlier messages otherwise at token 40 of 100",
        ),
    ],
)
def test_what_parted_is_said(
    messages: list[Message], tools: list[Tool], what: str, sentence: str
) -> None:
    before = turn(outline(said("Go."), [READ, WRITE]), range(100))
    now = turn(outline(messages, tools), [*range(40), *range(500, 600)])
    found = parting(before, now, messages[0].text)
    assert found is not None
    assert (found.what, found.sentence) == (what, sentence)


def test_calls_are_part_of_a_message() -> None:
    calls = [ToolCall("1", "r", text, further={"a": {}}) for text in ("{}", '{"a": 1}', "{}")]
    first, second, third = (
        outline([Message(role="assistant", tool_calls=(call,))], []).messages for call in calls
    )
    assert first == third
    assert first != second


def test_a_changed_schema_is_a_changed_tool() -> None:
    other = Tool(name="r", parameters={"type": "object", "properties": {}})
    before = turn(outline(said("Go."), [READ]), range(100))
    found = parting(before, turn(outline(said("Go."), [other]), range(200, 300)))
    assert found is not None
    assert "(~r)" in found.sentence


def test_tools_stand_as_they_stood_and_new_ones_behind() -> None:
    known = outline(said("Go."), [READ, WRITE]).tools
    assert in_known_order(known, [RUN, WRITE, READ]) == (READ, WRITE, RUN)
    assert in_known_order(known, [RUN, WRITE]) == (WRITE, RUN)


def test_conversations_are_told_apart_by_more_than_a_greeting() -> None:
    first = outline(said("Hi", "Hello!", "Who?"), [])
    assert is_same_conversation(outline(said("Hi"), []), first)
    assert is_same_conversation(first, outline(said("Hi", "Hello!", "What?"), []))
    assert not is_same_conversation(first, outline(said("Hi", "Good day!", "Who?"), []))
