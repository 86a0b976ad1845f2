"""The two documents, made at the first request for them, and their routes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from anyio import to_thread
from litestar import Litestar, Router, get
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.routes import HTTPRoute
from litestar.types import ASGIApp

from gateway.dialects.anthropic.errors import ErrorEnvelope as AnthropicError
from gateway.dialects.cohere.errors import CohereError
from gateway.dialects.kobold.errors import KoboldError
from gateway.dialects.ollama.errors import ErrorWire as OllamaError
from gateway.dialects.openai.errors import ErrorEnvelope
from gateway.dialects.tabby.reply import Problem
from gateway.dialects.tgi.errors import TgiError
from gateway.http.openapi.answers import ANSWERS
from gateway.http.openapi.encoding import ENCODING
from gateway.http.openapi.management import CONSOLE, MANAGEMENT
from gateway.http.openapi.models import Described, Schema, SchemaModels
from gateway.http.openapi.page import STYLE_DIGEST, page
from gateway.http.plain import Plain

JSON_TYPE, EVENTS_TYPE, LINES_TYPE = "application/json", "text/event-stream", "application/x-ndjson"
BYTES_TYPE = "application/octet-stream"
TITLE = "Roundhouse"
ABOUT = (
    "Every API that this server speaks, over every model. Unknown fields are accepted: what is not "
    "applied is named in the header `x-roundhouse-ignored`."
)
# What the page may do: show itself.
POLICY = (
    f"default-src 'none'; style-src '{STYLE_DIGEST}'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
DESCRIBED: Mapping[Any, Described] = {
    handler.fn: described
    for handler, described in {**ANSWERS, **ENCODING, **MANAGEMENT, **CONSOLE}.items()
}
ERRORS: Mapping[str, type[msgspec.Struct]] = {  # by tag; ErrorEnvelope for the others
    "Anthropic": AnthropicError,
    "Ollama": OllamaError,
    "KoboldAI": KoboldError,
    "Cohere": CohereError,
    "TabbyAPI": Problem,
    "TGI and TEI": TgiError,
    "llama-server": Problem,
}
KEYS: Schema = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def document_routes(routers: Sequence[Router], release: str) -> list[HTTPRouteHandler]:
    """Routes of the documents about `routers`. They need no key: there is no secret in them."""

    @cache
    def document() -> Schema:
        return _document(routers, release)

    @cache
    def written() -> bytes:
        return msgspec.json.encode(document())

    @cache
    def shown() -> bytes:
        return page(document())

    @get("/openapi.json", include_in_schema=False)
    async def openapi() -> ASGIApp:
        """This server's API, as OpenAPI 3.1."""
        return await _sent(written, b"application/json")

    @get("/docs", include_in_schema=False)
    async def docs() -> ASGIApp:
        """The same as a page for people, which needs no network and no scripts."""
        return await _sent(shown, b"text/html; charset=utf-8")

    return [openapi, docs]


async def _sent(made: Callable[[], bytes], media_type: bytes) -> ASGIApp:
    """Made beside the event loop: the first time takes a second."""
    body = await to_thread.run_sync(made)
    return Plain(body, media_type=media_type, headers=HEADERS)


def _document(routers: Sequence[Router], release: str) -> Schema:
    """Of an application that is only described, never run: its routes are `routers`'."""
    app = Litestar(
        list(routers),
        dependencies={"services": Provide(_nothing, sync_to_thread=False)},
        openapi_config=OpenAPIConfig(
            title=TITLE, version=release, description=ABOUT, use_handler_docstrings=True
        ),
        logging_config=None,
    )
    document: Schema = app.openapi_schema.to_schema()
    operations = [
        (operation, DESCRIBED.get(handler.fn, Described()))
        for path, method, handler in _handlers(app)
        if (operation := document["paths"].get(path, {}).get(method.lower())) is not None
    ]
    errors = [_error(operation) for operation, _ in operations]
    models = SchemaModels(
        [*errors, *(kind for _, described in operations for kind in described.kinds())]
    )
    for operation, described in operations:
        _complete(operation, described, models)
    schemes = {"securitySchemes": KEYS, "schemas": models.schemas}
    keys: list[Schema] = [{}, *({name: []} for name in KEYS)]
    return {**document, "components": schemes, "security": keys}


def _nothing() -> None:
    """No route runs in it."""


def _error(operation: Schema) -> type[msgspec.Struct]:
    return ERRORS.get(operation["tags"][0], ErrorEnvelope)


def _handlers(app: Litestar) -> Iterator[tuple[str, str, HTTPRouteHandler]]:
    for route in app.routes:
        if isinstance(route, HTTPRoute):
            for method, (handler, _) in route.route_handler_map.items():
                yield route.path_format, method, handler


def _complete(operation: Schema, described: Described, models: SchemaModels) -> None:
    """Add to what Litestar knows."""
    about = " ".join(operation.get("description", "").split())
    operation["description"] = about
    operation["summary"] = about.split(". ")[0].rstrip(".")
    if described.takes is not None:
        operation["requestBody"] = {"content": {JSON_TYPE: _content(described, models)}}
    if described.takes_file:  # bytes have no schema (OpenAPI 3.1, "Binary Data")
        operation["requestBody"] = {"content": {BYTES_TYPE: {"schema": {"type": "string"}}}}
    if described.query is not None:
        operation["parameters"] = [*operation.get("parameters", ()), *_query(described.query)]
    error = models.ref(_error(operation))
    operation["responses"] = {
        str(described.status): {
            "description": "It was done.",
            "content": _answers(described, models),
        },
        "default": {"description": "An error.", "content": {JSON_TYPE: {"schema": error}}},
    }


def _content(described: Described, models: SchemaModels) -> Schema:
    examples = {name: {"value": body} for name, body in described.examples.items()}
    return {"schema": models.ref(described.takes), **({"examples": examples} if examples else {})}


def _query(parameters: type[msgspec.Struct]) -> Iterator[Schema]:
    _, found = msgspec.json.schema_components((parameters,))
    (known,) = found.values()
    for name, schema in known["properties"].items():
        yield {"name": name, "in": "query", "required": False, "schema": schema}


def _answers(described: Described, models: SchemaModels) -> Schema:
    """By their media types."""
    found: Schema = {}
    if described.gives:
        found[JSON_TYPE] = {"schema": _any(described.gives, models)}
    if described.events:
        kind = LINES_TYPE if described.lines else EVENTS_TYPE
        found[kind] = {"schema": _any(described.events, models)}
    if described.text is not None:
        found[described.text] = {"schema": {"type": "string"}}
    return found


def _any(kinds: Sequence[Any], models: SchemaModels) -> Schema:
    schemas = [models.ref(kind) for kind in kinds]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
