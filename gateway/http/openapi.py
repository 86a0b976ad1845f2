"""The API's documentation, as OpenAPI 3.1 and as a page for people.

Litestar lists the routes, their parameters and descriptions; the types of their bodies and answers,
which it isn't shown, because bodies are read as bytes, are in each module's `api` (`routing`). A
body is often read by several structs, each of which takes its part, and a field of ours may have
several names: `body_type` puts together what a client may write.

Both documents are made at the first request for one. The page has no scripts and needs no network.
"""

import json
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from hashlib import sha256
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
from anyio import to_thread
from jinja2 import ChainableUndefined, Environment
from litestar import Litestar, Router, get
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler, WebsocketRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.routes import HTTPRoute
from litestar.types import ASGIApp
from msgspec import Meta, inspect

from gateway.dialects.dialect import Dialect
from gateway.dialects.fields import SPELLINGS
from gateway.dialects.models import envelope
from gateway.dialects.openai import messages, request
from gateway.dialects.parameters import SamplingWire
from gateway.http import page
from gateway.http.sse import Plain

Schema = dict[str, Any]
Models: TypeAlias = Mapping[Any, Schema]  # how a document refers to a type
REF = "#/components/schemas/"
REFERENCE = re.compile(f'"{REF}([^"]+)"')  # in JSON
OWN = "Roundhouse"


def body_type(
    name: str,
    about: str,
    shapes: tuple[type[msgspec.Struct], ...],
    *,
    further: Mapping[str, Any] = {},
    names: Mapping[str, tuple[str, ...]] = {},
) -> type[msgspec.Struct]:
    """The type of a body that several structs read: all that a client may write. `further`: fields
    that none of them names, with their types; `names`: what clients of this API call fields that
    have other names elsewhere, the usual name first. The first shape tells whose API it is.
    """
    fields: dict[str, tuple[Any, dict[str, Any]]] = {}  # the type of each, and its default
    for one in (field for shape in shapes for field in msgspec.structs.fields(shape)):
        own = one.encode_name
        first, *others = names.get(own) or SPELLINGS.get(own, (own,))
        has: dict[str, Any] = {"default": one.default, "default_factory": one.default_factory}
        again: Any = Annotated[one.type, Meta(description=f"Another name of `{first}`.")]
        fields |= {first: (one.type, has), **dict.fromkeys(others, (again, has))}
    fields |= {field: (kind, {"default": msgspec.UNSET}) for field, kind in further.items()}
    return msgspec.defstruct(
        name,
        [
            (f"field{number}", kind, msgspec.field(name=written, **has))
            for number, (written, (kind, has)) in enumerate(fields.items())
        ],
        kw_only=True,
        module=shapes[0].__module__,
        namespace={"__doc__": about},
    )


def _names(structs: Sequence[type], apis: Mapping[str, str]) -> dict[type, str]:
    """What components are called: `OpenAIMessage` is `openai.messages.MessageWire`; where an API
    has two of one name, each has its module's in front.
    """
    names = {struct: _name(struct, apis) for struct in structs}
    often = Counter(names.values())
    return {
        struct: name if often[name] == 1 else _name(struct, apis, _part(struct))
        for struct, name in names.items()
    }


def _part(struct: type) -> str:
    """What its module is called in names."""
    return struct.__module__.rpartition(".")[2].title().replace("_", "")


def _name(struct: type, apis: Mapping[str, str], part: str = "") -> str:
    _, _, below = struct.__module__.partition("dialects.")
    api = apis.get(below.partition(".")[0], OWN)
    base = struct.__name__.removesuffix("Wire").removeprefix("Llama").removeprefix(api)
    return f"{api}{part}{base}"


def _structs(kind: Any, seen: set[type]) -> Iterator[type]:
    """The structs in `kind`, a description of a type or of a field or several, and below."""
    if isinstance(kind, inspect.StructType):
        if kind.cls in seen:
            return
        seen.add(kind.cls)
        yield kind.cls
    if isinstance(kind, inspect.Type | inspect.Field):
        kind = msgspec.structs.astuple(kind)
    for one in kind if isinstance(kind, tuple) else ():
        yield from _structs(one, seen)


def _described(name: str, schema: Schema) -> Schema:
    """With its own name, and its docstring in one line each paragraph."""
    about = re.sub(r"\s*\n\s+", " ", schema.get("description", ""))
    return {**schema, "title": name, "description": about}


DEFAULT = "default"  # the configured default model, by the name that it always has


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """`takes`: the type of its JSON body, or with `takes_file` a file as it is;
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


class Api(msgspec.Struct, frozen=True, kw_only=True):
    """`folder`: its module in `gateway.dialects`; "": the server's own. `sockets`: its WebSockets,
    for which OpenAPI has no word.
    """

    folder: str = ""
    dialect: Dialect
    routes: Mapping[HTTPRouteHandler, Described]  # and what each takes and gives
    front: Mapping[HTTPRouteHandler, Described] = {}
    sockets: tuple[WebsocketRouteHandler, ...] = ()


NAMED = {"A model": {"model": DEFAULT}}
USER = [{"role": "user", "content": "Say hello."}]
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "The weather of a city", "parameters": WEATHER}
TOOL = {"type": "function", "function": FUNCTION}

JsonSchema: TypeAlias = dict[str, Any] | str | bool
SHAPES: Mapping[str, Any] = {
    "response_format": Annotated[dict, Meta(description="OpenAI's, or another server's, object.")],
    "structured_outputs": Annotated[dict, Meta(description="vLLM's object.")],
    "json_schema": Annotated[JsonSchema, Meta(description="A JSON schema, or the text of one.")],
    "guided_json": Annotated[JsonSchema, Meta(description="vLLM's name of `json_schema`.")],
    "regex_pattern": Annotated[str, Meta(description="What matches the whole answer.")],
    "regex": Annotated[str, Meta(description="SGLang's name of `regex_pattern`.")],
    "ebnf": Annotated[str, Meta(description="SGLang's name of `grammar`.")],
    "guided_regex": Annotated[str, Meta(description="vLLM's name of `regex_pattern`.")],
    "grammar": Annotated[str | dict, Meta(description="GBNF or Lark; or TGI's object.")],
    "grammar_string": Annotated[str, Meta(description="TabbyAPI's name of `grammar`.")],
    "guided_grammar": Annotated[str, Meta(description="vLLM's name of `grammar`.")],
    "guided_choice": Annotated[list[str], Meta(description="One of these texts.")],
    "structural_tag": Annotated[dict | str, Meta(description="Shapes behind markers.")],
}

CHAT = body_type(
    "ChatRequest",
    "A conversation to continue. Null fields are treated as not given.",
    (request.ChatWire, messages.ConversationWire, SamplingWire),
    further=SHAPES,
)


METHODS = ("get", "head", "post", "put", "delete")
TEMPLATE = Path(__file__).with_name("documentation.html").read_text(encoding="utf-8")


def shown(document: Schema) -> bytes:
    """The whole page."""
    sections: dict[str, list[tuple[str, str, Schema]]] = {}
    for path, item in document["paths"].items():
        for method in filter(item.__contains__, METHODS):
            for tag in item[method]["tags"]:
                sections.setdefault(tag, []).append((method, path, item[method]))
    environment = Environment(autoescape=True, undefined=ChainableUndefined)
    environment.filters["json"] = partial(json.dumps, ensure_ascii=False)
    template = environment.from_string(TEMPLATE)
    return template.render(document=document, sections=sections).encode()


JSON_TYPE, EVENTS_TYPE, LINES_TYPE = "application/json", "text/event-stream", "application/x-ndjson"
BYTES_TYPE = "application/octet-stream"
TITLE = "Roundhouse"
ABOUT = (
    "Every API of this server. Each API can use every model. Unknown fields are accepted; the "
    "header `x-roundhouse-ignored` lists those that are not applied."
)
_, _, _behind = TEMPLATE.partition("<style>")
STYLE, _, _ = _behind.partition("</style>")
# As a Content-Security-Policy names a style that is written in the page (CSP 3, section 2.3.1).
STYLE_DIGEST = f"sha256-{b64encode(sha256(STYLE.encode()).digest()).decode()}"
# What the page may do: show itself.
POLICY = (
    f"default-src 'none'; style-src '{STYLE_DIGEST}'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {**page.HEADERS, "content-security-policy": POLICY}
KEYS: Schema = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def document_routes(
    apis: Sequence[Api], routers: Callable[[], Sequence[Router]], release: str
) -> list[HTTPRouteHandler]:
    """Routes of the documents about `routers`, which have the routes of `apis`. They need no key:
    there is no secret in them.
    """

    @cache
    def made() -> tuple[bytes, bytes]:
        """Both, beside the event loop: it takes a second."""
        document = _document(apis, routers, release)
        return msgspec.json.encode(document), shown(document)

    @get("/openapi.json", access="open", include_in_schema=False)
    async def openapi() -> ASGIApp:
        """This server's API, as OpenAPI 3.1."""
        written, _ = await to_thread.run_sync(made)
        return Plain(written, headers=HEADERS)

    @get("/docs", access="open", include_in_schema=False)
    async def docs() -> ASGIApp:
        """The same as a page for people, which needs no network and no scripts."""
        _, html = await to_thread.run_sync(made)
        return Plain(html, media_type=b"text/html; charset=utf-8", headers=HEADERS)

    return [openapi, docs]


def _document(apis: Sequence[Api], routers: Callable[[], Sequence[Router]], release: str) -> Schema:
    """Of an application that is only described, never run: its routes are `routers`'."""
    app = Litestar(
        routers(),
        dependencies={
            "services": Provide(lambda: None, sync_to_thread=False)
        },  # no route runs in it
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
    own = {api.dialect.tag: api.dialect.error or envelope for api in apis}
    errors = [own[operation["tags"][0]].__annotations__["return"] for operation, _ in operations]
    used = ((one.takes, *one.gives, *one.events) for _, one in operations)
    types, seen = list(dict.fromkeys(chain(errors, *used))), set[type]()
    structs = [kind for one in inspect.multi_type_info(types) for kind in _structs(one, seen)]
    types += structs  # so that it is known which component is which
    refs, schemas = msgspec.json.schema_components(types, ref_template=f"{REF}{{name}}")
    models: Models = dict(zip(types, refs, strict=True))
    for (operation, described), error in zip(operations, errors, strict=True):
        _complete(operation, described, error, models)
    called = _names(structs, {api.folder: api.dialect.name for api in apis})
    names = {models[kind]["$ref"].removeprefix(REF): name for kind, name in called.items()}
    components = {
        "securitySchemes": KEYS,
        "schemas": {
            ours: _described(ours, schemas[name])
            for name, ours in sorted(names.items(), key=itemgetter(1))
        },
    }
    keys: list[Schema] = [{}, *({name: []} for name in KEYS)]
    servers = [{"url": "."}]  # from where the document is, a proxy's path perhaps
    document |= {"servers": servers, "components": components, "security": keys}
    text = REFERENCE.sub(lambda found: f'"{REF}{names[found[1]]}"', json.dumps(document))
    whole: Schema = json.loads(text)
    return whole


def _handlers(app: Litestar) -> Iterator[tuple[str, str, HTTPRouteHandler]]:
    for route in app.routes:
        if isinstance(route, HTTPRoute):
            for method, (handler, _) in route.route_handler_map.items():
                yield route.path_format, method, handler


def _complete(
    operation: Schema, described: Described, failed: type[msgspec.Struct], models: Models
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
    error = models[failed]
    operation["responses"] = {
        str(described.status): {
            "description": "Success.",
            "content": _answers(described, models),
        },
        "default": {"description": "An error.", "content": {JSON_TYPE: {"schema": error}}},
    }


def _content(described: Described, models: Models) -> Schema:
    examples = {name: {"value": body} for name, body in described.examples.items()}
    return {"schema": models[described.takes], **({"examples": examples} if examples else {})}


def _query(parameters: type[msgspec.Struct]) -> Iterator[Schema]:
    _, found = msgspec.json.schema_components((parameters,))
    (known,) = found.values()
    for name, schema in known["properties"].items():
        yield {"name": name, "in": "query", "required": False, "schema": schema}


def _answers(described: Described, models: Models) -> Schema:
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


def _any(kinds: Sequence[Any], models: Models) -> Schema:
    schemas = [models[kind] for kind in kinds]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
