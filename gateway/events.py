"""The vocabulary between the splitter and the replies: what a model said, phase by phase.

A generation is a sequence of these, ending in exactly one `Finished`. Per tool call: one
`ToolOpened`, any number of `ArgumentsGrown` whose fragments concatenate to one valid JSON object,
one `ToolClosed`.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

FinishReason: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter"]


class Reasoning(msgspec.Struct, frozen=True):
    """Some text of the model's reasoning, markers removed."""

    text: str


class Content(msgspec.Struct, frozen=True):
    """Some text of the answer."""

    text: str


class ToolOpened(msgspec.Struct, frozen=True):
    """A call begins: its name is whole. `index` counts the calls of this answer from 0."""

    index: int
    id: str
    name: str


class ArgumentsGrown(msgspec.Struct, frozen=True):
    """Some more of call `index`'s arguments, as JSON text."""

    index: int
    fragment: str


class ToolClosed(msgspec.Struct, frozen=True):
    """The call is complete: its fragments are one JSON object."""

    index: int


class Finished(msgspec.Struct, frozen=True):
    """The answer is over. `warning` says what was wrong with the output, for the log; `stop` is the
    stop string that was found.
    """

    reason: FinishReason
    warning: str | None = None
    stop: str | None = None


Event: TypeAlias = Reasoning | Content | ToolOpened | ArgumentsGrown | ToolClosed | Finished


def joined(events: Sequence[Event]) -> list[Event]:
    """The same, with neighbours that continue each other made one."""
    whole: list[Event] = []
    for event in events:
        match whole[-1:], event:
            case [Content(before)], Content(text):
                whole[-1] = Content(before + text)
            case [Reasoning(before)], Reasoning(text):
                whole[-1] = Reasoning(before + text)
            case [ArgumentsGrown(index, before)], ArgumentsGrown(same, more) if index == same:
                whole[-1] = ArgumentsGrown(index, before + more)
            case _:
                whole.append(event)
    return whole
