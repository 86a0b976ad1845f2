"""Models configured by their place on a hub, resolved to folders before the server starts."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import anyio
import structlog
from msgspec import Struct
from msgspec.structs import replace

from backends.catalog import BACKENDS
from backends.errors import BackendError
from config.errors import ConfigError
from config.settings import Config, ModelConfig
from config.values import is_on_hub
from gateway.errors import GatewayError
from gateway.hub import DownloadProgress, Fits, Hub, HubModel, fits_in, hub_model
from gateway.registry.gauges import SystemGauge
from gateway.registry.library import origin_of
from gateway.tasks import companions

LOG_EVERY = 5.0  # seconds between log lines of a download

# A model's name to what is called with the progress of its download.
DownloadReporter: TypeAlias = Callable[[str], Callable[[DownloadProgress], None]]

log = structlog.get_logger(__name__)


def brought(config: Config, report: DownloadReporter) -> Config:
    """As `provided`, in an event loop of its own. Raises KeyboardInterrupt on SIGINT; what has come
    stays for the next try.
    """
    found = anyio.run(_unless_interrupted, config, report)
    if found is None:
        raise KeyboardInterrupt
    return found


async def _unless_interrupted(config: Config, report: DownloadReporter) -> Config | None:
    """None: SIGINT came. A receiver of signals also wakes the loop; asyncio's own handler doesn't
    where a signal comes to another thread, or just before the loop begins to wait.
    """
    with anyio.CancelScope() as scope:
        async with companions() as tasks:
            tasks.start_soon(_cancel_on_interrupt, scope)
            return await provided(config, report)
    return None


async def _cancel_on_interrupt(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGINT) as signals:
        async for _ in signals:
            scope.cancel()


async def provided(config: Config, report: DownloadReporter | None = None) -> Config:
    """`config` with a folder for each `hf:owner/name`, downloaded first where it isn't here.
    `report`: None: the log has a line of it every few seconds.

    Raises ConfigError that names the model, for one that can't be had.
    """
    room = fits_in({**SystemGauge().free(), **config.swap.memory}, config, BACKENDS)
    bringer = _Bringer(Hub(config), room, report or log_reporter)
    models = [await bringer.provided(model) for model in config.models]
    return replace(config, models=tuple(models))


def downloaded(config: Config) -> Config:
    """As `provided`, for a server that runs: nothing is downloaded. Blocks.

    Raises ConfigError that names the model, for one that isn't here.
    """
    hub = Hub(config)
    return replace(config, models=tuple(_downloaded(hub, model) for model in config.models))


def present(config: Config) -> tuple[Config, tuple[ModelConfig, ...]]:
    """`config` with the models that are here, and those that have to be downloaded first. Raises
    ConfigError for one that can't be named so. Blocks.
    """
    hub = Hub(config)
    here: list[ModelConfig] = []
    absent: list[ModelConfig] = []
    for model in config.models:
        found = _found(hub, model)
        here += [found] if found else []
        absent += [] if found else [model]
    return replace(config, models=tuple(here)), tuple(absent)


def _downloaded(hub: Hub, model: ModelConfig) -> ModelConfig:
    found = _found(hub, model)
    if found is None:
        problem = f"not downloaded yet; first `roundhouse pull {model.path}`, then reload"
        raise ConfigError(f"model {model.name!r}", "$.path", problem)
    return found


def _found(hub: Hub, model: ModelConfig) -> ModelConfig | None:
    """None: it has to be downloaded."""
    if not is_on_hub(model.path):
        return model
    try:
        wanted = hub_model(model.path)
        path = hub.here(wanted, _is_usable)
    except GatewayError as error:
        raise ConfigError(f"model {model.name!r}", "$.path", error.message) from error
    return None if path is None else _placed(model, wanted, path)


class _Bringer(Struct, frozen=True):
    """Brings models here, one after the other."""

    hub: Hub
    fits: Fits
    report: DownloadReporter

    async def provided(self, model: ModelConfig) -> ModelConfig:
        if not is_on_hub(model.path):
            return model
        try:
            wanted = hub_model(model.path)
            report = self.report(model.name)
            path = await self.hub.bring(wanted, _is_usable, report, self.fits)
        except GatewayError as error:
            raise ConfigError(f"model {model.name!r}", "$.path", error.message) from error
        return _placed(model, wanted, path)


def _placed(model: ModelConfig, wanted: HubModel, path: Path) -> ModelConfig:
    """The model where it lies, known by its names on the hub, too."""
    origin = origin_of(path)
    names = (wanted.repository, *(origin.names if origin else ()))
    known = (model.name, *model.aliases)
    others = tuple(name for name in dict.fromkeys(names) if name not in known)
    return replace(model, path=str(path), aliases=(*model.aliases, *others))


def _is_usable(folder: Path) -> bool:
    """Whether all of a model is there: a cache may hold a part."""
    try:
        BACKENDS.recognise(folder)
    except (BackendError, OSError):
        return False
    return True


def log_reporter(model: str) -> Callable[[DownloadProgress], None]:
    """A line every few seconds."""
    logged = time.monotonic() - LOG_EVERY

    def report(step: DownloadProgress) -> None:
        nonlocal logged
        if (now := time.monotonic()) - logged >= LOG_EVERY:
            logged = now
            log.info("downloading", model=model, file=step.file, done=step.done, total=step.total)

    return report
