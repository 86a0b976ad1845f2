"""The items of an answer while they grow, and their events.

At most one item is open. The kinds of items differ by what stands in a table: the names of their
events, and whether they have parts.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET

from backends.protocol import Candidate, TokenLogprob
from gateway.dialects.frames import PLACEHOLDER, FrameTemplate, named_frame
from gateway.dialects.responses.encrypted_content import packed
from gateway.dialects.responses.reply_wire import (
    CallItem,
    CandidateWire,
    GrownEvent,
    ItemEvent,
    LogprobWire,
    MessageItem,
    OutputItem,
    OutputText,
    PartEvent,
    Progress,
    ReasoningItem,
    ReasoningText,
    SummaryText,
    WholeEvent,
)
from gateway.events import ToolOpened

Kind: TypeAlias = Literal["message", "reasoning", "summary", "call"]


class Form(msgspec.Struct, frozen=True):
    """The wire form of a kind of item: the prefix of its id, the stem of the names of its events,
    the name of its parts' events ("": it has none), and of the index of its part.
    """

    prefix: str
    stem: str
    part: str = ""
    index: Literal["content_index", "summary_index", ""] = ""


FORMS: Mapping[Kind, Form] = {
    "message": Form("msg_", "output_text", "content_part", "content_index"),
    "reasoning": Form("rs_", "reasoning_text", "content_part", "content_index"),
    "summary": Form("rs_", "reasoning_summary_text", "reasoning_summary_part", "summary_index"),
    "call": Form("fc_", "function_call_arguments"),
}


def event(message: Any) -> bytes:
    """An event under the name of its type."""
    return named_frame(message.type.encode(), message)


class Numbers:
    """The sequence numbers of one stream."""

    def __init__(self) -> None:
        self._next = 0

    def take(self) -> int:
        number = self._next
        self._next += 1
        return number


class GrowingItem:
    """One item. `id` is unique among all responses."""

    def __init__(
        self,
        kind: Kind,
        id: str,
        place: int,
        numbers: Numbers,
        call: ToolOpened | None = None,
        *,
        packs: bool = False,
    ) -> None:
        """`place`: its index among the items of the answer; `packs`: see `encrypted_content`."""
        self.kind = kind
        self._packs = packs
        self._form = FORMS[kind]
        self._id = self._form.prefix + id
        self._place = place
        self._numbers = numbers
        self._call = call
        self._texts: list[str] = []
        self._logprobs: list[LogprobWire] = []
        self._index: dict[str, Any] = {self._form.index: 0} if self._form.index else {}
        self._template: FrameTemplate | None = None

    def keep(self, text: str, logprobs: tuple[TokenLogprob, ...] = ()) -> list[LogprobWire]:
        """Some more of it, without an event."""
        self._texts.append(text)
        wires = [_logprob(one) for one in logprobs]
        self._logprobs += wires
        return wires

    def opening(self) -> Iterator[bytes]:
        """It begins, empty."""
        yield self._item_event("added", self.item("in_progress"))
        if self._form.part:
            yield self._part_event("added", "")

    def grow(self, text: str, logprobs: tuple[TokenLogprob, ...] = ()) -> bytes:
        """Some more of it: the event of nearly every token."""
        wires = self.keep(text, logprobs)
        if wires:
            return event(self._grown(text, wires, self._numbers.take()))
        if self._template is None:
            # The number is the last field: what is behind it is put back with each number.
            whole = event(self._grown(PLACEHOLDER, [], 0))
            self._template = FrameTemplate(whole.removesuffix(b"0}\n\n"))
        return self._template.render(text) + b"%d}\n\n" % self._numbers.take()

    def _grown(self, text: str, logprobs: list[LogprobWire], number: int) -> GrownEvent:
        return GrownEvent(
            type=f"response.{self._form.stem}.delta",
            item_id=self._id,
            output_index=self._place,
            logprobs=logprobs if self.kind == "message" else UNSET,
            delta=text,
            sequence_number=number,
            **self._index,
        )

    def closing(self, status: Progress) -> Iterator[bytes]:
        """It is over, and this is all of it."""
        text = "".join(self._texts)
        yield event(self._whole(text))
        if self._form.part:
            yield self._part_event("done", text)
        yield self._item_event("done", self.item(status))

    def _whole(self, text: str) -> WholeEvent:
        is_call = self._call is not None
        return WholeEvent(
            type=f"response.{self._form.stem}.done",
            item_id=self._id,
            output_index=self._place,
            logprobs=self._logprobs if self.kind == "message" else UNSET,
            text=UNSET if is_call else text,
            name=self._call.name if self._call else UNSET,
            arguments=text or "{}" if is_call else UNSET,
            sequence_number=self._numbers.take(),
            **self._index,
        )

    def _item_event(self, what: str, item: OutputItem) -> bytes:
        return event(
            ItemEvent(
                type=f"response.output_item.{what}",
                output_index=self._place,
                item=item,
                sequence_number=self._numbers.take(),
            )
        )

    def _part_event(self, what: str, text: str) -> bytes:
        return event(
            PartEvent(
                type=f"response.{self._form.part}.{what}",
                item_id=self._id,
                output_index=self._place,
                part=self._part(text),
                sequence_number=self._numbers.take(),
                **self._index,
            )
        )

    def _part(self, text: str) -> OutputText | ReasoningText | SummaryText:
        match self.kind:
            case "reasoning":
                return ReasoningText(text)
            case "summary":
                return SummaryText(text)
            case _:
                return self._output_text(text)

    def _output_text(self, text: str) -> OutputText:
        return OutputText(text=text, logprobs=tuple(self._logprobs) if text else ())

    def item(self, status: Progress) -> OutputItem:
        """As it is now; without its text while it is in progress."""
        text = "" if status == "in_progress" else "".join(self._texts)
        if self._call is not None:
            return CallItem(
                id=self._id,
                call_id=self._call.id,
                name=self._call.name,
                arguments=text if status == "in_progress" else text or "{}",
                status=status,
            )
        if self.kind == "message":
            content = () if status == "in_progress" else (self._output_text(text),)
            return MessageItem(id=self._id, status=status, content=content)
        return self._reasoning(text, status)

    def _reasoning(self, text: str, status: Progress) -> ReasoningItem:
        is_over = status != "in_progress"
        content = packed(text) if self._packs and is_over else UNSET
        if self.kind == "summary":
            summary = (SummaryText(text),) if is_over else ()
            return ReasoningItem(
                id=self._id, status=status, summary=summary, encrypted_content=content
            )
        thought = (ReasoningText(text),) if is_over else ()
        return ReasoningItem(id=self._id, status=status, content=thought, encrypted_content=content)


def _logprob(one: TokenLogprob) -> LogprobWire:
    others = tuple(CandidateWire(*_candidate(other)) for other in one.top)
    return LogprobWire(*_candidate(one.chosen), top_logprobs=others)


def _candidate(one: Candidate) -> tuple[str, tuple[int, ...], float]:
    return one.text.decode(errors="replace"), tuple(one.text), max(one.logprob, -1e9)
