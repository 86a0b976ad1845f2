"""Server-sent events as OpenAI writes them: a `data:` line of JSON and an empty line."""

import msgspec

DONE = b"data: [DONE]\n\n"
PLACEHOLDER = "\0hole"

_encode = msgspec.json.Encoder().encode


def frame(message: msgspec.Struct) -> bytes:
    """One event."""
    return b"data: " + _encode(message) + b"\n\n"


def body(message: msgspec.Struct) -> bytes:
    """One JSON document."""
    return _encode(message)


class FrameTemplate:
    """A frame in which only one text differs from time to time: all but the text is encoded once.

    Made from a message that has `PLACEHOLDER` for that text. Nothing that a client chose may stand
    behind it.
    """

    def __init__(self, message: msgspec.Struct) -> None:
        self._head, found, self._tail = frame(message).rpartition(_encode(PLACEHOLDER))
        assert found, "the message has a placeholder"

    def render(self, text: str) -> bytes:
        """The frame with `text` in its place."""
        return b"".join((self._head, _encode(text), self._tail))
