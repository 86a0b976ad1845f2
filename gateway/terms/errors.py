"""The hierarchy of errors that clients see. HTTP itself lives in gateway.http.

    GatewayError
    ├── InvalidRequest            400 invalid_request_error
    │   ├── ContextLengthExceeded 400 … code context_length_exceeded
    │   ├── ThreadNotHeld         400 … code thread_unsupported_request
    │   └── PreviousNotFound      400 … code previous_response_not_found
    ├── InvalidKey                401 authentication_error
    ├── Forbidden                 403 permission_error
    │   └── NotForPages           403 … a web page's request, where there are no keys
    ├── NotFound                  404 not_found_error
    │   └── ModelNotFound         404 … code model_not_found
    ├── MethodNotAllowed          405
    ├── Conflict                  409: what is changed was changed by another meanwhile
    ├── TooLarge                  413
    ├── UnsupportedMediaType      415
    ├── QueueFull                 429 rate_limit_error
    ├── RateLimited               429 rate_limit_error, code rate_limit_exceeded: the key's limits
    ├── ModelUnavailable          503 server_error: the model can't be loaded now, and why
    │   └── InvalidTemplate       503 … because its chat template is broken
    ├── NotSupported              501: the model or its engine has nothing of the kind
    ├── ShuttingDown              503
    ├── LoopDetected              508: it came through this server before, or through too many
    ├── Cancelled                 503 code cancelled: an administrator, or its own key, ended it
    ├── UpstreamFailed            what another server said; 502 or 504 where it said nothing of use
    └── InternalError             500 server_error: our mistake, or the engine's

Each class carries OpenAI's `type` and `code` and a status hint; an instance may name the `param` at
fault.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from typing import Self

from backends.contract.errors import (
    BackendError,
    EngineLost,
    InputTooLong,
    InvalidJob,
    LoadFailed,
    NotAble,
    OutOfMemory,
    PromptTooLong,
    UpstreamError,
)


class GatewayError(Exception):
    """Base of all errors a client sees."""

    status_hint: int = 500
    type: str = "server_error"
    code: str | None = None

    def __init_subclass__(
        cls, *, status: int | None = None, type: str | None = None, code: str | None = None
    ) -> None:
        """A class says what differs from its base."""
        cls.status_hint, cls.type = status or cls.status_hint, type or cls.type
        cls.code = code or cls.code

    def __init__(
        self, message: str, *, param: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after  # seconds

    @classmethod
    def at(cls, param: str, message: object) -> Self:
        """About the field `param`, which the message begins with."""
        return cls(f"{param}: {message}", param=param)

    def __copy__(self) -> Self:
        """Whatever the subclass is made of: exceptions are copied by calling their class."""
        same = type(self).__new__(type(self), *self.args)
        same.__dict__.update(self.__dict__)
        return same


class InvalidRequest(GatewayError, status=400, type="invalid_request_error"):
    """The request is at fault; `param` names the field, for example `messages[0].role`."""


class ContextLengthExceeded(InvalidRequest, code="context_length_exceeded"):
    """The prompt doesn't fit the model's context. Lengths are tokens; of a prompt that was refused
    before it was tokenized, as many as it has at least.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        prompt_tokens: int | None = None,
        context_length: int | None = None,
    ) -> None:
        super().__init__(message, param=param)
        self.prompt_tokens = prompt_tokens
        self.context_length = context_length


class ThreadNotHeld(InvalidRequest, code="thread_unsupported_request"):
    """The request continues a conversation that the server would have to hold. Anthropic's clients
    read the code, and send all of it.
    """


class PreviousNotFound(InvalidRequest, code="previous_response_not_found"):
    """The response that a request goes on from isn't stored. OpenAI's clients read the code, and
    send the whole conversation.
    """

    def __init__(self, name: str) -> None:
        text = f"previous_response_id: Response {name!r:.80} not found."
        super().__init__(text, param="previous_response_id")


class InvalidKey(GatewayError, status=401, type="authentication_error", code="invalid_api_key"):
    """No API key (`missing`), or a wrong one."""

    def __init__(self, message: str, *, missing: bool = False) -> None:
        super().__init__(message)
        self.missing = missing


class Forbidden(GatewayError, status=403, type="permission_error", code="permission_denied"):
    """The key is right but may not do this."""


class NotForPages(Forbidden):
    """Without keys: a web page may have made a browser send this."""


class NotFound(GatewayError, status=404, type="not_found_error", code="not_found"):
    """No such route or object."""


class ModelNotFound(NotFound, type="invalid_request_error", code="model_not_found"):
    """No such model. The message names the nearest ones."""


class MethodNotAllowed(
    GatewayError, status=405, type="invalid_request_error", code="method_not_allowed"
):
    """The route exists, the method doesn't."""


class Conflict(GatewayError, status=409, type="invalid_request_error", code="conflict"):
    """What is to be changed isn't what its client has seen of it."""


class TooLarge(GatewayError, status=413, type="invalid_request_error", code="request_too_large"):
    """The body is larger than the server takes."""


class UnsupportedMediaType(
    GatewayError, status=415, type="invalid_request_error", code="unsupported_media_type"
):
    """The body has a content type that isn't taken."""


class QueueFull(GatewayError, status=429, type="rate_limit_error", code="queue_full"):
    """Too many requests wait already."""


class RateLimited(GatewayError, status=429, type="rate_limit_error", code="rate_limit_exceeded"):
    """The key has taken what its limits allow for now."""


class ModelUnavailable(GatewayError, status=503, code="model_unavailable"):
    """The model can't be served now; the message says why and the way out."""


class InvalidTemplate(ModelUnavailable):
    """The model's chat template can't be used. The message names line and reason."""


class NotSupported(GatewayError, status=501, type="not_supported_error", code="not_supported"):
    """The model, its engine or the configuration has nothing of the kind."""


class ShuttingDown(GatewayError, status=503, code="shutting_down"):
    """The server is stopping."""


class LoopDetected(GatewayError, status=508, code="loop_detected"):
    """Servers that are each other's upstreams sent a request in a circle."""


class ClientLeft(GatewayError, status=499, code="left"):  # nginx's status
    """Its client has gone before the request was whole: nobody reads what is answered."""


class Cancelled(GatewayError, status=503, code="cancelled"):
    """The request was ended on purpose while it ran, not by its client's connection."""


class UpstreamFailed(GatewayError):
    """Another server's error: its own status, type and code."""

    def __init__(self, error: UpstreamError) -> None:
        super().__init__(str(error), param=error.param, retry_after=error.retry_after)
        self.status_hint = error.status
        self.type = error.type
        self.code = error.code


class EngineGone(GatewayError, status=502, code="engine_lost"):
    """What computed the answer is gone; the model can be asked for again."""


class InternalError(GatewayError, code="internal_error"):
    """A mistake of ours or a failure of the engine."""


@contextmanager
def translated() -> Iterator[None]:
    """Raises errors of the floors below as the `GatewayError` that the client gets."""
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
        copied = copy(error)
        copied.message = error.message.replace(f"{error.param}: ", f"{written}: ", 1)
        copied.param = written
        raise copied from error


def translate(error: BackendError) -> GatewayError:
    """The client's view of `error`."""
    match error:
        case PromptTooLong() | InputTooLong():
            return ContextLengthExceeded(
                str(error),
                param=error.param,
                prompt_tokens=error.prompt_tokens,
                context_length=error.context_length,
            )
        case InvalidJob(param=str(param)):
            return InvalidRequest(f"{param}: {error}", param=param)
        case InvalidJob():
            return InvalidRequest(str(error))
        case NotAble():
            return NotSupported(str(error))
        case UpstreamError():
            return UpstreamFailed(error)
        case OutOfMemory():
            return ModelUnavailable(f"memory ran out: {error}")
        case LoadFailed():
            return ModelUnavailable(str(error))
        case EngineLost():
            return EngineGone(str(error))
        case _:
            return InternalError(str(error))
