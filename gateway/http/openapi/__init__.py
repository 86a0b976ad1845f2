"""What this server can be asked, as OpenAPI 3.1 and as a page for people.

Litestar tells the routes, their parameters and what they do; `table` says for each what its body
and its answer are, which no handler's signature says, because bodies are read as bytes.
"""

from gateway.http.openapi.documents import document_routes

__all__ = ["document_routes"]
