"""The API's documentation, as OpenAPI 3.1 and as a page for people.

Litestar lists the routes, their parameters and descriptions; `table` has the types of their bodies
and answers, which no handler's signature says, because bodies are read as bytes.
"""

from gateway.http.openapi.documents import document_routes

__all__ = ["document_routes"]
