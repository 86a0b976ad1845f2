"""Hugging Face's servers: Text Generation Inference, with texts whole or streamed, and Text
Embeddings Inference, with vectors. Their rerank stands with the other reranking APIs.

Pure: bytes in, structs out (`read_generate`, `read_embed`); events in, bytes out (`TgiReply`).
"""

from gateway.dialects.tgi.reply import TgiReply, error_body, error_event
from gateway.dialects.tgi.request import (
    TgiExchange,
    embed_body,
    read_embed,
    read_generate,
    read_inputs,
)

__all__ = [
    "TgiExchange",
    "TgiReply",
    "embed_body",
    "error_body",
    "error_event",
    "read_embed",
    "read_generate",
    "read_inputs",
]
