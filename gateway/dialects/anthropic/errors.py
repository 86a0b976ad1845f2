"""Anthropic's error envelope, with the field at fault and our code beside what its clients read."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from gateway.dialects.frames import body, named_frame
from gateway.errors import GatewayError

# By status, as Anthropic's API has them; its 529 is our 503.
TYPES: Mapping[int, str] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """`param` and `code` are ours."""

    type: str
    message: str
    param: str | None
    code: str | None


class ErrorEnvelope(msgspec.Struct, frozen=True):
    """The body of a failed request, and the last event of a broken stream."""

    error: ErrorDetail
    type: Literal["error"] = "error"


def _envelope(error: GatewayError) -> ErrorEnvelope:
    kind = TYPES.get(error.status_hint, "api_error")
    return ErrorEnvelope(
        ErrorDetail(type=kind, message=error.message, param=error.param, code=error.code)
    )


def error_body(error: GatewayError) -> bytes:
    """The JSON body that answers a request with `error`."""
    return body(_envelope(error))


def error_event(error: GatewayError) -> bytes:
    """The last event of a broken stream."""
    return named_frame(b"error", _envelope(error))
