"""The two documents, made at the first request for them, and their routes.

The document as one page of HTML: no scripts, no network, all of it in one file.
"""

import json
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from html import escape
from typing import Any

import msgspec
from anyio import to_thread
from litestar import Litestar, Router, get
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.routes import HTTPRoute
from litestar.types import ASGIApp

from gateway.dialects.openai.models import ErrorEnvelope
from gateway.http.openapi.models import Described, Schema, SchemaModels
from gateway.http.routes import Api
from gateway.http.sse import Plain

Node = Mapping[str, Any]
METHODS = ("get", "head", "post", "put", "delete")
DEEP = 6  # levels of a schema that are spelled out
REF = "#/components/schemas/"

STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { overflow-x: auto; padding: .6rem; border: 1px solid #8884; border-radius: 4px; }
details { border-bottom: 1px solid #8884; padding: .3rem 0; }
summary { cursor: pointer; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: .2rem .6rem .2rem 0; }
.method { display: inline-block; min-width: 4.5rem; font-weight: 600; }
.about { color: #888; }
h2 { margin-top: 2.5rem; }
nav a { margin-right: 1rem; }
"""
# As a Content-Security-Policy names a style that is written in the page (CSP 3, section 2.3.1).
STYLE_DIGEST = f"sha256-{b64encode(sha256(STYLE.encode()).digest()).decode()}"


def page(document: Node) -> bytes:
    """The whole page."""
    info, paths = document["info"], document["paths"]
    tags = list(dict.fromkeys(tag for _, _, one in _operations(paths) for tag in one["tags"]))
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>{escape(info['title'])}: APIs</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        f"<p>{_text(info['description'])} The same as <a href='openapi.json'>openapi.json</a>.</p>",
        "<nav>",
        *(f"<a href='#{_anchor(tag)}'>{escape(tag)}</a>" for tag in tags),
        "<a href='#models'>Models</a></nav>",
        *(part for tag in tags for part in _section(tag, paths)),
        "<h2 id='models'>Models</h2>",
        *(part for one in document["components"]["schemas"].items() for part in _model(*one)),
        "</body></html>",
    ]
    return "".join(parts).encode()


def _operations(paths: Node) -> Iterator[tuple[str, str, Node]]:
    for path, item in paths.items():
        for method in METHODS:
            if method in item:
                yield method, path, item[method]


def _section(tag: str, paths: Node) -> Iterator[str]:
    yield f"<h2 id='{_anchor(tag)}'>{escape(tag)}</h2>"
    for method, path, operation in _operations(paths):
        if tag in operation["tags"]:
            yield from _operation(method, path, operation)


def _operation(method: str, path: str, operation: Node) -> Iterator[str]:
    yield f"<details><summary><span class='method'>{method.upper()}</span>"
    yield f"<code>{escape(path)}</code> <span class='about'>{_text(operation['summary'])}</span>"
    yield f"</summary><p>{_text(operation['description'])}</p>"
    if parameters := operation.get("parameters"):
        yield "<h4>Parameters</h4>"
        yield from _table((one["name"], one["schema"], one["in"]) for one in parameters)
    if (body := operation.get("requestBody")) is not None:
        yield "<h4>Body</h4>"
        yield from _page_content(body["content"])
    for status, answer in operation["responses"].items():
        yield f"<h4>{'Error' if status == 'default' else status}</h4>"
        yield from _page_content(answer["content"])
    yield "</details>"


def _page_content(content: Node) -> Iterator[str]:
    for kind, what in content.items():
        yield f"<p><code>{escape(kind)}</code>: {_kind(what['schema'])}</p>"
        for name, example in what.get("examples", {}).items():
            written = json.dumps(example["value"], indent=2, ensure_ascii=False)
            yield f"<p>{escape(name)}</p><pre>{escape(written)}</pre>"


def _model(name: str, schema: Node) -> Iterator[str]:
    yield f"<details id='{escape(name)}'><summary><code>{escape(name)}</code> "
    yield f"<span class='about'>{_text(schema.get('description', ''))}</span></summary>"
    required = schema.get("required", ())
    yield from _table(
        (field, one, "required" if field in required else "")
        for field, one in schema.get("properties", {}).items()
    )
    yield "</details>"


def _table(rows: Iterator[tuple[str, Node, str]]) -> Iterator[str]:
    yield "<table>"
    for name, schema, note in rows:
        about = " ".join(filter(None, (escape(note), _text(schema.get("description", "")))))
        yield f"<tr><td><code>{escape(name)}</code></td><td>{_kind(schema)}</td>"
        yield f"<td>{about}</td></tr>"
    yield "</table>"


def _kind(schema: Node, deep: int = DEEP) -> str:
    """A schema in a few words."""
    if deep == 0:
        return "…"
    if "$ref" in schema:
        name = escape(schema["$ref"].removeprefix(REF))
        return f"<a href='#{name}'>{name}</a>"
    if "anyOf" in schema:
        return " or ".join(_kind(one, deep - 1) for one in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"<code>{escape(json.dumps(one))}</code>" for one in schema["enum"])
    kinds = schema.get("type", "anything")
    named = escape(kinds if isinstance(kinds, str) else " or ".join(kinds))
    items = schema.get("items")
    within = f" of {_kind(items, deep - 1)}" if isinstance(items, dict) and items else ""
    return f"{named}{within}{_bounds(schema)}"


def _bounds(schema: Node) -> str:
    names: Sequence[tuple[str, str]] = (
        ("minimum", "from"),
        ("exclusiveMinimum", "above"),
        ("maximum", "to"),
        ("default", "default"),
    )
    facts = [f"{word} {json.dumps(schema[name])}" for name, word in names if name in schema]
    return f" <span class='about'>{escape(', '.join(facts))}</span>" if facts else ""


def _text(text: str) -> str:
    """What stands between backquotes is code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{one}</code>" if k % 2 else one for k, one in enumerate(parts))


def _anchor(tag: str) -> str:
    return "".join(letter for letter in tag.lower() if letter.isalnum())


JSON_TYPE, EVENTS_TYPE, LINES_TYPE = "application/json", "text/event-stream", "application/x-ndjson"
BYTES_TYPE = "application/octet-stream"
TITLE = "Roundhouse"
ABOUT = (
    "Every API of this server. Each API can use every model. Unknown fields are accepted; the "
    "header `x-roundhouse-ignored` lists those that are not applied."
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
KEYS: Schema = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def document_routes(
    apis: Sequence[Api], routers: Sequence[Router], release: str
) -> list[HTTPRouteHandler]:
    """Routes of the documents about `routers`, which have the routes of `apis`. They need no key:
    there is no secret in them.
    """

    @cache
    def document() -> Schema:
        return _document(apis, routers, release)

    @cache
    def written() -> bytes:
        return msgspec.json.encode(document())

    @cache
    def shown() -> bytes:
        return page(document())

    @get("/openapi.json", access="open", include_in_schema=False)
    async def openapi() -> ASGIApp:
        """This server's API, as OpenAPI 3.1."""
        return await _sent(written, b"application/json")

    @get("/docs", access="open", include_in_schema=False)
    async def docs() -> ASGIApp:
        """The same as a page for people, which needs no network and no scripts."""
        return await _sent(shown, b"text/html; charset=utf-8")

    return [openapi, docs]


async def _sent(made: Callable[[], bytes], media_type: bytes) -> ASGIApp:
    """Made beside the event loop: the first time takes a second."""
    body = await to_thread.run_sync(made)
    return Plain(body, media_type=media_type, headers=HEADERS)


def _document(apis: Sequence[Api], routers: Sequence[Router], release: str) -> Schema:
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
    known = {
        handler.fn: described
        for api in apis
        for handler, described in {**api.routes, **api.front}.items()
    }
    operations = [
        (operation, known[handler.fn])
        for path, method, handler in _handlers(app)
        if (operation := document["paths"].get(path, {}).get(method.lower())) is not None
    ]
    own = {api.dialect.tag: api.dialect.error for api in apis}
    errors = [own[operation["tags"][0]] or ErrorEnvelope for operation, _ in operations]
    models = SchemaModels(
        [*errors, *(kind for _, described in operations for kind in described.kinds())],
        {api.folder: api.dialect.name for api in apis},
    )
    for (operation, described), error in zip(operations, errors, strict=True):
        _complete(operation, described, error, models)
    schemes = {"securitySchemes": KEYS, "schemas": models.schemas}
    keys: list[Schema] = [{}, *({name: []} for name in KEYS)]
    return {**document, "components": schemes, "security": keys}


def _nothing() -> None:
    """No route runs in it."""


def _handlers(app: Litestar) -> Iterator[tuple[str, str, HTTPRouteHandler]]:
    for route in app.routes:
        if isinstance(route, HTTPRoute):
            for method, (handler, _) in route.route_handler_map.items():
                yield route.path_format, method, handler


def _complete(
    operation: Schema, described: Described, failed: type[msgspec.Struct], models: SchemaModels
) -> None:
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
    error = models.ref(failed)
    operation["responses"] = {
        str(described.status): {
            "description": "Success.",
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
