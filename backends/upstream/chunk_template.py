"""Chunks of a stream that differ in one text alone, which nearly all do: the text is read, and not
the rest of each. Knows no format: what a chunk means is its reader's business.
"""

import re
from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from backends.remote import RemoteDelta, RemoteEvent

LONGEST = 4_096  # bytes of a payload that is learnt from
MOST_TEXTS = 4  # of a payload that are tried
CHANCES = 3  # templates in a row that no chunk fitted; then there are no more

_TEXT = re.compile(
    rb'"(?:content|text|reasoning_content|reasoning)"\s*:\s*("(?:[^"\\]|\\.)*")', re.DOTALL
)
_BEGINNINGS = (b"data: ", b"data:")
_HOLE = "\0hole"
_ENCODED_HOLE = msgspec.json.encode(_HOLE)

_decode_text = msgspec.json.Decoder(str).decode


class ChunkTemplate:
    """Of one answer. A payload fits if it has the template's bytes around one JSON string: then it
    means what the payload that was learnt from meant, with another text.
    """

    def __init__(self) -> None:
        self._head = self._tail = b""
        self._is_reasoning = False
        self._choice = 0
        self._chances = CHANCES

    def read(self, payload: bytes) -> RemoteDelta | None:
        """The delta of a payload that fits; None: it is to be read whole."""
        head, tail = self._head, self._tail
        if not head or not payload.startswith(head) or not payload.endswith(tail):
            return None
        try:
            text = _decode_text(payload[len(head) : len(payload) - len(tail)])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        if not text:
            return None
        self._chances = CHANCES
        if self._is_reasoning:
            return RemoteDelta(choice=self._choice, reasoning=text)
        return RemoteDelta(choice=self._choice, content=text)

    def around(self, event: bytes) -> tuple[bytes, bytes] | None:
        """What stands around the text's quotes in a whole event of server-sent events, if its one
        payload fits.
        """
        start = event.find(self._head)
        fits = self._head and event[:start] in _BEGINNINGS and event.endswith(self._tail + b"\n\n")
        if not fits or event.count(b"\n") != 2:
            return None
        return event[:start] + self._head + b'"', b'"' + self._tail + b"\n\n"

    def learn(
        self,
        payload: bytes,
        events: Sequence[RemoteEvent],
        read: Callable[[bytes], Sequence[RemoteEvent]],
    ) -> None:
        """`payload` was read whole, as `events`. `read` reads another one without keeping anything
        of it. Servers write the time, or padding, into each: such are learnt a few times.
        """
        if not self._chances or len(events) != 1 or len(payload) > LONGEST:
            return
        (event,) = events
        if not isinstance(event, RemoteDelta):
            return
        text, is_reasoning = event.content or event.reasoning, not event.content
        if text == _HOLE or event != _delta(event.choice, text, is_reasoning=is_reasoning):
            return
        self._chances -= 1
        expected = [_delta(event.choice, _HOLE, is_reasoning=is_reasoning)]
        for found in islice(_TEXT.finditer(payload), MOST_TEXTS):
            head, tail = payload[: found.start(1)], payload[found.end(1) :]
            if read(head + _ENCODED_HOLE + tail) == expected:
                self._head, self._tail = head, tail
                self._choice, self._is_reasoning = event.choice, is_reasoning
                return

    def forget(self) -> None:
        """What the learnt payload meant has changed."""
        self._head = b""


def text_between(head: bytes, tail: bytes) -> Callable[[bytes], str]:
    """A function of an event that has these around its text's quotes, see `around`: the text; "":
    it hasn't, or is to be read whole.
    """
    start, end, decode = len(head) - 1, 1 - len(tail), _decode_text

    def text_of(event: bytes) -> str:
        if not event.startswith(head) or not event.endswith(tail):
            return ""
        try:
            return decode(event[start:end])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return ""

    return text_of


def _delta(choice: int, text: str, *, is_reasoning: bool) -> RemoteDelta:
    if is_reasoning:
        return RemoteDelta(choice=choice, reasoning=text)
    return RemoteDelta(choice=choice, content=text)
