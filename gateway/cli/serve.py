"""`roundhouse serve`: arguments -> configuration -> server; what it prints when it listens, and the
progress bars of loads and downloads below its log.
"""

import gc
import json
import os
import shlex
import socket
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from secrets import token_urlsafe
from typing import Any, Self
from urllib.parse import urlsplit

import structlog
from msgspec.structs import replace
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from backends.contract.catalog import command
from backends.contract.samplers import Sampling
from backends.machine.devices import number_by_bus
from backends.machine.process_settings import prepare_process
from backends.places.upstream.lists import KeptLists
from config.document import parse
from config.errors import COMMAND_LINE, ConfigError, suggestion
from config.loader import load_config, locate, origins, read_text
from config.settings import Config, KeyConfig
from config.values import UNIX, is_on_hub, user_folder
from gateway.cli.configured import (
    findings,
    missing,
    refuse_empty,
    refuse_unusable,
    with_downloads,
    with_keys,
    with_models,
)
from gateway.cli.listing import of_devices
from gateway.http.auth import is_loopback
from gateway.http.metrics import Metrics
from gateway.hub.hub import brought, cached_models, downloaded, log_reporter
from gateway.hub.repository import DownloadProgress
from gateway.reconfiguring.joining import Joiner
from gateway.reconfiguring.reloading import ConfigSource, Explained, Reloader
from gateway.registry import ModelEntry, ModelEvent, ModelLibrary, ModelProgressed, Registry
from gateway.registry.gauges import Gauge
from gateway.serving.app import build
from gateway.serving.server import Server
from gateway.serving.server import run as run_server
from gateway.splitter import FORMATS
from gateway.terms.errors import GatewayError
from gateway.terms.logs import LogLines, Writer, configure

log = structlog.get_logger()

KEY_VARIABLE = "ROUNDHOUSE_KEY"  # which the other commands read, too
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - listened on, not called

# By what a model does: the route to try, and the members of a body besides `model`.
ATTEMPTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "generate": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Hello!"}]},
    ),
    "embed": ("/v1/embeddings", {"input": "Hello!"}),
    "rank": ("/v1/rerank", {"query": "Hello!", "documents": ["Good day!", "A tree."]}),
}


def greet(config: Config, registry: Registry, settings: str, new_key: str, address: str) -> None:
    """Print once to stdout, with the address; the command to try works as it is printed.
    `settings`: their file, "": none. `new_key`: made for this run, or "".
    """
    model = first_model(config, registry)
    lines = ["", f"Roundhouse listens on {address}"]
    if (near := _in_the_network(address)) is not None:
        lines.append(f"  nearby: {near}/ (from other machines of this network)")
    if config.console.enabled:
        lines.append(f"  page:   {_callable(address)}/")
    lines.append(f"  model:  {model or 'none yet: the model folders hold none'}")
    lines.append(f"  memory: {of_devices(registry.budgets)}")
    key = ""
    if new_key:
        lines.append(f"  key:    {new_key} (created for this run, shown only here)")
        key = f" -H {shlex.quote(f'authorization: Bearer {new_key}')}"
    elif config.keys:
        lines.append(f"  key:    one of the configured keys, as ${KEY_VARIABLE} below")
        key = f' -H "authorization: Bearer ${KEY_VARIABLE}"'
    lines.append(f"  try:    {_attempt(registry, model, config.server.host, address)}{key}")
    if settings:
        lines.append(f"  config: {settings}")
    print("\n".join([*lines, ""]), flush=True)


def _attempt(registry: Registry, model: str, host: str, address: str) -> str:
    task = "generate"
    with suppress(GatewayError):  # it can't be used, or comes later
        task = registry.resolve(model or "default").files.task
    route, more = ATTEMPTS[task]
    body = json.dumps({"model": model, **more}, ensure_ascii=False)
    by = ["--unix-socket", host.removeprefix(UNIX)] if host.startswith(UNIX) else []
    sent = ["-H", "content-type: application/json", "-d", body]
    return shlex.join(["curl", *by, f"{_callable(address)}{route}", *sent])


def _callable(address: str) -> str:
    """`address` as clients on this machine call it."""
    if address.startswith(UNIX):
        return "http://localhost"
    parts = urlsplit(address)
    host = EVERYWHERE.get(parts.hostname or "")
    return address if host is None else f"{parts.scheme}://{host}:{parts.port}"


def _in_the_network(address: str) -> str | None:
    """As a phone types it, where this server listens on all addresses; None: it doesn't."""
    parts = urlsplit(address)
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        if parts.hostname in EVERYWHERE:
            way.connect(("192.0.2.1", 9))  # sends nothing: it only asks for the way out (RFC 5737)
            return f"http://{way.getsockname()[0]}:{parts.port}"
    return None


COLUMNS = (
    TextColumn("{task.description}", markup=False),
    BarColumn(),
    TextColumn("{task.percentage:.0f} %"),
    TimeRemainingColumn(),
)


class Bars:
    """A bar for each model that is on its way; nothing is drawn while there is none. What is
    written to stderr meanwhile stands above them.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(file=sys.stderr)
        self.shown = self._console.is_terminal  # there is one to draw in
        self._tasks: dict[str, TaskID] = {}
        self._progress: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for title in list(self._tasks):
            self._drop(title)

    def download(self, model: str) -> Callable[[DownloadProgress], None]:
        """Shows one model's download."""
        return lambda step: self._show(f"downloading {model}", step.done, step.total)

    def on_model_event(self, event: ModelEvent) -> None:
        """A load goes on, or is over."""
        title = f"loading {event.model}"
        if isinstance(event, ModelProgressed):
            step = event.progress
            self._show(title, step.done, step.total)
        elif title in self._tasks:
            self._drop(title)

    def _show(self, title: str, done: int, total: int) -> None:
        if not self.shown:
            return
        if self._progress is None:
            self._progress = Progress(*COLUMNS, console=self._console, transient=True)
            self._progress.start()
        if title not in self._tasks:
            self._tasks[title] = self._progress.add_task(title)
        self._progress.update(self._tasks[title], completed=done, total=total)

    def _drop(self, title: str) -> None:
        """The last one takes the whole display away, and its thread."""
        assert self._progress is not None
        self._progress.remove_task(self._tasks.pop(title))
        if not self._tasks:
            self._progress.stop()
            self._progress = None


FEW = 5  # models named in a warning


def run(arguments: Namespace) -> int:
    """Build everything and serve; the exit status. Raises ConfigError."""
    given = {"server.host": arguments.host, "server.port": arguments.port}
    given |= {"join.url": arguments.join, "join.key": arguments.join_key}
    given |= {"join.advertise": arguments.advertise}
    given |= {"log.level": "debug" if arguments.verbose else None}
    overrides = {option: value for option, value in given.items() if value is not None}
    file = arguments.config or locate(os.environ, Path.cwd())
    environment = dict(os.environ)

    new_key = f"rh-{token_urlsafe(24)}" if arguments.new_key else ""
    lease_key = f"rh-{token_urlsafe(24)}"

    def understood(text: str | None) -> Config:
        config = load_config(file, environment, text=text, overrides=overrides, sampling=Sampling)
        config = with_keys(config, arguments.api_key, new_key, environment)
        config = with_lease_key(config, lease_key)
        named = arguments.models, arguments.model_dir
        config = with_downloads(with_models(config, *named, file=arguments.config))
        check_formats(config)
        return config

    def read() -> str | None:
        return read_text(file) if file else None

    def again(text: str | None) -> Config:
        if text is not None and not parse(text, str(file))[0]:
            raise ConfigError(str(file), "$", "it is empty: only a start puts that in force")
        return downloaded(understood(text))

    def explained() -> Explained:
        text = read()
        return Explained(text, origins(text, file, environment, overrides=overrides))

    config = understood(read())
    refuse_unusable(arguments.models)
    lines = LogLines()
    with Writer(_left_out) as writer:
        configure(config.log, lines)
        prepare_process(os.environ)
        number_by_bus()
        if any(is_on_hub(model.path) for model in config.models):
            with Bars() as bars:
                config = brought(config, bars.download if bars.shown else log_reporter)
        metrics, bars = Metrics(), Bars()

        def watch(event: ModelEvent) -> None:
            metrics.on_model_event(event)
            bars.on_model_event(event)

        lists = KeptLists(user_folder() / "lists")
        library = ModelLibrary(config, cache=cached_models(config), lists=lists)
        refuse_empty(library, arguments.models)
        registry = Registry(library, config, watch=watch)
        warn_of_missing(library.entries())
        for one in findings(config, library, Gauge().total()):
            log.warning("check the configuration", option=one.path, problem=one.problem)
        source = ConfigSource(
            read=lambda: again(read()),
            file=file,
            understand=again,
            explain=explained,
        )
        reloader = Reloader(config, source)
        server = Server(
            build(config, registry, metrics, reloader=reloader, lines=lines),
            config.server,
            registry,
            partial(greet, config, registry, _told(file, arguments), new_key),
            timed_out=metrics.send_timed_out,
            hangup=reloader.ask,
            drain=writer.drain,
        )
        if config.join.url is not None:
            server.joiner = Joiner(
                config.join, lease_key if config.keys else None, registry.supervisor
            )
        gc.collect()
        gc.freeze()  # what is here stays: looking for cycles in it takes a tenth of a second
        return run_server(server)


def with_lease_key(config: Config, made: str) -> Config:
    """With the key `made` for the server that this one joins, which has a user's rights. A server
    that is open stays open. Raises ConfigError where the other server couldn't reach this one.
    """
    join, server = config.join, config.server
    if join.url is None:
        return config
    is_near = is_loopback(server.host)
    if is_near and join.advertise is None and not is_loopback(urlsplit(join.url).hostname or ""):
        problem = f"that server can't reach {server.host} of this machine; use --host"
        raise COMMAND_LINE.error("--join", problem)
    if not config.keys and (is_near or server.allow_open):
        return config
    key = KeyConfig(key=made, label=f"joined {join.url}")
    return replace(config, keys=(*config.keys, key))


def _left_out(lines: int) -> None:
    log.warning("log lines dropped: the output is not read", lines=lines)


def warn_of_missing(entries: Iterable[ModelEntry]) -> None:
    """One line for each engine that models here need and that isn't installed."""
    wanting: dict[str, list[str]] = {}
    for entry in entries:
        wanting.setdefault(entry.files.backend, []).append(entry.name)
    for name, models in wanting.items():
        if lacking := missing(name):
            log.warning(
                "an engine is not installed",
                engine=name,
                missing=lacking,
                models=models[:FEW],
                install=command(name),
            )


def check_formats(config: Config) -> None:
    """Raises ConfigError for a model whose output format is none of those there are."""
    for section in ("models", "upstreams"):
        for index, one in enumerate(getattr(config, section)):
            if one.format is not None and one.format not in FORMATS:
                problem = f"{one.format!r} is not a known format; {suggestion(one.format, FORMATS)}"
                raise ConfigError("the configuration", f"$.{section}[{index}].format", problem)


def _told(file: Path | None, arguments: Namespace) -> str:
    alone = arguments.models and arguments.config is None
    return f"{file}{', without its models' if alone else ''}" if file else ""


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
