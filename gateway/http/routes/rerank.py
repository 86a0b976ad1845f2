"""Reranking: Jina's and Cohere's paths, and llama-server's spellings of them; vLLM's scores."""

import time
from typing import Any

from litestar import Request, post
from litestar.types import ASGIApp

from gateway.dialects import rerank as dialect
from gateway.http.auth import caller
from gateway.http.exchange import EncodingResponse
from gateway.http.request_record import line_of
from gateway.http.services import Services

AnyRequest = Request[Any, Any, Any]


@post(["/v1/rerank", "/rerank", "/v1/reranking", "/reranking"])
async def rerank(request: AnyRequest, services: Services) -> ASGIApp:
    """Documents, the one that answers a query best first; TEI's form where they are `texts`."""
    return await _ranked(request, services, "1")


@post("/v2/rerank")
async def rerank_v2(request: AnyRequest, services: Services) -> ASGIApp:
    """The same by Cohere's second version."""
    return await _ranked(request, services, "2")


async def _ranked(request: AnyRequest, services: Services, version: str) -> ASGIApp:
    access = services.authenticator.admit(request.headers)
    body = await request.body()
    exchange = await services.read(lambda content: dialect.read_rerank(content, version), body)
    request_id = line_of(request).id
    whose = caller(request.headers, request_id)
    return EncodingResponse(
        lambda on_wait: services.encoders.rank(exchange.request, access, on_wait, whose),
        lambda encoded: dialect.rerank_body(
            exchange,
            id=f"rerank-{request_id}",
            model=encoded.model,
            scores=encoded.vectors,
            tokens=encoded.prompt_tokens,
        ),
        services.account("rerank", exchange.request.model, line_of(request), access),
        services.bodies,
    )


@post(["/v1/score", "/score"])
async def score(request: AnyRequest, services: Services) -> ASGIApp:
    """How well texts fit each other, pair by pair, as vLLM has it."""
    access = services.authenticator.admit(request.headers)
    exchange = await services.read(dialect.read_score, await request.body())
    request_id, created = line_of(request).id, int(time.time())
    whose = caller(request.headers, request_id)
    return EncodingResponse(
        lambda on_wait: services.encoders.score(exchange.request, access, on_wait, whose),
        lambda encoded: dialect.score_body(
            f"score-{request_id}",
            created=created,
            model=encoded.model,
            scores=encoded.vectors,
            tokens=encoded.prompt_tokens,
        ),
        services.account("score", exchange.request.model, line_of(request), access),
        services.bodies,
    )


ROUTES = (rerank, rerank_v2, score)
