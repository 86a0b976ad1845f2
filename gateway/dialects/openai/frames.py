"""Server-sent events as OpenAI writes them: a `data:` line with JSON, an empty line, `[DONE]` at the end."""

import msgspec

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


def frame(message: msgspec.Struct) -> bytes:
    """One event."""
    return b"data: " + _encode(message) + b"\n\n"


def body(message: msgspec.Struct) -> bytes:
    """One JSON document."""
    return _encode(message)
