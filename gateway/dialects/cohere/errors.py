"""Cohere's errors: a message, with the field at fault and our code beside it; and how a broken
stream ends.
"""

from typing import Literal

import msgspec

from gateway.dialects.frames import body, named_frame
from gateway.errors import GatewayError


class CohereError(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a failed request. `param` and `code` are ours."""

    message: str
    param: str | None
    code: str | None


class FailedDelta(msgspec.Struct, frozen=True):
    """Why a stream broke."""

    error: str
    finish_reason: Literal["ERROR"] = "ERROR"


class MessageFailed(msgspec.Struct, frozen=True, tag="message-end"):
    """The last event of a broken stream."""

    delta: FailedDelta


def error_body(error: GatewayError) -> bytes:
    """The JSON body that answers a request with `error`."""
    return body(CohereError(message=error.message, param=error.param, code=error.code))


def error_event(error: GatewayError) -> bytes:
    """The last event of a broken stream."""
    return named_frame(b"message-end", MessageFailed(FailedDelta(error.message)))
