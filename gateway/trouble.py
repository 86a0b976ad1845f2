"""Backend errors become gateway errors: the border between the engines and the clients."""

from collections.abc import Iterator
from contextlib import contextmanager

from backends.errors import BackendError, InvalidJob, LoadFailed, OutOfMemory, PromptTooLong
from gateway.errors import (
    ContextLengthExceeded,
    GatewayError,
    InternalError,
    InvalidRequest,
    ModelUnavailable,
)


@contextmanager
def translated() -> Iterator[None]:
    """Raises the `GatewayError` that tells a client what happened below."""
    try:
        yield
    except BackendError as error:
        raise translate(error) from error


def translate(error: BackendError) -> GatewayError:
    """The client's view of `error`."""
    match error:
        case PromptTooLong():
            return ContextLengthExceeded(str(error), param=error.param)
        case InvalidJob():
            return InvalidRequest(str(error), param=error.param)
        case OutOfMemory():
            return ModelUnavailable(f"memory ran out: {error}")
        case LoadFailed():
            return ModelUnavailable(str(error))
        case _:
            return InternalError(str(error))
