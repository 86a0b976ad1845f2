"""TGI's errors: a text and its type, by which its clients choose an exception; ours beside them."""

from typing import Literal

import msgspec

from gateway.dialects.frames import body, frame
from gateway.errors import GatewayError


class TgiError(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a failed request, and the last event of a broken stream. `param` and `code` are
    ours.
    """

    error: str
    error_type: Literal["validation", "overloaded", "generation"]
    param: str | None
    code: str | None


def _wire(error: GatewayError) -> TgiError:
    overloaded, own = error.status_hint in (429, 503), error.status_hint >= 500
    return TgiError(
        error=error.message,
        error_type="overloaded" if overloaded else "generation" if own else "validation",
        param=error.param,
        code=error.code,
    )


def error_body(error: GatewayError) -> bytes:
    """The JSON body that answers a request with `error`."""
    return body(_wire(error))


def error_event(error: GatewayError) -> bytes:
    """The last event of a broken stream."""
    return frame(_wire(error))
