"""Ollama's errors: a text, with the field at fault and our code beside it."""

import msgspec

from gateway.dialects.frames import body, line
from gateway.errors import GatewayError


class ErrorWire(msgspec.Struct, frozen=True, kw_only=True):
    """`param` and `code` are ours."""

    error: str
    param: str | None
    code: str | None


def _wire(error: GatewayError) -> ErrorWire:
    return ErrorWire(error=error.message, param=error.param, code=error.code)


def error_body(error: GatewayError) -> bytes:
    """The JSON body that answers a request with `error`."""
    return body(_wire(error))


def error_line(error: GatewayError) -> bytes:
    """The last line of a broken stream."""
    return line(_wire(error))
