"""The API's documentation, as OpenAPI 3.1 and as a page for people.

Litestar lists the routes, their parameters and descriptions; the types of their bodies and answers,
which no handler's signature says, because bodies are read as bytes, are in each module's `ROUTES`.
A body is often read by several structs, each of which takes its part, and a field of ours may have
several names: `Body` puts together what a client may write.

Both documents are made at the first request for one. The page has no scripts and needs no network.
"""

import json
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from html import escape
from typing import Any, TypeAlias

import msgspec
from anyio import to_thread
from litestar import Litestar, Router, get
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler, WebsocketRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.routes import HTTPRoute
from litestar.types import ASGIApp
from msgspec import inspect

from gateway.dialects.dialect import Dialect
from gateway.dialects.fields import SPELLINGS
from gateway.dialects.models import ErrorEnvelope
from gateway.dialects.openai import messages, request
from gateway.dialects.parameters import SamplingWire
from gateway.http.sse import Plain

Schema = dict[str, Any]
REF = "#/components/schemas/"
OWN = "Roundhouse"


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """A body that several structs read. `further`: fields that none of them names, with their
    schemas; `names`: what clients of this API call fields that have other names elsewhere;
    `needs`: bodies that `further` refers to.
    """

    name: str
    about: str
    shapes: tuple[type[msgspec.Struct], ...]
    further: Mapping[str, Schema] = {}
    names: Mapping[str, tuple[str, ...]] = {}
    needs: "tuple[Body, ...]" = ()

    def called(self, field: str) -> tuple[str, ...]:
        """What clients write for one of our fields, the usual name first."""
        return self.names.get(field) or SPELLINGS.get(field, (field,))


class SchemaModels:
    """The components of one document. Knows no routes."""

    def __init__(self, kinds: Sequence[Any], apis: Mapping[str, str]) -> None:
        """`kinds`: types and `Body`s, all that will be referred to. `apis`: what components of an
        API begin with, by its module in `gateway.dialects`; those of all others with `OWN`.
        """
        bodies = [kind for kind in kinds if isinstance(kind, Body)]
        bodies += [needed for one in bodies for needed in one.needs]
        shown = [kind for kind in kinds if not isinstance(kind, Body)]
        types = list(dict.fromkeys([*shown, *(shape for one in bodies for shape in one.shapes)]))
        refs, known = msgspec.json.schema_components(types, ref_template=f"{REF}{{name}}")
        names = _names(types, apis)
        found = {names[name]: _renamed(one, names) for name, one in known.items()}
        self._refs = {kind: _renamed(ref, names) for kind, ref in zip(types, refs, strict=True)}
        whole = {one.name: self._merged(one, found) for one in bodies}
        reached = _reached([*whole.values(), *(self._refs[kind] for kind in shown)], found)
        described = {name: _described(name, found[name]) for name in reached}
        self.schemas: Schema = dict(sorted({**described, **whole}.items()))

    def ref(self, kind: Any) -> Schema:
        """How a document refers to `kind`, which was named at the beginning."""
        return {"$ref": f"{REF}{kind.name}"} if isinstance(kind, Body) else self._refs[kind]

    def _merged(self, body: Body, found: Mapping[str, Schema]) -> Schema:
        """One object of all that the body's structs read."""
        properties: Schema = {}
        required: dict[str, None] = {}
        for shape in body.shapes:
            schema = found[self._refs[shape]["$ref"].removeprefix(REF)]
            for field, kind in schema["properties"].items():
                properties |= _spelled(body.called(field), kind)
            required |= dict.fromkeys(body.called(field)[0] for field in schema.get("required", ()))
        needed = {"required": list(required)} if required else {}
        return {
            "title": body.name,
            "description": body.about,
            "type": "object",
            "properties": {**properties, **body.further},
            **needed,
        }


def _spelled(names: Sequence[str], kind: Schema) -> Schema:
    """A field under each name that a client may write."""
    first, *others = names
    about = {"description": f"Another name of `{first}`."}
    return {first: kind, **{name: {**kind, **about} for name in others}}


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """`value` with all that it refers to under our names."""
    if isinstance(value, dict):
        return {key: _renamed(item, names) for key, item in value.items()}
    if isinstance(value, list):
        return [_renamed(item, names) for item in value]
    if isinstance(value, str) and value.startswith(REF):
        return f"{REF}{names[value.removeprefix(REF)]}"
    return value


def _names(types: Sequence[Any], apis: Mapping[str, str]) -> dict[str, str]:
    """The names of components as msgspec has them, and ours: `OpenAIMessage` of
    `openai.messages.MessageWire`; where an API has one in its requests and one in its answers, the
    other is `…AnswerMessage`, and where two are left of one name each has its module's in front.
    """
    seen: set[type] = set()
    structs = [kind for one in inspect.multi_type_info(types) for kind in _structs(one, seen)]
    short = Counter(struct.__name__ for struct in structs)
    plain = Counter(_name(struct, apis) for struct in structs)
    ours = {
        struct: _name(struct, apis, "Answer" if _is_second(struct, plain, apis) else "")
        for struct in structs
    }
    left = Counter(ours.values())
    return {
        struct.__name__
        if short[struct.__name__] == 1
        else f"{struct.__module__}.{struct.__qualname__}": name
        if left[name] == 1
        else _name(struct, apis, struct.__module__.rpartition(".")[2].title().replace("_", ""))
        for struct, name in ours.items()
    }


def _is_second(struct: type, plain: Mapping[str, int], apis: Mapping[str, str]) -> bool:
    """Whether it is an answer's, of two of one name."""
    return plain[_name(struct, apis)] > 1 and "reply" in struct.__module__


def _name(struct: type, apis: Mapping[str, str], part: str = "") -> str:
    _, _, below = struct.__module__.partition("dialects.")
    api = apis.get(below.partition(".")[0], OWN)
    base = struct.__name__.removesuffix("Wire").removeprefix("Llama").removeprefix(api)
    return f"{api}{part}{base}"


def _structs(kind: inspect.Type, seen: set[type]) -> Iterator[type]:
    """The structs in `kind` and below."""
    match kind:
        case inspect.StructType(cls=cls, fields=fields):
            if cls in seen:
                return
            seen.add(cls)
            yield cls
            for field in fields:
                yield from _structs(field.type, seen)
        case inspect.UnionType(types):
            for one in types:
                yield from _structs(one, seen)
        case inspect.TupleType(item_types=types):
            for one in types:
                yield from _structs(one, seen)
        case inspect.DictType(value_type=one):
            yield from _structs(one, seen)
        case inspect.Type() if (item := getattr(kind, "item_type", None)) is not None:
            yield from _structs(item, seen)


def _reached(schemas: Sequence[Schema], found: Mapping[str, Schema]) -> set[str]:
    """The components that `schemas` refer to, and those that these refer to."""
    waiting, reached = list(schemas), set[str]()
    while waiting:
        for name in _refs(waiting.pop()) - reached:
            reached.add(name)
            waiting.append(found[name])
    return reached


def _refs(value: Any) -> set[str]:
    if isinstance(value, dict):
        return {name for item in value.values() for name in _refs(item)}
    if isinstance(value, list):
        return {name for item in value for name in _refs(item)}
    is_ref = isinstance(value, str) and value.startswith(REF)
    return {value.removeprefix(REF)} if is_ref else set()


def _described(name: str, schema: Schema) -> Schema:
    """With its own name, and its docstring in one line each paragraph."""
    about = re.sub(r"\s*\n\s+", " ", schema.get("description", ""))
    return {**schema, "title": name, "description": about}


DEFAULT = "default"  # the configured default model, by the name that it always has


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """`takes`: its JSON body, a type or a `models.Body`, or with `takes_file` a file as it is;
    `gives`: its JSON answer, any of these; `events`: the types in a stream of it, as server-sent
    events or, with `lines`, as lines of JSON; `query`: a struct of parameters that Litestar doesn't
    know of; `examples`: bodies by what they show, each of which a server with a default model, one
    that embeds and one that ranks answers with `status`; `text`: the type of an answer that is no
    JSON.
    """

    takes: Any = None
    takes_file: bool = False
    gives: tuple[Any, ...] = ()
    events: tuple[Any, ...] = ()
    lines: bool = False
    query: type[msgspec.Struct] | None = None
    text: str | None = None
    status: int = 200
    examples: Mapping[str, Mapping[str, Any]] = {}

    def kinds(self) -> tuple[Any, ...]:
        """All models that it refers to."""
        taken = () if self.takes is None else (self.takes,)
        return (*taken, *self.gives, *self.events)


Routes: TypeAlias = Mapping[HTTPRouteHandler, Described]  # and what each takes and gives


class Api(msgspec.Struct, frozen=True, kw_only=True):
    """`folder`: its module in `gateway.dialects`; "": the server's own. `sockets`: its WebSockets,
    for which OpenAPI has no word.
    """

    folder: str = ""
    dialect: Dialect
    routes: Routes
    front: Routes = {}
    sockets: tuple[WebsocketRouteHandler, ...] = ()


NAMED = {"A model": {"model": DEFAULT}}
USER = [{"role": "user", "content": "Say hello."}]
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "The weather of a city", "parameters": WEATHER}
TOOL = {"type": "function", "function": FUNCTION}

OBJECT: Schema = {"type": "object"}
STRING: Schema = {"type": "string"}
SCHEMA: Schema = {"anyOf": [OBJECT, STRING, {"type": "boolean"}]}
SHAPES: Mapping[str, Schema] = {
    "response_format": {**OBJECT, "description": "OpenAI's, or another server's, object."},
    "structured_outputs": {**OBJECT, "description": "vLLM's object."},
    "json_schema": {**SCHEMA, "description": "A JSON schema, or the text of one."},
    "guided_json": {**SCHEMA, "description": "vLLM's name of `json_schema`."},
    "regex_pattern": {**STRING, "description": "What matches the whole answer."},
    "regex": {**STRING, "description": "SGLang's name of `regex_pattern`."},
    "ebnf": {**STRING, "description": "SGLang's name of `grammar`."},
    "guided_regex": {**STRING, "description": "vLLM's name of `regex_pattern`."},
    "grammar": {"anyOf": [STRING, OBJECT], "description": "GBNF or Lark; or TGI's object."},
    "grammar_string": {**STRING, "description": "TabbyAPI's name of `grammar`."},
    "guided_grammar": {**STRING, "description": "vLLM's name of `grammar`."},
    "guided_choice": {"type": "array", "items": STRING, "description": "One of these texts."},
    "structural_tag": {"anyOf": [OBJECT, STRING], "description": "Shapes behind markers."},
}

CHAT = Body(
    name="OpenAIChatRequest",
    about="A conversation to continue. Null fields are treated as not given.",
    shapes=(
        request.AnsweringWire,
        messages.ConversationWire,
        request.ChatWire,
        request.ThinkingWire,
        SamplingWire,
    ),
    further=SHAPES,
)


Node = Mapping[str, Any]
METHODS = ("get", "head", "post", "put", "delete")
DEEP = 6  # levels of a schema that are spelled out

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
    servers = [{"url": "."}]  # from where the document is, a proxy's path perhaps
    return {**document, "servers": servers, "components": schemes, "security": keys}


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
