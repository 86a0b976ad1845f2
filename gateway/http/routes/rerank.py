"""Reranking: Jina's and Cohere's paths, and llama-server's spellings of them; vLLM's scores."""

import time

from litestar import post
from litestar.types import ASGIApp

from gateway.dialects import rerank as dialect
from gateway.http.auth import AnyRequest
from gateway.http.exchange import EncodingResponse
from gateway.http.openapi import Described, Routes
from gateway.http.request_log import record_of
from gateway.http.services import Services


@post(["/v1/rerank", "/rerank", "/v1/reranking", "/reranking"], access="user")
async def rerank(request: AnyRequest, services: Services) -> ASGIApp:
    """Rank documents by relevance to a query, the best first. Requests with `texts` get TEI's
    format.
    """
    return await _ranked(request, services, "1")


@post("/v2/rerank", access="user")
async def rerank_v2(request: AnyRequest, services: Services) -> ASGIApp:
    """Rank documents, in the format of version 2 of Cohere's API."""
    return await _ranked(request, services, "2")


async def _ranked(request: AnyRequest, services: Services, version: str) -> ASGIApp:
    body = await request.body()
    exchange = await services.read(lambda content: dialect.read_rerank(content, version), body)
    request_id = record_of(request).id
    return EncodingResponse(
        services.asking(request, "rerank", exchange.request),
        services.encoders.rank,
        lambda encoded: dialect.rerank_body(
            exchange,
            id=f"rerank-{request_id}",
            model=encoded.model,
            scores=encoded.vectors,
            tokens=encoded.prompt_tokens,
        ),
    )


@post(["/v1/score", "/score"], access="user")
async def score(request: AnyRequest, services: Services) -> ASGIApp:
    """Score pairs of texts, in vLLM's format."""
    exchange = await services.read(dialect.read_score, await request.body())
    request_id, created = record_of(request).id, int(time.time())
    return EncodingResponse(
        services.asking(request, "score", exchange.request),
        services.encoders.score,
        lambda encoded: dialect.score_body(
            f"score-{request_id}",
            created=created,
            model=encoded.model,
            scores=encoded.vectors,
            tokens=encoded.prompt_tokens,
        ),
    )


_DOCUMENTS = {"query": "Who eats?", "documents": ["A man is eating.", "It rains."], "top_n": 1}

ROUTES: Routes = {
    rerank: Described(
        takes=dialect.RerankWire,
        gives=(dialect.RerankList, list[dialect.ScoreWire]),
        examples={
            "The best document": _DOCUMENTS,
            "As TEI has it": {"query": "Who eats?", "texts": ["A man is eating.", "It rains."]},
        },
    ),
    rerank_v2: Described(
        takes=dialect.RerankWire,
        gives=(dialect.RerankList, list[dialect.ScoreWire]),
        examples={"The best document": _DOCUMENTS},
    ),
    score: Described(
        takes=dialect.ScoreBody,
        gives=(dialect.ScoreList,),
        examples={"A text to several": {"text_1": "Who eats?", "text_2": ["A man.", "Rain."]}},
    ),
}
