"""Every error as OpenAI's envelope: ours, Litestar's, or an unexpected exception.

Routes of another API add the fields that their clients read.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import structlog
from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException

from gateway.access import Access
from gateway.dialects.openai import error_body
from gateway.errors import (
    GatewayError,
    InternalError,
    InvalidKey,
    InvalidRequest,
    MethodNotAllowed,
    NotForPages,
    NotFound,
    TooLarge,
    UnsupportedMediaType,
)
from gateway.http.request_record import line_of
from gateway.http.services import Services

log = structlog.get_logger()


Handler: TypeAlias = Callable[[Request[Any, Any, Any], Any], Response[bytes]]


def handlers(
    services: Services,
    body_of: Callable[[GatewayError], bytes] = error_body,
    id_headers: Sequence[str] = (),
) -> dict[int | type[Exception], Handler]:
    """How each kind of error is answered: bodies made by `body_of`, the request's id in
    `id_headers` too.
    """

    def problem(request: Request[Any, Any, Any], error: GatewayError) -> Response[bytes]:
        line = line_of(request)
        line.outcome = error.code or error.type
        names = dict.fromkeys(id_headers, line.id)
        return Response(
            body_of(error),
            status_code=error.status_hint,
            media_type=MediaType.JSON,
            headers={**headers(error), **names},
        )

    def gateway_error(request: Request[Any, Any, Any], error: GatewayError) -> Response[bytes]:
        if (reason := _refusal(error)) is not None:
            client = request.client.host if request.client else ""
            line_of(request).refused = True
            services.refusals.note(reason, client, f"{request.method} {_route(request)}")
            return problem(request, error)
        access = request.scope.get("auth") or Access()  # an open route knows no caller
        return problem(request, services.redacted(error, access))

    def http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
        return problem(request, translate(request, error))

    def unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
        log.error(
            "request failed",
            request=line_of(request).id,
            path=request.url.path,
            exc_info=error,
        )
        mistake = InternalError("Internal server error; see the server's log.")
        return problem(request, mistake)

    return {GatewayError: gateway_error, HTTPException: http_error, Exception: unexpected}


def _refusal(error: GatewayError) -> str | None:
    """Why a request was refused; None for other errors."""
    match error:
        case InvalidKey():
            return "key_missing" if error.missing else "key_wrong"
        case NotForPages() | UnsupportedMediaType():
            return "not_for_pages"
        case _:
            return None


def _route(request: Request[Any, Any, Any]) -> str:
    """As it is registered: what a client put into the path may be long."""
    return request.scope["path_template"]


def headers(error: GatewayError) -> Mapping[str, str]:
    """When to retry, and whether an OpenAI client should retry by itself."""
    if error.retry_after is not None:
        return {"retry-after": str(max(1, round(error.retry_after)))}
    # A client that retries a request that can't succeed only makes its user wait.
    return {"x-should-retry": "false"} if error.status_hint >= 500 else {}


def translate(request: Request[Any, Any, Any], error: HTTPException) -> GatewayError:
    """Litestar's exception as ours."""
    match error.status_code:
        case 404:
            return NotFound(f"Unknown request URL: {request.method} {request.url.path}.")
        case 405:
            return MethodNotAllowed(f"{request.method} is not allowed for {request.url.path}.")
        case 413:
            return TooLarge("The request body is larger than this server takes (server.max_body).")
        case status if status < 500:
            return InvalidRequest(error.detail)
    return InternalError(error.detail)
