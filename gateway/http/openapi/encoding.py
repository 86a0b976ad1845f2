"""The routes for vectors and scores, in each API's own form."""

from collections.abc import Mapping
from typing import Any

from gateway.dialects import rerank
from gateway.dialects.cohere import embedding as cohere
from gateway.dialects.llamaserver import request as llama
from gateway.dialects.ollama import reply as ollama
from gateway.dialects.openai import embeddings as openai
from gateway.dialects.tgi import request as tgi
from gateway.http.openapi.models import Described
from gateway.http.routes import cohere as cohere_routes
from gateway.http.routes import ollama as ollama_routes
from gateway.http.routes import openai as openai_routes
from gateway.http.routes import rerank as rerank_routes
from gateway.http.routes import tgi as tgi_routes
from gateway.http.routes.llamaserver import completions as llama_routes

_EMBEDDINGS = Described(
    takes=openai.EmbeddingsWire,
    gives=(openai.EmbeddingList,),
    examples={
        "A text": {"input": "A man is eating."},
        "Texts, as base64": {"input": ["One.", "Two."], "encoding_format": "base64"},
        "The first values": {"input": "A man is eating.", "dimensions": 64},
        "Tokens": {"input": [[101, 102]]},
    },
)
_DOCUMENTS = {"query": "Who eats?", "documents": ["A man is eating.", "It rains."], "top_n": 1}

ENCODING: Mapping[Any, Described] = {
    openai_routes.embeddings: _EMBEDDINGS,
    openai_routes.bare_embeddings: _EMBEDDINGS,
    llama_routes.embedding: Described(
        takes=llama.EmbeddingBody,
        gives=(list[llama.EmbeddedWire],),
        examples={"A text": {"content": "A man is eating."}},
    ),
    ollama_routes.embed: Described(
        takes=ollama.EmbedWire,
        gives=(ollama.Embedded,),
        examples={"Texts": {"input": ["One.", "Two."]}},
    ),
    ollama_routes.embeddings: Described(
        takes=ollama.OldEmbedWire,
        gives=(ollama.OldEmbedded,),
        examples={"A text": {"prompt": "A man is eating."}},
    ),
    cohere_routes.embed: Described(
        takes=cohere.EmbedWire,
        gives=(cohere.Embedded,),
        examples={"Texts": {"texts": ["One.", "Two."], "input_type": "search_query"}},
    ),
    tgi_routes.embed: Described(
        takes=tgi.EmbedWire,
        gives=(list[list[float]], list[str]),
        examples={"Texts": {"inputs": ["One.", "Two."]}},
    ),
    rerank_routes.rerank: Described(
        takes=rerank.RerankWire,
        gives=(rerank.RerankList, list[rerank.ScoreWire]),
        examples={
            "The best document": _DOCUMENTS,
            "As TEI has it": {"query": "Who eats?", "texts": ["A man is eating.", "It rains."]},
        },
    ),
    openai_routes.pooling: Described(
        takes=openai.EmbeddingsWire,
        gives=(openai.PooledList,),
        examples={"A text": {"input": "A man is eating."}},
    ),
    rerank_routes.score: Described(
        takes=rerank.ScoreBody,
        gives=(rerank.ScoreList,),
        examples={"A text to several": {"text_1": "Who eats?", "text_2": ["A man.", "Rain."]}},
    ),
    rerank_routes.rerank_v2: Described(
        takes=rerank.RerankWire,
        gives=(rerank.RerankList, list[rerank.ScoreWire]),
        examples={"The best document": _DOCUMENTS},
    ),
}
