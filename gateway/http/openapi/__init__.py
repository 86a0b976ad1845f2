"""The API's documentation, as OpenAPI 3.1 and as a page for people.

Litestar lists the routes, their parameters and descriptions; the types of their bodies and answers,
which no handler's signature says, because bodies are read as bytes, are in each module's `ROUTES`.
"""
