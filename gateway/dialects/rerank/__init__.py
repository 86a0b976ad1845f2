"""Reranking as Jina and Cohere have it, on which llama-server, vLLM and others agree; and TEI's, by
its `texts` field. Scores of pairs as vLLM has them.

Pure: bytes in, a request out (`read_rerank`, `read_score`); scores in, bytes out (`rerank_body`,
`score_body`).
"""

from gateway.dialects.rerank.rerank import read_rerank, rerank_body
from gateway.dialects.rerank.score import read_score, score_body

__all__ = ["read_rerank", "read_score", "rerank_body", "score_body"]
