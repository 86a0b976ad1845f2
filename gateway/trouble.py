"""Backend errors become gateway errors: the border between the engines and the clients."""

from collections.abc import Iterator, Mapping
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


@contextmanager
def as_written(spelled: Mapping[str, str]) -> Iterator[None]:
    """Errors name a field as the client wrote it. `spelled`: our names, and the client's."""
    try:
        yield
    except InvalidRequest as error:
        written = spelled.get(error.param or "")
        if written is None:
            raise
        message = error.message.replace(f"{error.param}: ", f"{written}: ", 1)
        raise type(error)(message, param=written) from error


def translate(error: BackendError) -> GatewayError:
    """The client's view of `error`."""
    match error:
        case PromptTooLong():
            return ContextLengthExceeded(str(error), param=error.param)
        case InvalidJob(param=str(param)):
            return InvalidRequest(f"{param}: {error}", param=param)
        case InvalidJob():
            return InvalidRequest(str(error))
        case OutOfMemory():
            return ModelUnavailable(f"memory ran out: {error}")
        case LoadFailed():
            return ModelUnavailable(str(error))
        case _:
            return InternalError(str(error))
