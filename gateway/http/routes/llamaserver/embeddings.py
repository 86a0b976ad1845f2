"""Vectors in llama-server's own form."""

from typing import Any

from litestar import Request, post
from litestar.types import ASGIApp

from gateway.dialects.llamaserver.embedding import embedding_body, read_embedding
from gateway.http.auth import caller
from gateway.http.exchange import EncodingResponse
from gateway.http.request_log import line_of
from gateway.http.services import Services

AnyRequest = Request[Any, Any, Any]


@post("/embedding")
async def embedding(request: AnyRequest, services: Services) -> ASGIApp:
    """The vectors of texts or token ids, each in a list of vectors."""
    return await embedded(request, services)


async def embedded(request: AnyRequest, services: Services) -> ASGIApp:
    """An answer in llama-server's form, whatever the path."""
    access = services.authenticator.admit(request.headers)
    exchange = await services.read(read_embedding, await request.body())
    request_id = line_of(request).id
    whose = caller(request.headers, request_id)
    return EncodingResponse(
        lambda on_wait: services.encoders.embed(exchange.request, access, on_wait, whose),
        lambda encoded: embedding_body(encoded.vectors),
        services.account("embedding", exchange.request.model, line_of(request), access),
        services.bodies,
        exchange.ignored,
    )


ROUTES = (embedding,)
