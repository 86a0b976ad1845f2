"""Stop strings: an answer's events, ended where its text says what the client wants to end it.

Knows no engine and no job.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from backends.contract.stops import StopFound, StopScanner
from gateway.splitter import Splitter
from gateway.terms.events import Content, Event, Finished, FinishReason, Reasoning, ToolClosed

Text: TypeAlias = Content | Reasoning
Splitting: TypeAlias = "Splitter | Unsplit | StopStrings"


class Unsplit:
    """Raw text: all of it is content."""

    in_reasoning = False
    unsaid = 0
    damaged = False

    def feed(self, text: str) -> list[Event]:
        return [Content(text)] if text else []

    def finish(self, reason: FinishReason) -> list[Event]:
        return [Finished(reason)]


class StopStrings:
    r"""A splitter that ends its events with `Finished` where a stop string is found.

    Stop strings apply to the answer, so they are searched for in content. Reasoning is passed over,
    unless `in_reasoning` says otherwise; markers and the white space around them are no text. The
    arguments of a tool call are never cut, because half a call is useless. A stop string lies
    within one stretch of text, which a call or reasoning ends. (vLLM and llama.cpp search the raw
    text, where "\n\n" is found behind `</think>`, and "}" in every call.)

    The caller ends the job when `Finished` comes. `inline`: the other one delivers reasoning as
    content.
    """

    def __init__(
        self,
        splitting: Splitting,
        stops: Sequence[str],
        *,
        in_reasoning: bool = False,
        inline: bool = False,
    ) -> None:
        self._splitting = splitting
        self._stops = tuple(stops)
        self._scanner = StopScanner(stops)
        self._kinds: tuple[type[Event], ...] = (Content, Reasoning) if in_reasoning else (Content,)
        self._by_character = inline and not in_reasoning
        self._kind: type[Text] = Content  # of the stretch being scanned
        self._called = False  # a tool call was delivered whole
        self._unsaid = 0  # bytes of content behind the last event: held back, or cut off

    @property
    def in_reasoning(self) -> bool:
        return self._splitting.in_reasoning

    @property
    def unsaid(self) -> int:
        return self._unsaid + self._splitting.unsaid

    @property
    def damaged(self) -> bool:
        return self._splitting.damaged

    def feed(self, text: str) -> list[Event]:
        """The events of some more output; after one that is `Finished` nothing may be fed."""
        if not self._by_character:
            return self._scanned(self._splitting.feed(text), self._kinds)
        # Only between two characters it is known whether the text is reasoning.
        events: list[Event] = []
        for character in text:
            was_inside = self._splitting.in_reasoning
            fed = self._splitting.feed(character)
            inside = was_inside or self._splitting.in_reasoning
            events += self._scanned(fed, () if inside else self._kinds)
            if events and isinstance(events[-1], Finished):
                break
        return events

    def finish(self, reason: FinishReason) -> list[Event]:
        """The events that end the answer; the last is Finished. What is left of a call that the end
        cut is no answer, and the end is why it ended.
        """
        inside = self._by_character and self._splitting.in_reasoning
        events = self._splitting.finish(reason)
        return self._scanned(events, () if inside or self.damaged else self._kinds)

    def _scanned(self, events: Sequence[Event], kinds: tuple[type[Event], ...]) -> list[Event]:
        passed: list[Event] = []
        for number, event in enumerate(events):
            if not isinstance(event, (Content, Reasoning)) or not isinstance(event, kinds):
                self._called = self._called or isinstance(event, ToolClosed)
                passed += (*self._held(), event)
                continue
            if type(event) is not self._kind:
                passed += self._held()
                self._kind = type(event)
            held = self._scanner.held
            match self._scanner.feed(event.text):
                case StopFound(before, stop):
                    rest = (one.text for one in events[number:] if isinstance(one, Content))
                    self._unsaid = len("".join((held, *rest)).encode()) - len(before.encode())
                    to_execute = self._called and not self.damaged
                    finished = Finished("tool_calls" if to_execute else "stop", stop=stop)
                    return [*passed, *self._text(before), finished]
                case str(free):
                    passed += self._text(free)
        self._unsaid = len(self._scanner.held.encode()) if self._kind is Content else 0
        return passed

    def _held(self) -> Iterator[Event]:
        """Held-back text that can't become a stop string any more."""
        return iter(self._text(self._scanner.flush()))

    def _text(self, text: str) -> list[Event]:
        return [self._kind(text)] if text else []
