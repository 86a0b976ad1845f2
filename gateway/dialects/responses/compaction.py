"""Compaction: a conversation whose earlier part is a summary. How it is asked for, and its body.

The summary is the model's own. It stands packed in an item of type `compaction`, as reasoning does
in `encrypted_content`: not secret, but all in one place, so that nothing has to be stored. What
users said stays as it was.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from gateway.dialects.dialect import Reply, body
from gateway.dialects.responses.answer_items import CompactionItem
from gateway.dialects.responses.items import Item, kept
from gateway.dialects.responses.reply import UsageWire, usage_wire
from gateway.terms.errors import InternalError
from gateway.terms.events import Content, Delta, Usage
from gateway.terms.request import ChatRequest, GenerationParams, Message, TextPart, Thinking

LONGEST_SUMMARY = 4_096  # tokens
PROMPT = """\
This conversation is about to be continued by someone who only sees what the user said, and a
summary that you write now. Say in it what was found out and decided, what was done so far with the
names of files, functions and commands that matter, what failed and why, and what is left to do.
Write the summary only."""


class CompactedWire(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="response.compaction"
):
    """A conversation made shorter: what users said, and a summary of all."""

    id: str
    created_at: int
    output: Sequence[Any]
    usage: UsageWire


def summary_asked(request: ChatRequest) -> ChatRequest:
    """The request for a summary of what `request` would go on with."""
    question = Message(role="user", parts=(TextPart(PROMPT),))
    asked = request.answering
    return msgspec.structs.replace(
        request,
        messages=(*request.messages, question),
        tools=(),
        tool_choice="none",
        answering=GenerationParams(
            sampling=asked.sampling,
            max_tokens=LONGEST_SUMMARY,
            keep_alive=asked.keep_alive,
            unapplied=asked.unapplied,
            spelled=asked.spelled,
            streamed=False,
        ),
        thinking=Thinking(enabled=False),
        continue_final=False,
    )


def summary_of(deltas: Sequence[Delta]) -> str:
    """What was said in them. Raises InternalError where that is nothing."""
    events = (event for delta in deltas for event in delta.events)
    summary = "".join(event.text for event in events if isinstance(event, Content)).strip()
    if not summary:
        raise InternalError("The model wrote no summary.")
    return summary


class CompactReply(Reply):
    """The body of a compaction. It is never a stream. `items`: the whole conversation."""

    items: Sequence[Item]
    id: str
    created: int
    new_id: Callable[[], str]
    _deltas: list[Delta] = msgspec.field(default_factory=list)

    def delta(self, delta: Delta) -> bytes:
        """Some more of the summary, of which nothing is sent."""
        self._deltas.append(delta)
        return b""

    def closing(self, usage: Usage) -> bytes:
        """As `whole`."""
        return self.whole(usage)

    def whole(self, usage: Usage) -> bytes:
        """The JSON body. Raises InternalError where the model said nothing."""
        said = kept([item for item in self.items if is_said(item)], self.new_id)
        output = (*said, CompactionItem.of(summary_of(self._deltas), self.new_id))
        return body(
            CompactedWire(
                id=self.id, created_at=self.created, output=output, usage=usage_wire(usage)
            )
        )


def is_said(item: Mapping[str, Any]) -> bool:
    """It is a message that is not the model's: a compaction leaves it as it is."""
    return item.get("type", "message") == "message" and item.get("role") == "user"
