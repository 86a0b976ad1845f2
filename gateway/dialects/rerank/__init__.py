"""Reranking as Jina and Cohere have it, on which llama-server, vLLM and others agree; and TEI's, by
its `texts` field.

Pure: bytes in, a request out (`read_rerank`); scores in, bytes out (`rerank_body`).
"""

from gateway.dialects.rerank.rerank import read_rerank, rerank_body

__all__ = ["read_rerank", "rerank_body"]
