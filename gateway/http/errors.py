"""Every error as OpenAI's envelope: ours, Litestar's, or an unexpected exception.

Routes of another API add the fields that their clients read. Where there is no route, Anthropic's
clients are known by a header of theirs: they ask for files and batches, which aren't here.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import structlog
from litestar import MediaType, Request, Response
from litestar.exceptions import HTTPException

from gateway.dialects import anthropic
from gateway.dialects.dialect import Dialect, body
from gateway.dialects.openai import envelope
from gateway.http.request_log import record_of
from gateway.http.services import Services
from gateway.keys.access import Access
from gateway.terms.errors import (
    GatewayError,
    InternalError,
    InvalidKey,
    InvalidRequest,
    MethodNotAllowed,
    NotForPages,
    NotFound,
    RateLimited,
    TooLarge,
    UnsupportedMediaType,
)

log = structlog.get_logger()


Handler: TypeAlias = Callable[[Request[Any, Any, Any], Any], Response[bytes]]

NO_DIALECT = Dialect(name="", tag="")  # of what belongs to no API
MOST_PATIENCE = 60.0  # seconds; OpenAI's clients don't follow a longer `retry-after`


def handlers(
    services: Services, dialect: Dialect = NO_DIALECT
) -> dict[int | type[Exception], Handler]:
    """How each kind of error is answered, in the form of `dialect`."""

    def problem(request: Request[Any, Any, Any], error: GatewayError) -> Response[bytes]:
        record, spoken, access = record_of(request), dialect, request.scope.get("auth")
        if dialect is NO_DIALECT and anthropic.VERSION in request.headers:
            spoken = anthropic.DIALECT
        record.outcome = error.code or error.type
        names = dict.fromkeys(spoken.id_headers, record.id)
        rates = services.books.left(access, spoken.rate_headers) if access else {}
        return Response(
            body((spoken.error or envelope)(error)),
            status_code=error.status_hint,
            media_type=MediaType.JSON,
            headers={**headers(error), **names, **rates},
        )

    def gateway_error(request: Request[Any, Any, Any], error: GatewayError) -> Response[bytes]:
        if (reason := refusal(error)) is not None:
            client = request.client.host if request.client else ""
            record_of(request).refused = True
            # As the route is registered: what a client put into the path may be long.
            services.refusals.note(
                reason, client, f"{request.method} {request.scope['path_template']}"
            )
            return problem(request, error)
        access = request.scope.get("auth") or Access()  # an open route knows no caller
        return problem(request, services.redacted(error, access))

    def http_error(request: Request[Any, Any, Any], error: HTTPException) -> Response[bytes]:
        return problem(request, translate(request, error))

    def unexpected(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
        log.error(
            "request failed",
            request=record_of(request).id,
            path=request.url.path,
            exc_info=error,
        )
        mistake = InternalError("Internal server error; see the server's log.")
        return problem(request, mistake)

    return {GatewayError: gateway_error, HTTPException: http_error, Exception: unexpected}


def refusal(error: GatewayError) -> str | None:
    """Why a request was refused; None for other errors."""
    match error:
        case InvalidKey():
            return "key_missing" if error.missing else "key_wrong"
        case NotForPages() | UnsupportedMediaType():
            return "not_for_pages"
        case _:
            return None


def headers(error: GatewayError) -> Mapping[str, str]:
    """When to retry, and whether an OpenAI client should retry by itself."""
    if error.retry_after is not None:
        wait = {"retry-after": str(max(1, math.ceil(error.retry_after)))}
        is_long = isinstance(error, RateLimited) and error.retry_after > MOST_PATIENCE
        return {**wait, "x-should-retry": "false"} if is_long else wait
    # A client that retries a request that can't succeed only makes its user wait.
    return {"x-should-retry": "false"} if error.status_hint >= 500 else {}


# Routes of TEI's and of Cohere's first API that aren't here, and what is.
INSTEAD = {
    "/similarity": "/v1/score",
    "/embed_all": "/embed, with one vector for a text",
    "/embed_sparse": "/embed, with dense vectors",
    "/predict": "/rerank and /v1/score",
    "/v1/embed": "/v2/embed and /v1/embeddings",
    "/v1/chat": "/v2/chat and /v1/chat/completions",
    "/v1/generate": "/v1/completions",
}


def translate(request: Request[Any, Any, Any], error: HTTPException) -> GatewayError:
    """Litestar's exception as ours."""
    match error.status_code:
        case 404:
            instead = INSTEAD.get(request.url.path)
            hint = f" This server has {instead}." if instead else ""
            return NotFound(f"Unknown request URL: {request.method} {request.url.path}.{hint}")
        case 405:
            return MethodNotAllowed(f"{request.method} is not allowed for {request.url.path}.")
        case 413:
            return TooLarge("The request body is larger than this server takes (server.max_body).")
        case status if status < 500:
            return InvalidRequest(error.detail)
    return InternalError(error.detail)
