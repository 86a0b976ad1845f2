"""`roundhouse serve`: arguments -> configuration -> server."""

import os
from argparse import Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import structlog

import bundled
from backends.catalog import BACKENDS
from backends.gpus import number_by_bus
from backends.installing import absent, command
from backends.protocol import Sampling
from backends.threads import prepare_process
from config.errors import ConfigError, suggestion
from config.loader import load_text, locate, origins, read_text
from config.settings import Config, ModelConfig
from gateway.app import build
from gateway.errors import GatewayError
from gateway.http.metrics import Metrics
from gateway.hub import SCHEME, cached_models
from gateway.hub.startup import brought, downloaded
from gateway.logs import LogLines, configure
from gateway.registry import ModelEntry, ModelLibrary, Registry
from gateway.reloading import ConfigSource, Explained, Reloader
from gateway.server import Server, greeting
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

    def understood(text: str | None) -> Config:
        config = load_text(text, file, environment, overrides=overrides, sampling=Sampling)
        config = with_models(config, arguments.models)
        check_formats(config)
        return config

    def read() -> Config:
        return understood(read_text(file) if file else None)

    def explained() -> Explained:
        text = read_text(file) if file else None
        return Explained(text, origins(text, file, environment, overrides=overrides))

    config = read()
    lines = LogLines()
    configure(config.log, lines)
    prepare_process(os.environ)
    number_by_bus()
    if any(model.path.startswith(SCHEME) for model in config.models):
        config = brought(config)
    metrics = Metrics()
    library = ModelLibrary(config, cache=cached_models(config))
    registry = Registry(library, config, watch=metrics.happened)
    warn_of_missing(library.entries())
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
        greeting(first_model(config, registry)),
        timed_out=metrics.send_timed_out,
        hangup=reloader.ask,
    )
    return run_server(server)


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


def with_models(config: Config, models: Sequence[str]) -> Config:
    """The models named on the command line come first; with none at all, the bundled one."""
    if not (models or config.models or config.model_dirs or config.upstreams):
        models = [str(bundled.GGUF)]
    named = tuple(map(model_of, models))
    taken = {model.name for model in config.models}
    if clash := [model.name for model in named if model.name in taken]:
        raise ConfigError("the command line", "MODEL", f"{clash[0]} is in the configuration too")
    return msgspec.structs.replace(config, models=named + config.models)


def model_of(text: str) -> ModelConfig:
    """The model that `text` names, a path or a place on a hub. Raises ConfigError when there is
    nothing at the path.
    """
    if text.startswith(SCHEME):
        return ModelConfig(name=text.removeprefix(SCHEME), path=text)
    path = Path(text)
    if not path.exists():
        raise ConfigError("the command line", "MODEL", f"there is no file or folder {path}")
    return ModelConfig(name=BACKENDS.bare_name(path.name), path=str(path.resolve()))


def first_model(config: Config, registry: Registry) -> str:
    """The model the greeting names; "" where the folders hold none, or none yet."""
    named = config.default_model or next(iter(m.name for m in config.models), "")
    if named:
        return named
    try:
        return registry.resolve("").name
    except GatewayError as error:
        log.warning("no model", reason=error.message, model_dirs=config.model_dirs)
        return ""
