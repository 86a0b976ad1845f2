"""Cohere's second version: conversations and vectors; and the tokens of its first. Its rerank
stands with the other reranking APIs.

Pure: bytes in, structs out (`read_chat`, `read_embed`); events in, bytes out (`CohereReply`).
"""

from gateway.dialects.cohere.reply import CohereError, CohereReply, error_body, error_event
from gateway.dialects.cohere.request import (
    CohereEmbedding,
    CohereExchange,
    embed_body,
    read_chat,
    read_embed,
)
from gateway.dialects.dialect import Dialect

DIALECT = Dialect(name="Cohere", tag="Cohere", error_body=error_body, error=CohereError)
