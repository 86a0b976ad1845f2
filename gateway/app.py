"""The wiring: configuration to a running server. Builds everything; everything else receives."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from litestar import Litestar, Router
from litestar.config.cors import CORSConfig
from litestar.di import Provide
from litestar.types import ASGIApp

from backends.catalog import BACKENDS, Catalog
from config.errors import ConfigError
from config.settings import Config
from gateway.answers.capabilities import Capabilities
from gateway.answers.constraints import Constraints
from gateway.answers.interpreter import Interpreters
from gateway.answers.overrides import SamplingOverrides, Templates
from gateway.answers.pipeline import Pipeline
from gateway.answers.tokens import Encoding, Tokens
from gateway.dialects.anthropic import error_body as anthropic_error
from gateway.dialects.ollama import error_body as ollama_error
from gateway.dialects.responses.stored import interrupted
from gateway.dialects.tabby.reply import problem_body
from gateway.http.auth import Authenticator, OriginGuard, Refusals, guarded, is_loopback
from gateway.http.errors import handlers
from gateway.http.exchange import HEADERS, ID_HEADER
from gateway.http.metrics import Metrics
from gateway.http.routes import (
    anthropic,
    conversations,
    hub,
    llamaserver,
    ollama,
    openai,
    responses,
    tabby,
    upstreams,
)
from gateway.http.runs import Runs
from gateway.http.services import Services
from gateway.hub import Hub
from gateway.pictures import ImageLoader
from gateway.registry import Registry
from gateway.store import Store
from gateway.tasks import BODY_THREADS, WorkerThreads, companions

OPEN_TO_ALL = (
    "without API keys anybody who reaches the port could use this machine: "
    "add `keys`, listen on 127.0.0.1, or set server.allow_open"
)


def build(
    config: Config, registry: Registry, metrics: Metrics, *, catalog: Catalog = BACKENDS
) -> Litestar:
    """The ASGI application. Its lifespan enters and leaves the registry. Raises ConfigError.

    `metrics` hears of loads and unloads from whoever built the registry with its `watch`.
    """
    refuse_open_door(config)
    services = _services(config, registry, metrics, catalog)
    metrics.watch(registry.statuses)
    return Litestar(
        route_handlers=[*openai.SERVER_ROUTES, *upstreams.ROUTES, *_spoken(services)],
        dependencies={"services": Provide(_giver(services), sync_to_thread=False)},
        exception_handlers=handlers(services),
        lifespan=[_running(services)],
        middleware=_middleware(config),
        cors_config=_cors(config),
        request_max_body_size=config.server.max_body,
        openapi_config=None,
        logging_config=None,
    )


def _spoken(services: Services) -> list[Router]:
    """The APIs that are switched on; what goes wrong in one is told in its own form."""
    apis = services.config.apis
    plain, detailed = handlers(services), handlers(services, problem_body)
    for_anthropic = handlers(services, anthropic_error, (ID_HEADER, anthropic.ID_HEADER))
    table = (
        (apis.openai, openai.ROUTES, plain),
        (apis.anthropic, anthropic.ROUTES, for_anthropic),
        (apis.ollama, ollama.ROUTES, handlers(services, ollama_error)),
        (apis.responses, (*responses.ROUTES, *conversations.ROUTES), plain),
        (apis.tabby, (*tabby.ROUTES, *hub.TABBY_ROUTES), detailed),
        (apis.llamaserver, (*llamaserver.ROUTES, *hub.LLAMASERVER_ROUTES), detailed),
    )
    return [
        Router(path="/", route_handlers=list(routes), exception_handlers=told)
        for is_on, routes, told in table
        if is_on
    ]


def _services(config: Config, registry: Registry, metrics: Metrics, catalog: Catalog) -> Services:
    """Everything that routes work with."""
    templates = Templates(_folder(config.template_dir))
    presets = SamplingOverrides(_folder(config.preset_dir), config.preset)
    threads = WorkerThreads()
    tokens = Tokens(
        threads,
        Interpreters(templates),
        allow_control_tokens=config.server.allow_control_tokens,
    )
    return Services(
        config=config,
        registry=registry,
        pipeline=Pipeline(
            registry,
            presets,
            ImageLoader(config.images),
            tokens,
            Constraints(threads),
            strict=config.server.strict_sampling,
            max_choices=config.server.max_choices,
        ),
        doorman=Authenticator(config.keys),
        refusals=Refusals(metrics.refused),
        wording=Encoding(registry, tokens),
        templates=templates,
        presets=presets,
        capabilities=Capabilities(templates),
        hub=Hub(config),
        metrics=metrics,
        bodies=WorkerThreads(BODY_THREADS),
        store=Store(config.store),
        runs=Runs(),
        catalog=catalog,
    )


def _folder(path: str | None) -> Path | None:
    return None if path is None else Path(path).expanduser()


def refuse_open_door(config: Config) -> None:
    """Raises ConfigError when strangers could come in."""
    server = config.server
    if not config.keys and not server.allow_open and not is_loopback(server.host):
        raise ConfigError("the configuration", "$.server.host", f"{server.host}: {OPEN_TO_ALL}")


def _giver(services: Services) -> Callable[[], Services]:
    def give() -> Services:
        return services

    return give


def _running(services: Services) -> Callable[[Litestar], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_app: Litestar) -> AsyncIterator[None]:
        async with (
            services.store as store,
            services.registry as registry,
            services.runs.running(),
            companions() as tasks,
        ):
            await store.mend(interrupted)
            tasks.start_soon(services.capabilities.learn, registry.statuses())
            yield

    return lifespan


def _middleware(config: Config) -> list[Callable[[ASGIApp], ASGIApp]]:
    """What stands before every route, whoever adds one."""
    if config.keys:
        return []
    cors = _cors(config)
    allowed = cors.is_origin_allowed if cors is not None else _nobody
    return [guarded(OriginGuard(config.server, allowed))]


def _nobody(_origin: str) -> bool:
    return False


def _cors(config: Config) -> CORSConfig | None:
    """Key headers are named, because a page that may call must be able to send its key."""
    if not config.server.cors_origins:
        return None
    return CORSConfig(
        allow_origins=list(config.server.cors_origins),
        allow_headers=[
            "anthropic-beta",
            "anthropic-dangerous-direct-browser-access",
            "anthropic-version",
            "authorization",
            "content-type",
            "x-admin-key",
            "x-api-key",
            "x-csrf-token",
        ],
        expose_headers=[ID_HEADER, anthropic.ID_HEADER, *HEADERS],
    )
