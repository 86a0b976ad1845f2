"""The Anthropic dialect: messages, token counts, the model list and the error envelope.

Pure: bytes in, structs out (`read_messages`); events in, bytes out (`MessagesReply`).
"""

from datetime import UTC, datetime

from gateway.dialects.anthropic.reply import (
    PING,
    Count,
    MessagesReply,
    ModelWire,
    error_event,
    error_wire,
    model_page,
    model_wire,
)
from gateway.dialects.anthropic.request import MessagesExchange, read_messages
from gateway.dialects.dialect import Dialect, RateHeaders

ID_HEADER = "request-id"
VERSION = "anthropic-version"  # a header that all its clients send


def _moment(now: float, seconds: float) -> str:
    """RFC 3339."""
    return datetime.fromtimestamp(now + seconds, UTC).isoformat(timespec="seconds")


DIALECT = Dialect(
    name="Anthropic",
    tag="Anthropic",
    error=error_wire,
    id_headers=(ID_HEADER,),
    rate_headers=RateHeaders("anthropic-ratelimit-{unit}-{what}", _moment),
)
