"""llama-server's text completion and infill."""

from collections.abc import Callable
from typing import Any

from litestar import Request, post
from litestar.types import ASGIApp

from gateway.dialects import openai
from gateway.dialects.llamaserver.completion import CompletionReply
from gateway.dialects.llamaserver.request import (
    CompletionExchange,
    read_completion,
    read_infill,
)
from gateway.http.auth import caller
from gateway.http.exchange import Exchange, WireOptions
from gateway.http.request_log import line_of
from gateway.http.services import Services

AnyRequest = Request[Any, Any, Any]


@post("/completion")
async def completion(request: AnyRequest, services: Services) -> ASGIApp:
    """Complete a text, in llama-server's form."""
    return await _answered(request, services, read_completion, "completion")


@post("/infill")
async def infill(request: AnyRequest, services: Services) -> ASGIApp:
    """Fill in what stands between two texts."""
    return await _answered(request, services, read_infill, "infill")


async def _answered(
    request: AnyRequest,
    services: Services,
    read: Callable[[bytes], CompletionExchange],
    api: str,
) -> ASGIApp:
    access = services.authenticator.admit(request.headers)
    exchange = await services.read(read, await request.body())
    asked, request_id = exchange.request, line_of(request).id
    return Exchange(
        lambda on_wait: services.pipeline.text(
            asked, access, on_wait, caller(request.headers, request_id)
        ),
        lambda answer: CompletionReply(
            exchange, model=answer.model, report=answer.report, parameters=answer.parameters
        ),
        services.failed(access, openai.error_event),
        services.account(api, asked.model, line_of(request), access),
        exchange,
        WireOptions(quiet=services.config.server.comment_after),
    )


ROUTES = (completion, infill)
