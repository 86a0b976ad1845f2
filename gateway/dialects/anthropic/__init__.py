"""The Anthropic dialect: messages, token counts, the model list and the error envelope.

Pure: bytes in, structs out (`read_messages`); events in, bytes out (`MessagesReply`).
"""

from gateway.dialects.anthropic.reply import (
    PING,
    Able,
    MessagesReply,
    ModelWire,
    count_body,
    error_body,
    error_event,
    model_body,
    model_page,
    model_wire,
)
from gateway.dialects.anthropic.request import MessagesExchange, read_messages

__all__ = [
    "PING",
    "Able",
    "MessagesExchange",
    "MessagesReply",
    "ModelWire",
    "count_body",
    "error_body",
    "error_event",
    "model_body",
    "model_page",
    "model_wire",
    "read_messages",
]
