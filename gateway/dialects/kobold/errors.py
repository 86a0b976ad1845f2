"""KoboldCpp's errors: `detail` with `msg` and `type`, and in it the field at fault and our code.

SillyTavern reads `error.message` of a stream that never began, so that is there too.
"""

import msgspec

from gateway.dialects.frames import body, named_frame
from gateway.errors import GatewayError


class DetailWire(msgspec.Struct, frozen=True, kw_only=True):
    """`param` and `code` are ours."""

    msg: str
    type: str
    param: str | None
    code: str | None


class MessageWire(msgspec.Struct, frozen=True):
    """The same text where frontends read it."""

    message: str


class KoboldError(msgspec.Struct, frozen=True):
    """The body of a failed request, and the last event of a broken stream."""

    detail: DetailWire
    error: MessageWire


def _wire(error: GatewayError) -> KoboldError:
    detail = DetailWire(msg=error.message, type=error.type, param=error.param, code=error.code)
    return KoboldError(detail, MessageWire(error.message))


def error_body(error: GatewayError) -> bytes:
    """The JSON body that answers a request with `error`."""
    return body(_wire(error))


def error_event(error: GatewayError) -> bytes:
    """The last event of a broken stream."""
    return named_frame(b"error", _wire(error))
