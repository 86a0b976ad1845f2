"""Stop strings in chat: found in what the client reads, however the text is cut."""

from collections.abc import Iterator, Sequence

import pytest

from gateway.answers.stopping import StopStrings, Unsplit
from gateway.splitter import FORMATS, Splitter
from gateway.terms.events import (
    ArgumentsGrown,
    Content,
    Event,
    Finished,
    Reasoning,
    ToolClosed,
    ToolOpened,
    joined,
)
from gateway.terms.request import Tool

TOOL = Tool(name="f")
CALL = '<tool_call>{"name": "f", "arguments": {"to": "user}"}}</tool_call>'
FOUND = Finished("stop", stop="user")


class Case:
    """One answer, where it stops, and what of it is delivered."""

    def __init__(
        self,
        format: str,
        text: str,
        *expected: Event,
        stop: str = "user",
        opened: bool = False,
        everywhere: bool = False,
        inline: bool = False,
    ) -> None:
        self.text = text
        self.expected = list(expected)
        self._format = FORMATS[format]
        self._stop = stop
        self._opened = opened
        self._everywhere = everywhere
        self._inline = inline

    def events(self, pieces: Sequence[str]) -> list[Event]:
        splitter = Splitter(
            self._format,
            in_reasoning=self._opened,
            tools=(TOOL,),
            split_reasoning=not self._inline,
        )
        stops = StopStrings(
            splitter, (self._stop,), in_reasoning=self._everywhere, inline=self._inline
        )
        said: list[Event] = []
        for piece in pieces:
            said += stops.feed(piece)
            if said and isinstance(said[-1], Finished):
                break
        else:
            said += stops.finish("stop")
        return [
            ToolOpened(event.index, "", event.name) if isinstance(event, ToolOpened) else event
            for event in joined(said)
        ]


CASES = {
    "reasoning opened by the model": Case(
        "think_text",
        "<think>The user asks</think>\n\nDear user, hello",
        Reasoning("The user asks"),
        Content("Dear "),
        FOUND,
    ),
    "reasoning opened by the prompt": Case(
        "think_text",
        "The user asks</think>\n\nDear user, hello",
        Reasoning("The user asks"),
        Content("Dear "),
        FOUND,
        opened=True,
    ),
    "reasoning that never ends": Case(
        "think_text", "<think>The user asks", Reasoning("The user asks"), Finished("stop")
    ),
    "white space of markup": Case(
        "think_text",
        "<think>a\n\nb</think>\n\nSeen.\n\nMore",
        Reasoning("a\n\nb"),
        Content("Seen."),
        Finished("stop", stop="\n\n"),
        stop="\n\n",
    ),
    "several phases between control tokens": Case(
        "gemma4",
        "<|channel>thought\nuser<channel|>Yes.<|channel>thought\nuser<channel|>Dear user",
        Reasoning("user"),
        Content("Yes."),
        Reasoning("\nuser"),
        Content("\nDear "),
        FOUND,
    ),
    "headers": Case(
        "harmony",
        "<|channel|>analysis<|message|>user final<|end|><|start|>assistant"
        "<|channel|>final<|message|>The final user",
        Reasoning("user final"),
        Content("The "),
        Finished("stop", stop="final"),
        stop="final",
    ),
    "a call is not cut": Case(
        "hermes_json",
        CALL,
        ToolOpened(0, "", "f"),
        ArgumentsGrown(0, '{"to":"user}"}'),
        ToolClosed(0),
        Finished("tool_calls"),
        stop="}",
    ),
    "behind a call": Case(
        "hermes_json",
        f"Hm. {CALL} Dear user",
        Content("Hm."),
        ToolOpened(0, "", "f"),
        ArgumentsGrown(0, '{"to":"user}"}'),
        ToolClosed(0),
        Content("\nDear "),
        Finished("tool_calls", stop="user"),
    ),
    "a call between its halves": Case(
        "hermes_json",
        f"us{CALL}er",
        Content("us"),
        ToolOpened(0, "", "f"),
        ArgumentsGrown(0, '{"to":"user}"}'),
        ToolClosed(0),
        Content("\ner"),
        Finished("tool_calls"),
    ),
    "in what is left of a call that was cut": Case(
        "hermes_json",
        'Hm. <tool_call>{"name": "f", "arguments": {"to": "me", "user',
        Content("Hm."),
        ToolOpened(0, "", "f"),
        ArgumentsGrown(0, '{"to":"me"'),
        Content('\n, "user'),
        Finished("stop", "a tool call broke off: a string is not closed, but the output ended"),
    ),
    "behind a call that broke off": Case(
        "hermes_json",
        'Hm. <tool_call>{"name": "f", "arguments": {"to": "me", ]]}</tool_call> Dear user',
        Content("Hm."),
        ToolOpened(0, "", "f"),
        ArgumentsGrown(0, '{"to":"me"'),
        Content("\n, ]]}</tool_call> Dear "),
        FOUND,
    ),
    "held back to the end": Case("think_text", "Dear use", Content("Dear use"), Finished("stop")),
    "found in what the splitter held back": Case(
        "think_text",
        "a <thi",
        Content("a "),
        Finished("stop", stop="<thi"),
        stop="<thi",
    ),
    "in reasoning too": Case(
        "think_text",
        "<think>The user asks</think>Yes",
        Reasoning("The "),
        FOUND,
        everywhere=True,
    ),
    "in both, but not across": Case(
        "think_text",
        "<think>us</think>er and user",
        Reasoning("us"),
        Content("er and "),
        FOUND,
        everywhere=True,
    ),
    "reasoning in the content": Case(
        "think_text",
        "<think>The user asks</think>\n\nDear user",
        Content("<think>The user asks</think>\n\nDear "),
        FOUND,
        inline=True,
    ),
    "a stop string inside a marker left in the content": Case(
        "think_text",
        "<think>a</think>\n\nI think so",
        Content("<think>a</think>\n\nI "),
        Finished("stop", stop="think"),
        stop="think",
        inline=True,
    ),
}


def cuts(text: str) -> Iterator[list[str]]:
    """The text whole, in two at every place, and letter by letter."""
    yield [text]
    for border in range(1, len(text)):
        yield [text[:border], text[border:]]
    yield list(text)


@pytest.mark.parametrize("name", CASES)
def test_a_stop_string_applies_to_the_answer_at_any_cut(name: str) -> None:
    case = CASES[name]
    for pieces in cuts(case.text):
        assert case.events(pieces) == case.expected, pieces


def test_raw_text_has_neither_reasoning_nor_calls() -> None:
    stops = StopStrings(Unsplit(), ("user",))
    assert [*stops.feed("<think>us"), *stops.feed("er")] == [
        Content("<think>"),
        Finished("stop", stop="user"),
    ]
