"""The composition root: builds the ASGI application and all its parts from the configuration."""

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Self

from anyio import CancelScope, to_thread
from litestar import Litestar, Router
from litestar.config.cors import CORSConfig
from litestar.routes import HTTPRoute

from backends.contract.catalog import BACKENDS, Catalog
from config.errors import ConfigError
from config.product import VERSION
from config.settings import Config
from config.values import alike
from gateway.answers.constraints import Constraints
from gateway.answers.encoding import Encoders
from gateway.answers.interpreter import Capabilities, Interpreters, SamplingOverrides, Templates
from gateway.answers.pictures import ImageLoader
from gateway.answers.pipeline import Pipeline
from gateway.answers.remote import RemotePipeline
from gateway.answers.tokenizers import Tokenizers
from gateway.answers.tokens import Tokens
from gateway.dialects.dialect import Dialect
from gateway.dialects.responses.stored import interrupted
from gateway.http.auth import (
    Authenticator,
    OriginGuard,
    Refusals,
    guarded,
    is_loopback,
    require_declared,
    server_names,
)
from gateway.http.books import Activity, Books
from gateway.http.detached import BACKGROUND, STREAMS, DetachedAnswers
from gateway.http.errors import handlers
from gateway.http.exchange import HEADERS, counting_hops
from gateway.http.feed import Feed, Reloaded
from gateway.http.gauges import GaugeSampler
from gateway.http.holding import Holdings, WholeBody, holding
from gateway.http.inspector import Inspector
from gateway.http.metrics import Metrics
from gateway.http.openapi import Api, document_routes
from gateway.http.page import FOLDER, page_files, page_routes
from gateway.http.publishing import Publisher
from gateway.http.request_log import ID_HEADER, RequestLog
from gateway.http.routes import (
    admin,
    console,
    console_details,
    console_grammar,
    console_models,
    console_settings,
    console_sync,
    console_tools,
    enabled_apis,
    kept,
    openai,
    turns,
)
from gateway.http.routes import inspector as inspector_routes
from gateway.http.services import Services, given
from gateway.http.sockets import Sockets
from gateway.http.standing import RequestReport
from gateway.http.tracing import Tracing, tracing_of
from gateway.http.upgrades import Upgrades, remember
from gateway.hub.hub import Hub, Uploads
from gateway.keys.limits import Limiter
from gateway.keys.store import Store, check_store
from gateway.keys.usage import UsageBook
from gateway.mcp.rounds import ToolRounds
from gateway.mcp.servers import McpServers
from gateway.reconfiguring.joining import Announcements
from gateway.reconfiguring.reloading import Apply, Reloader
from gateway.registry import Registry
from gateway.terms.logs import LogLines
from gateway.terms.tasks import BODY_THREADS, WorkerThreads, companions

OWN = Api(
    dialect=Dialect(name="Roundhouse", tag="This server"),
    routes={
        **openai.server_api,
        **admin.api,
        **console.api,
        **console_models.api,
        **console_settings.api,
        **console_details.api,
        **console_grammar.api,
        **console_tools.api,
        **console_sync.api,
        **inspector_routes.api,
        **kept.api,
        **turns.api,
    },
)

WELL = ("ok", "left", "send_timeout")  # outcomes that are no errors

OPEN_TO_ALL = (
    "without API keys, any client that reaches the port could use this machine: "
    "add `keys`, start with --new-key or --api-key, listen on 127.0.0.1, or set server.allow_open"
)


def build(
    config: Config,
    registry: Registry,
    metrics: Metrics,
    *,
    catalog: Catalog = BACKENDS,
    reloader: Reloader | None = None,
    page: Path = FOLDER,
    lines: LogLines | None = None,
) -> Litestar:
    """The ASGI application. Its lifespan enters and leaves the registry. Raises ConfigError.

    `metrics` is notified of loads and unloads by the registry, which is built with its `watch`.
    `reloader`: None: the configuration stays as it is. `page`: the folder of the console's files;
    `lines`: what the log writes to, if its lines can be requested.
    """
    refuse_open_access(config)
    check_store(config.store.path)
    apis = [*enabled_apis(config.apis), OWN]
    cors = _cors(config, apis)
    guard = OriginGuard(
        config.server, cors.is_origin_allowed if cors is not None else lambda _origin: False
    )
    services = _services(
        config, registry, metrics, catalog, reloader or Reloader(config), guard, lines or LogLines()
    )
    registry.watchers.tell_end(services.sockets.drain)
    metrics.watch(registry, services.authenticator.roles, services.pipeline.turns.counts)

    def routers() -> list[Router]:
        return [_ApiRouter(api, services) for api in apis]

    talks = [socket for api in apis for socket in api.sockets]
    front = [route for api in apis for route in api.front]  # they say themselves whose they are
    app = Litestar(
        route_handlers=[
            *(page_routes(page_files(page)) if config.console.enabled else ()),
            *front,
            *talks,
            *routers(),
            *document_routes(
                apis, lambda: [*routers(), Router("/", route_handlers=front)], VERSION
            ),
        ],
        dependencies={"services": given(services)},
        exception_handlers=handlers(services),
        after_exception=[remember],
        lifespan=[_running(services)],
        middleware=[
            counting_hops(registry.server),  # changes the headers, so it is before who reads them
            guarded(guard, services.authenticator),
            holding(
                Holdings(config.server.max_held_bytes, config.server.max_body),
                services.authenticator,
                config.server.max_body,
            ),
        ],
        cors_config=cors,
        request_max_body_size=config.server.max_body,
        request_class=WholeBody,
        openapi_config=None,
        logging_config=None,
    )
    require_declared(app)
    routes = [route for route in app.routes if isinstance(route, HTTPRoute)]
    metrics.begin((method, route.path) for route in routes for method in route.methods)
    # Outside of Litestar's own middleware: a request that has no route has an id, too.
    app.asgi_handler = RequestLog(
        Upgrades(app.asgi_handler, services.refusals.note),
        services.authenticator,
        metrics.requested,
    )
    return app


class _ApiRouter(Router):
    """The routes of one API, for one application; errors have the API's own form."""

    def __init__(self, api: Api, services: Services) -> None:
        errors, tags = handlers(services, api.dialect), [api.dialect.tag]
        super().__init__("/", route_handlers=[*api.routes], exception_handlers=errors, tags=tags)

    def __deepcopy__(self, _memo: object) -> Self:
        """Litestar copies what applications may share, which takes a quarter of building one."""
        return self


def _services(
    config: Config,
    registry: Registry,
    metrics: Metrics,
    catalog: Catalog,
    reloader: Reloader,
    guard: OriginGuard,
    lines: LogLines,
) -> Services:
    """Everything that routes work with; what of it follows the configuration is registered with
    `reloader`.
    """
    templates = Templates(_folder(config.template_dir))
    presets = SamplingOverrides(_folder(config.preset_dir), config.preset)
    threads = WorkerThreads()
    tokens = Tokens(
        threads,
        Interpreters(templates),
        allow_control_tokens=config.server.allow_control_tokens,
    )
    activity, inspector = Activity(), Inspector(config.inspector)
    pictures, hub_room = ImageLoader(config.images), Hub(config)
    authenticator = Authenticator(config.keys)
    constraints = Constraints(threads)
    pipeline = Pipeline(
        registry=registry,
        presets=presets,
        pictures=pictures,
        tokens=tokens,
        constraints=constraints,
        remote=RemotePipeline(tokens, constraints),
        config=config,
    )
    servers = McpServers(config)

    def followed(new: Config) -> Apply:
        refuse_open_access(new)
        names, folder = server_names(new.server), _folder(new.preset_dir)
        chosen = SamplingOverrides(folder, new.preset).current

        def apply() -> None:
            authenticator.apply(new.keys)
            guard.apply(names)
            servers.apply(new)
            pipeline.config = new
            tokens.allow_control_tokens = new.server.allow_control_tokens
            pictures.apply(new.images)
            templates.apply(_folder(new.template_dir))
            presets.apply(folder, new.preset, chosen)
            hub_room.apply(new)
            inspector.apply(new.inspector)

        return apply

    feed, store = Feed(), Store(config.store)
    usage = UsageBook(store, config.store.usage_max_age)
    tracing = tracing_of(config.tracing, VERSION)

    def reported(report: RequestReport) -> None:
        metrics.answered(report)
        model, ok = report.standing.model, report.standing.outcome in WELL
        usage.count(time.time(), report.access, model, report.usage, ok=ok)

    reloader.begin(registry, followed, lambda report: feed.add(alike(Reloaded, report)()))
    return Services(
        reloader=reloader,
        announcements=Announcements(reloader),
        registry=registry,
        pipeline=pipeline,
        mcp=servers,
        rounds=ToolRounds(pipeline.chat, servers, registry),
        encoders=Encoders(registry, threads),
        authenticator=authenticator,
        refusals=Refusals(metrics.refused),
        tokenizers=Tokenizers(registry, tokens),
        templates=templates,
        presets=presets,
        capabilities=Capabilities(templates),
        hub=hub_room,
        metrics=metrics,
        bodies=WorkerThreads(BODY_THREADS),
        threads=threads,
        store=store,
        usage=usage,
        books=Books(reported, metrics.gaps, activity, Limiter(), inspector, tracing),
        background=DetachedAnswers(BACKGROUND),
        streams=DetachedAnswers(STREAMS, lambda: reloader.config.llamaserver.stream_seconds),
        feed=feed,
        sampler=GaugeSampler(registry, activity),
        catalog=catalog,
        lines=lines,
        sockets=Sockets(lambda: reloader.config.server.max_sockets),
        uploads=Uploads(hub_room, catalog),
    )


def _folder(path: str | None) -> Path | None:
    return None if path is None else Path(path).expanduser()


def refuse_open_access(config: Config) -> None:
    """Raises ConfigError where the server would listen beyond loopback without keys."""
    server = config.server
    if not config.keys and not server.allow_open and not is_loopback(server.host):
        raise ConfigError("the configuration", "$.server.host", f"{server.host}: {OPEN_TO_ALL}")


def _running(services: Services) -> Callable[[Litestar], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_app: Litestar) -> AsyncIterator[None]:
        async with (
            services.store as store,
            services.usage.running(services.registry.supervisor),
            _exported(services.books.tracing),
            services.registry as registry,
            services.mcp.running(),
            services.background.running(services.registry.supervisor),
            services.downloads.running(),
            services.streams.running(services.registry.supervisor),
            companions() as tasks,
        ):
            await store.mend(interrupted)
            now = time.time()
            services.books.limiter.restore(now, await services.usage.taken_today(now))
            watched = registry.supervisor
            known = services.capabilities.learn, registry.statuses()
            tasks.start_soon(watched.attempt, "capabilities", *known)
            tasks.start_soon(watched.keep, "configuration", services.reloader.run)
            tasks.start_soon(watched.keep, "joining", services.announcements.run)
            tasks.start_soon(watched.keep, "console", Publisher(services).run)
            yield

    return lifespan


@asynccontextmanager
async def _exported(tracing: Tracing | None) -> AsyncIterator[None]:
    """The last spans are sent when the context ends."""
    try:
        yield
    finally:
        if tracing is not None:
            with CancelScope(shield=True):
                await to_thread.run_sync(tracing.close)


def _cors(config: Config, apis: Sequence[Api]) -> CORSConfig | None:
    """Such a page sends whatever headers it likes: clients of the APIs have many of their own."""
    if not config.server.cors_origins:
        return None
    return CORSConfig(
        allow_origins=list(config.server.cors_origins),
        allow_headers=["*"],  # those that are asked for
        expose_headers=[
            ID_HEADER,
            *(name for api in apis for name in api.dialect.id_headers),
            *dict.fromkeys(name for api in apis for name in api.dialect.rate_headers.names()),
            *HEADERS,
        ],
    )
