"""One choice of an answer that another server gives, as our events: reasoning and calls that it
left in the content are split off here. Knows no request.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from backends.contract.conversation import Tool
from backends.contract.remote import RemoteCall, RemoteDelta
from gateway.splitter import FORMATS, Splitter
from gateway.splitter.payloads.syntax import THINK as TAGS
from gateway.splitter.unparsed import UnparsedCalls
from gateway.terms.events import (
    ArgumentsGrown,
    Content,
    Delta,
    Event,
    Finished,
    FinishReason,
    Reasoning,
    ToolClosed,
    ToolOpened,
)

THINK = FORMATS["think_text"]
_REASONS: Mapping[str, FinishReason] = {reason: reason for reason in get_args(FinishReason)}

Shown = Literal["split", "inline", "hidden"]

MOST_HABITS = 1_024

HabitKey: TypeAlias = tuple[Any, ...]


class ThinkingHabit(msgspec.Struct, frozen=True):
    """Whether answers to requests of a kind begin inside their reasoning, since their template has
    opened it: the last one closed what it had not opened. `known`: the kinds that do.
    """

    known: dict[HabitKey, None]
    kind: HabitKey

    @property
    def begins(self) -> bool:
        """They do."""
        return self.kind in self.known

    def note(self, *, begins: bool) -> None:
        """What the newest one did."""
        if begins:
            self.known[self.kind] = None
        else:
            self.known.pop(self.kind, None)


class RemoteChoice:
    """One choice of an answer, delta by delta. `raw`: all text is content, as it is. `tools`: calls
    of them are looked for in the content, too.

    Some templates write the beginning of reasoning into the prompt, and a server without a parser
    sends its end alone. `whole`: the answer is delivered at its end, so that this one counts. In a
    stream what came before was sent as content: by `habit` the next one begins as reasoning, and
    if that was wrong, it comes as content at its end.
    """

    def __init__(
        self,
        index: int,
        *,
        shown: Shown = "split",
        raw: bool = False,
        tools: Sequence[Tool] = (),
        whole: bool = False,
        habit: ThinkingHabit | None = None,
    ) -> None:
        self._index = index
        self._shown = shown
        self._whole = whole
        self._unparsed = UnparsedCalls(tools) if tools else None
        self._clear = raw  # content goes out as it is: no reasoning is left to be split off
        self._splitter: Splitter | None = None
        self._held = ""  # the beginning of the content, while it may become a marker
        self._kept: list[str] = []  # of a whole answer, until it is known whether it is reasoning
        self._inside = False  # reasoning sent inline is open
        self._habit = habit if shown != "inline" else None
        self._looks = self._habit is not None  # for an end of reasoning that began nowhere
        self._seen: list[str] = []  # the content where it looks
        self._guessed: list[str] | None = None  # what was taken for reasoning by habit alone
        self._calls: list[int] = []
        self.finished = False

    def take(self, remote: RemoteDelta) -> Delta | None:
        """What a delta adds; None where that is held back. After the end nothing counts."""
        if self.finished:
            return Delta(self._index, (), further=remote.further) if remote.further else None
        if self._looks and remote.content:
            self._seen.append(remote.content)
        events = tuple(self._events(remote))
        if not (events or remote.logprobs or remote.further or self._kept):
            return None
        return Delta(self._index, events, remote.logprobs, further=remote.further)

    def end(self) -> Delta | None:
        """The other server ended the stream without a finish reason."""
        return self.take(RemoteDelta(finished="tool_calls" if self._calls else "stop"))

    def _events(self, remote: RemoteDelta) -> Iterator[Event]:
        for event in self._split(remote):
            if self._unparsed is None:
                yield event
            else:
                yield from self._parsed(self._unparsed, event)

    def _parsed(self, unparsed: UnparsedCalls, event: Event) -> Iterator[Event]:
        """A server that parses calls itself writes none into its content."""
        match event:
            case Content(text):
                yield from unparsed.feed(text)
            case ToolOpened():
                self._unparsed = None
                yield from (*unparsed.finish(), event)
            case Finished(reason):
                yield from unparsed.finish()
                called = unparsed.called and reason == "stop"
                yield msgspec.structs.replace(event, reason="tool_calls") if called else event
            case _:
                yield event

    def _split(self, remote: RemoteDelta) -> Iterator[Event]:
        if remote.reasoning:
            yield from self._thought(remote.reasoning)
        if remote.content:
            yield from self._said(remote.content)
        for call in remote.calls:
            yield from self._called(call)
        if remote.finished is not None:
            yield from self._ended(remote.finished, remote.stop)

    def _thought(self, text: str) -> Iterator[Event]:
        """The other server splits reasoning off: markers in the content are plain text."""
        self._looks = False
        if self._splitter is None:
            yield from self._unheld()
            self._clear = self._shown != "inline"
        if self._shown != "inline":
            yield Reasoning(text)
        elif self._inside:
            yield Content(text)
        else:
            self._inside = True
            yield Content(f"<think>\n{text}")

    def _said(self, text: str) -> Iterator[Event]:
        yield from self._closed()
        if self._splitter is not None:
            yield from self._fed(self._splitter, text)
        elif self._clear:
            yield Content(text)
        elif self._kept:
            self._kept.append(text)
        else:
            yield from self._begun(self._held + text)

    def _begun(self, text: str) -> Iterator[Event]:
        """The first characters decide: a marker of reasoning, or none, or not decidable yet."""
        begin, self._held = text.lstrip(), ""
        if begin.startswith(TAGS.open) and self._shown != "inline":
            self._splitter = Splitter(THINK, in_reasoning=False)
            yield from self._splitter.feed(text)
        elif self._shown != "inline" and TAGS.open.startswith(begin):
            self._held = text
        elif self._shown != "inline" and self._whole:
            self._kept.append(text)
        elif self._habit is not None and (self._habit.begins or _ends_unbegun(text)):
            self._habit.note(begins=True)
            self._looks, self._guessed = False, []
            self._splitter = Splitter(THINK, in_reasoning=True)
            yield from self._fed(self._splitter, text)
        else:
            self._clear = True
            yield Content(text)

    def _fed(self, splitter: Splitter, text: str) -> Iterator[Event]:
        yield from splitter.feed(text)
        if self._guessed is not None:
            self._guessed.append(text)
            if not splitter.in_reasoning:
                self._guessed = None

    def _called(self, call: RemoteCall) -> Iterator[Event]:
        yield from self._closed()
        yield from self._unheld()
        if call.name:
            self._calls.append(call.index)
            yield ToolOpened(call.index, call.id, call.name, call.further)
        if call.arguments:
            yield ArgumentsGrown(call.index, call.arguments)

    def _ended(self, reason: str, stop: str | None) -> Iterator[Event]:
        self.finished = True
        if self._looks and self._habit is not None and _ends_unbegun("".join(self._seen)):
            self._habit.note(begins=True)
        yield from self._closed()
        yield from self._unheld()
        if self._splitter is not None:
            yield from self._splitter.finish("stop")[:-1]
        if self._guessed is not None and self._habit is not None and reason != "length":
            self._habit.note(begins=False)
            if not self._calls:
                yield Content("".join(self._guessed))
        yield from map(ToolClosed, self._calls)
        finish = _REASONS.get(reason, "stop")
        yield Finished("tool_calls" if self._calls and finish == "stop" else finish, stop=stop)

    def _unheld(self) -> Iterator[Event]:
        held, self._held = "".join((self._held, *self._kept)), ""
        self._kept.clear()
        if TAGS.close in held:
            if self._habit is not None:
                self._habit.note(begins=True)
            self._splitter = Splitter(THINK, in_reasoning=True)
            yield from self._splitter.feed(held)
        elif held:
            yield Content(held)

    def _closed(self) -> Iterator[Event]:
        if self._inside:
            self._inside = False
            yield Content("\n</think>\n\n")


def _ends_unbegun(text: str) -> bool:
    """It has an end of reasoning that began nowhere."""
    before, closed, _ = text.partition(TAGS.close)
    return bool(closed) and TAGS.open not in before
