"""`roundhouse serve`: arguments -> configuration -> server."""

import gc
import os
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from secrets import token_urlsafe

import structlog

from backends.catalog import BACKENDS
from backends.gpus import number_by_bus
from backends.installing import absent, command
from backends.protocol import Sampling
from backends.threads import prepare_process
from config.errors import ConfigError, suggestion
from config.loader import load_text, locate, origins, read_text
from config.settings import Config
from gateway.app import build
from gateway.cli.configured import (
    refuse_empty,
    refuse_unusable,
    with_downloads,
    with_keys,
    with_models,
)
from gateway.cli.findings import findings
from gateway.cli.greeting import Greeting
from gateway.cli.listing import size
from gateway.cli.progress import Bars
from gateway.errors import GatewayError
from gateway.http.metrics import Metrics
from gateway.hub import SCHEME, cached_models
from gateway.hub.startup import brought, downloaded, log_reporter
from gateway.logs import LogLines, Writer, configure
from gateway.registry import ModelEntry, ModelEvent, ModelLibrary, Registry
from gateway.registry.gauges import SystemGauge
from gateway.reloading import ConfigSource, Explained, Reloader
from gateway.server import Server
from gateway.server import run as run_server
from gateway.splitter import FORMATS

FEW = 5  # models named in a warning

log = structlog.get_logger()


def run(arguments: Namespace) -> int:
    """Build everything and serve; the exit status. Raises ConfigError."""
    overrides = {
        f"server.{name}": value
        for name in ("host", "port")
        if (value := getattr(arguments, name)) is not None
    }
    file = arguments.config or locate(os.environ, Path.cwd())
    environment = dict(os.environ)

    new_key = f"rh-{token_urlsafe(24)}" if arguments.new_key else ""

    def understood(text: str | None) -> Config:
        config = load_text(text, file, environment, overrides=overrides, sampling=Sampling)
        config = with_keys(config, arguments.api_key, new_key, environment)
        config = with_downloads(with_models(config, arguments.models, arguments.model_dir))
        check_formats(config)
        return config

    def read() -> Config:
        return understood(read_text(file) if file else None)

    def explained() -> Explained:
        text = read_text(file) if file else None
        return Explained(text, origins(text, file, environment, overrides=overrides))

    config = read()
    refuse_unusable(arguments.models)
    lines = LogLines()
    with Writer(_left_out) as writer:
        configure(config.log, lines)
        prepare_process(os.environ)
        number_by_bus()
        if any(model.path.startswith(SCHEME) for model in config.models):
            config = _brought(config)
        metrics, bars = Metrics(), Bars()

        def watch(event: ModelEvent) -> None:
            metrics.on_model_event(event)
            bars.on_model_event(event)

        library = ModelLibrary(config, cache=cached_models(config))
        refuse_empty(library, arguments.models)
        registry = Registry(library, config, watch=watch)
        warn_of_missing(library.entries())
        for one in findings(config, library, SystemGauge().total()):
            log.warning("check the configuration", option=one.path, problem=one.problem)
        source = ConfigSource(
            read=lambda: downloaded(read()),
            file=file,
            understand=lambda text: downloaded(understood(text)),
            explain=explained,
        )
        reloader = Reloader(config, source)
        server = Server(
            build(config, registry, metrics, reloader=reloader, lines=lines),
            config.server,
            registry,
            greeting(config, registry, new_key).print,
            timed_out=metrics.send_timed_out,
            hangup=reloader.ask,
            drain=writer.drain,
        )
        gc.collect()
        gc.freeze()  # what is here stays: looking for cycles in it takes a tenth of a second
        return run_server(server)


def _left_out(lines: int) -> None:
    log.warning("lines left out here: nobody read them", lines=lines)


def _brought(config: Config) -> Config:
    with Bars() as bars:
        return brought(config, bars.download if bars.shown else log_reporter)


def warn_of_missing(entries: Iterable[ModelEntry]) -> None:
    """One line for each engine that models here need and that isn't installed."""
    wanting: dict[str, list[str]] = {}
    for entry in entries:
        wanting.setdefault(entry.files.backend, []).append(entry.name)
    for name, models in wanting.items():
        wanted = BACKENDS[name].naming.INSTALLATION if name in BACKENDS else None
        if wanted and (missing := tuple(absent((wanted.package, *wanted.others)))):
            log.warning(
                "an engine is not installed",
                engine=name,
                missing=missing,
                models=models[:FEW],
                install=command(name),
            )


def check_formats(config: Config) -> None:
    """Raises ConfigError for a model whose output format is none of those there are."""
    for section in ("models", "upstreams"):
        for index, one in enumerate(getattr(config, section)):
            if one.format is not None and one.format not in FORMATS:
                problem = f"{one.format!r} is no format; {suggestion(one.format, FORMATS)}"
                raise ConfigError("the configuration", f"$.{section}[{index}].format", problem)


def greeting(config: Config, registry: Registry, new_key: str) -> Greeting:
    """`new_key`: made for this run, or ""."""
    model = first_model(config, registry)
    try:
        task = registry.resolve(model or "default").files.task
    except GatewayError:  # it can't be used, or comes later
        task = "generate"
    return Greeting(
        model=model,
        task=task,
        room=lambda: budgets(registry),
        has_page=config.console.enabled,
        needs_key=bool(config.keys),
        new_key=new_key,
    )


def first_model(config: Config, registry: Registry) -> str:
    """The model the greeting names; "" where the folders hold none, or none yet."""
    named = config.default_model or next(iter(m.name for m in config.models), "")
    if named:
        return named
    try:
        return registry.resolve("default").name
    except GatewayError as error:
        log.warning("no model", reason=error.message, model_dirs=config.model_dirs)
        return ""


def budgets(registry: Registry) -> str:
    """Bytes that models may take on each device: `cuda:0 22.0 GB, cpu 20.1 GB`."""
    return ", ".join(f"{device} {size(amount)}" for device, amount in registry.budgets.items())
