"""Reranking: Jina's and Cohere's paths, and llama-server's spellings of them; vLLM's scores."""

import time
from functools import partial

from litestar import post
from litestar.types import ASGIApp
from msgspec.structs import replace

from gateway.dialects import rerank as dialect
from gateway.http.auth import AnyRequest
from gateway.http.openapi import Described
from gateway.http.request_log import record_of
from gateway.http.routing import Routes
from gateway.http.services import Services

api = Routes()


@api(post, ["/v1/rerank", "/rerank", "/v1/reranking", "/reranking"], access="user")
async def rerank(request: AnyRequest, services: Services) -> ASGIApp:
    """Rank documents by relevance to a query, the best first. Requests with `texts` get TEI's
    format.
    """
    return await _ranked(request, services, "1")


@api(post, "/v2/rerank", access="user")
async def rerank_v2(request: AnyRequest, services: Services) -> ASGIApp:
    """Rank documents, in the format of version 2 of Cohere's API."""
    return await _ranked(request, services, "2")


async def _ranked(request: AnyRequest, services: Services, version: str) -> ASGIApp:
    read = partial(dialect.read_rerank, version=version)
    write = partial(dialect.rerank_body, id=f"rerank-{record_of(request).id}")
    return await services.encoding(request, "rerank", read, services.encoders.rank, write)


@api(post, ["/v1/score", "/score"], access="user")
async def score(request: AnyRequest, services: Services) -> ASGIApp:
    """Score pairs of texts, in vLLM's format."""
    name, created = f"score-{record_of(request).id}", int(time.time())
    return await services.encoding(
        request,
        "score",
        dialect.read_score,
        services.encoders.score,
        lambda _exchange, encoded: dialect.score_body(encoded, name, created),
    )


_DOCUMENTS = {"query": "Who eats?", "documents": ["A man is eating.", "It rains."], "top_n": 1}

api[rerank_v2] = Described(
    takes=dialect.RerankWire,
    gives=(dialect.RerankList, list[dialect.ScoreWire]),
    examples={"The best document": _DOCUMENTS},
)
api[rerank] = replace(
    api[rerank_v2],
    examples={
        "The best document": _DOCUMENTS,
        "As TEI has it": {"query": "Who eats?", "texts": ["A man is eating.", "It rains."]},
    },
)
api[score] = Described(
    takes=dialect.ScoreBody,
    gives=(dialect.ScoreList,),
    examples={"A text to several": {"text_1": "Who eats?", "text_2": ["A man.", "Rain."]}},
)
