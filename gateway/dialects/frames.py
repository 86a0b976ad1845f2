"""Encodes JSON replies: one document, or an event of a stream, with the constant parts encoded
once.
"""

from typing import Any

import msgspec

PLACEHOLDER = "\0hole"

_encode = msgspec.json.Encoder().encode


def frame(message: Any) -> bytes:
    """A server-sent event without a name: a `data:` line of JSON and an empty line."""
    return b"data: " + _encode(message) + b"\n\n"


def named_frame(name: bytes, message: Any) -> bytes:
    """A server-sent event with a name."""
    return b"event: " + name + b"\n" + frame(message)


def line(message: Any) -> bytes:
    """One line of NDJSON."""
    return _encode(message) + b"\n"


def body(message: Any) -> bytes:
    """One JSON document."""
    return _encode(message)


class FrameTemplate:
    """A frame in which only one text differs from time to time: all but the text is encoded once.

    Made from a frame whose message has `PLACEHOLDER` for that text. Nothing that a client chose
    may stand behind it.
    """

    def __init__(self, encoded: bytes) -> None:
        self._head, found, self._tail = encoded.rpartition(_encode(PLACEHOLDER))
        assert found, "the message has a placeholder"

    def render(self, text: str) -> bytes:
        """The frame with `text` in its place."""
        return b"".join((self._head, _encode(text), self._tail))
