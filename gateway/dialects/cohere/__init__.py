"""Cohere's second version: conversations and vectors; and the tokens of its first. Its rerank
stands with the other reranking APIs.

Pure: bytes in, structs out (`read_chat`, `read_embed`); events in, bytes out (`CohereReply`).
"""

from gateway.dialects.cohere.reply import CohereReply, error_event, error_wire
from gateway.dialects.cohere.request import (
    CohereEmbedding,
    embed_body,
    read_chat,
    read_embed,
)
from gateway.dialects.dialect import Dialect

DIALECT = Dialect(name="Cohere", tag="Cohere", error=error_wire)
