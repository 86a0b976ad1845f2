"""Hugging Face's servers: Text Generation Inference, with texts whole or streamed, and Text
Embeddings Inference, with vectors. Their rerank stands with the other reranking APIs.

Pure: bytes in, structs out (`read_generate`, `read_embed`); events in, bytes out (`TgiReply`).
"""

from gateway.dialects.dialect import Dialect
from gateway.dialects.tgi.reply import TgiError, TgiReply, error_body, error_event
from gateway.dialects.tgi.request import (
    TgiExchange,
    embed_body,
    read_embed,
    read_generate,
    read_inputs,
)

DIALECT = Dialect(name="Tgi", tag="TGI and TEI", error_body=error_body, error=TgiError)

__all__ = [
    "DIALECT",
    "TgiExchange",
    "TgiReply",
    "embed_body",
    "error_body",
    "error_event",
    "read_embed",
    "read_generate",
    "read_inputs",
]
