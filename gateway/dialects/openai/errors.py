"""OpenAI's error envelope. Statuses and headers are HTTP's to choose."""

import msgspec
from msgspec import UNSET, UnsetType

from gateway.dialects.frames import body, frame
from gateway.errors import ContextLengthExceeded, GatewayError


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """The first four keys are always there; `param` and `code` may be null. The lengths are
    llama-server's, of a prompt that doesn't fit: tokens.
    """

    message: str
    type: str
    param: str | None
    code: str | None
    n_prompt_tokens: int | UnsetType = UNSET
    n_ctx: int | UnsetType = UNSET


class ErrorEnvelope(msgspec.Struct, frozen=True):
    """The body of a failed request, and the last event of a broken stream."""

    error: ErrorDetail


def envelope(error: GatewayError) -> ErrorEnvelope:
    """`error` as sent to a client."""
    prompt, context = _lengths(error)
    detail = ErrorDetail(
        message=error.message,
        type=error.type,
        param=error.param,
        code=error.code,
        n_prompt_tokens=prompt,
        n_ctx=context,
    )
    return ErrorEnvelope(detail)


def _lengths(error: GatewayError) -> tuple[int | UnsetType, int | UnsetType]:
    match error:
        case ContextLengthExceeded(prompt_tokens=int(prompt), context_length=int(context)):
            return prompt, context
    return UNSET, UNSET


def error_body(error: GatewayError) -> bytes:
    """The JSON body that answers a request with `error`."""
    return body(envelope(error))


def error_event(error: GatewayError) -> bytes:
    """The last event of a broken stream; no `[DONE]`, so that no client takes it for complete."""
    return frame(envelope(error))
