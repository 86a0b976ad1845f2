"""OpenAI's error envelope. Statuses and headers are HTTP's to choose."""

import msgspec

from gateway.dialects.frames import body, frame
from gateway.errors import GatewayError


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """All four keys are always there; `param` and `code` may be null."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(msgspec.Struct, frozen=True):
    """The body of a failed request, and the last event of a broken stream."""

    error: ErrorDetail


def envelope(error: GatewayError) -> ErrorEnvelope:
    """What `error` looks like to a client."""
    detail = ErrorDetail(message=error.message, type=error.type, param=error.param, code=error.code)
    return ErrorEnvelope(detail)


def error_body(error: GatewayError) -> bytes:
    """The JSON body that answers a request with `error`."""
    return body(envelope(error))


def error_event(error: GatewayError) -> bytes:
    """The last event of a broken stream; no `[DONE]`, so that nobody takes it for whole."""
    return frame(envelope(error))
