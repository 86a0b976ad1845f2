"""From the events of one choice to the steps that a client sees. Knows what is told, not how.

Hidden reasoning, empty texts and the ends of tool calls are gone here; a call without arguments
gets its `{}`.
"""

from collections.abc import Iterator

import msgspec

from backends.protocol import TokenLogprob
from gateway.events import (
    ArgumentsGrown,
    Content,
    Delta,
    Event,
    Finished,
    Reasoning,
    ToolClosed,
    ToolOpened,
)

NO_ARGUMENTS = "{}"


class AnswerStep(msgspec.Struct, frozen=True):
    """Something to tell, never a `ToolClosed`, and the log probabilities that go with it."""

    event: Event
    logprobs: tuple[TokenLogprob, ...] = ()


class ChoiceSteps:
    """The steps of one choice, delta by delta.

    Log probabilities of reasoning are left out, as OpenAI does. Those of tokens whose text is still
    held back wait for the next step.
    """

    def __init__(self, *, hides_reasoning: bool) -> None:
        self._hides_reasoning = hides_reasoning
        self._speechless: list[int] = []  # calls opened, without a word of arguments yet
        self._waiting: tuple[TokenLogprob, ...] = ()

    def of(self, delta: Delta) -> Iterator[AnswerStep]:
        """The steps that `delta` makes."""
        if delta.logprobs:
            self._waiting += delta.logprobs
        for event in delta.events:
            for told in self._told(event):
                if isinstance(told, Reasoning):
                    yield AnswerStep(told)
                else:
                    yield AnswerStep(told, self._waiting)
                    self._waiting = ()
        if delta.events and isinstance(delta.events[-1], Reasoning):
            self._waiting = ()

    def _told(self, event: Event) -> tuple[Event, ...]:
        match event:
            case Content(text):
                return (event,) if text else ()
            case Reasoning(text):
                return (event,) if text and not self._hides_reasoning else ()
            case ToolOpened(index):
                self._speechless.append(index)
                return (event,)
            case ArgumentsGrown(index, fragment):
                if fragment and index in self._speechless:
                    self._speechless.remove(index)
                return (event,) if fragment else ()
            case ToolClosed(index):
                return self._last_words((index,))
            case Finished():
                return (*self._last_words(tuple(self._speechless)), event)

    def _last_words(self, indexes: tuple[int, ...]) -> tuple[Event, ...]:
        """Clients wait for at least one delta of arguments for every call."""
        speechless = [index for index in indexes if index in self._speechless]
        self._speechless = [index for index in self._speechless if index not in indexes]
        return tuple(ArgumentsGrown(index, NO_ARGUMENTS) for index in speechless)
