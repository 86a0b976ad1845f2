"""Server-sent events as OpenAI writes them: a `data:` line of JSON and an empty line."""

import msgspec

DONE = b"data: [DONE]\n\n"
HOLE = "\0hole"

_encode = msgspec.json.Encoder().encode


def frame(message: msgspec.Struct) -> bytes:
    """One event."""
    return b"data: " + _encode(message) + b"\n\n"


def body(message: msgspec.Struct) -> bytes:
    """One JSON document."""
    return _encode(message)


class Mould:
    """A frame in which only one text differs from time to time: all but the text is encoded once.

    Made from a message that has `HOLE` for that text. Nothing that a client chose may stand behind
    the hole.
    """

    def __init__(self, message: msgspec.Struct) -> None:
        self._head, hole, self._tail = frame(message).rpartition(_encode(HOLE))
        assert hole, "the message has a hole"

    def cast(self, text: str) -> bytes:
        """The frame with `text` in the hole."""
        return b"".join((self._head, _encode(text), self._tail))
