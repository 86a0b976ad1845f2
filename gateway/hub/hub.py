"""The hub's interface: what is cached, downloads into the models' folder, and deletion from there;
uploads; and models configured by their place on a hub, resolved to folders before the server
starts.

A download is collected in a hidden folder and appears under its name when it is whole. What an
interrupted one has fetched is found again by the next for the same commit. An upload is a GGUF
file, piece by piece; it appears when an engine recognises it, too.
"""

import os
import shutil
import signal
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import anyio
import httpx
import structlog
from anyio import to_thread
from msgspec.structs import replace

from backends.contract.catalog import BACKENDS, Catalog
from backends.contract.errors import BackendError
from config.errors import ConfigError
from config.settings import Config, ModelConfig
from config.values import HUB, gibibytes, is_on_hub
from gateway.hub.beginnings import begun
from gateway.hub.cache import CachedModels, default_root, repositories
from gateway.hub.downloads import fetch
from gateway.hub.repository import (
    DownloadProgress,
    Fits,
    HuggingFace,
    Listing,
    Order,
    Selection,
    Usable,
    fits_in,
    hub_model,
    selected,
)
from gateway.hub.search import FoundModel, Search, searched
from gateway.registry.gauges import Gauge
from gateway.registry.origins import FILE, HubOrigin, downloads, origin_of, write_origin
from gateway.terms.errors import (
    Forbidden,
    GatewayError,
    InvalidRequest,
    ModelUnavailable,
    QueueFull,
    TooLarge,
)
from gateway.terms.paths import within
from gateway.terms.tasks import companions

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo

STAGING_DIR = ".downloads"  # hidden, so that half a model is never listed
SILENCE = 60.0  # seconds without a byte before a download counts as broken

log = structlog.get_logger(__name__)


def cached_models(config: Config) -> CachedModels | None:
    """The models in the hub's cache, where the configuration offers them."""
    return CachedModels(_cache_root(config)) if config.hub.cached_models else None


def _cache_root(config: Config) -> Path:
    root = Path(config.hub.cache) if config.hub.cache else default_root()
    return root.expanduser().resolve()


class Hub:
    """One per server."""

    def __init__(self, config: Config) -> None:
        self._busy: set[Path] = set()
        self.apply(config)

    def apply(self, config: Config) -> None:
        """From the next download on; one that runs ends where it began."""
        folder = config.hub.folder or next(iter(config.model_dirs), None)
        self._folder = Path(folder).expanduser() if folder else None
        self._cache = _cache_root(config)
        self.source = HuggingFace(config.hub.endpoint, self._cache)
        self._deletion = config.hub.deletion

    async def cached(self) -> list["CachedRepoInfo"]:
        """What lies in the hub's local cache."""
        return await to_thread.run_sync(repositories, self._cache)

    async def listing(self, repository: str) -> Listing:
        """What a repository holds. Raises as `download`."""
        order = Order(repository=repository)
        return await to_thread.run_sync(self.source.listing, order, abandon_on_cancel=True)

    async def search(self, search: Search) -> list[FoundModel]:
        """What the hub lists. Raises ModelUnavailable."""
        return await to_thread.run_sync(
            searched, self.source.endpoint, search, abandon_on_cancel=True
        )

    async def download(
        self, order: Order, report: Callable[[DownloadProgress], None], fits: Fits = lambda _: True
    ) -> Path:
        """Fetch one model; the folder it lies in then. `fits`: whether one that may be chosen has
        room in memory.

        Raises InvalidRequest (no folder is configured, the name is bad or taken, the order fits
        nothing there), NotFound, Forbidden and ModelUnavailable (the hub fails, the disk has no
        room). Cancellation stops it at once; what has come stays for the next try.
        """
        root = self.root()
        named = within(root, order.folder or order.repository.rpartition("/")[2], "folder_name")
        if order.folder is not None:
            self._require_absent(named)
        found = await to_thread.run_sync(self.source.listing, order, abandon_on_cancel=True)
        chosen = selected(order, found, BACKENDS, fits)
        target = within(root, chosen.folder, "folder_name")
        self._require_absent(target)
        if chosen.others:
            _note_choice(order, chosen)
        self._busy.add(target)
        try:
            name = f"{order.repository.replace('/', '--')}@{found.commit}"
            if len(chosen.files) < len(found.files):  # parts of one may be fetched side by side
                name += f"--{sha256(target.name.encode()).hexdigest()[:16]}"
            staging = within(root / STAGING_DIR, name, "repo_id")
            await self._fetch(chosen, found.headers, staging, report)
            names = tuple(dict.fromkeys((order.name, chosen.model)))
            origin = HubOrigin(repository=order.repository, names=names)
            await to_thread.run_sync(_put, staging, target, origin)
        except OSError as error:
            text = f"{target.name} can't be written: {error.strerror or error}"
            raise ModelUnavailable(text) from error
        finally:
            self._busy.discard(target)
        return target

    def _require_absent(self, target: Path) -> None:
        if target.exists():
            text = f"there is already a folder {target.name} for downloads"
            raise InvalidRequest(text, param="folder_name")
        if target in self._busy:
            raise InvalidRequest(f"{target.name} is being downloaded", param="folder_name")

    def here(self, order: Order, usable: Usable) -> Path | None:
        """The folder of a model: downloaded before, or `usable` in the hub's local cache; None
        where it has to be downloaded. Blocks.
        """
        root, name = self.root(), order.name
        target = within(root, order.usual_folder, "path")
        called = [found for found in downloads(root) if found[1].is_called(name)]
        if called:  # what was downloaded as that goes before another model of its repository
            return min(called, key=lambda found: name not in found[1].names)[0]
        if target.exists() and origin_of(target) is None:  # put there by other means
            return target
        cached_one = self.source.snapshot(order.repository)
        return cached_one if order.quantization is None and usable(cached_one) else None

    async def _fetch(
        self,
        chosen: Selection,
        headers: dict[str, str],
        staging: Path,
        report: Callable[[DownloadProgress], None],
    ) -> None:
        paths = [within(staging, file.name, "repo_id") for file in chosen.files]
        before = 0
        await to_thread.run_sync(_require_room, staging, chosen.size)
        async with httpx.AsyncClient(follow_redirects=True, timeout=SILENCE) as client:
            for file, path in zip(chosen.files, paths, strict=True):

                def count(done: int, name: str = file.name, before: int = before) -> None:
                    report(DownloadProgress(name, before + done, chosen.size, chosen.model))

                count(0)
                await fetch(client, file, path, headers, count)
                before += file.size

    def require_deletable(self, paths: Sequence[Path]) -> None:
        """Raises Forbidden unless deletion is allowed and they lie in the folder for downloads."""
        root = self.root().resolve()
        if not self._deletion:
            raise Forbidden("deleting models is disabled (hub.deletion)")
        if not all(path.resolve().is_relative_to(root) for path in paths):
            raise Forbidden("this model isn't in the folder for downloads")

    async def delete(self, paths: Sequence[Path]) -> None:
        """Delete files and folders of a model that is not in use, and the folder of a download
        that holds nothing more. Raises as `require_deletable`.
        """
        self.require_deletable(paths)
        for path in paths:
            if await anyio.Path(path).is_dir():
                await to_thread.run_sync(shutil.rmtree, path)
            else:
                await anyio.Path(path).unlink(missing_ok=True)
                await to_thread.run_sync(_drop_empty, path.parent)

    def root(self) -> Path:
        """The folder for downloads. Raises InvalidRequest where there is none."""
        if self._folder is None:
            raise InvalidRequest("no folder for downloads is configured (hub.folder or model_dirs)")
        return self._folder


def _require_room(staging: Path, total: int) -> None:
    """Raises ModelUnavailable where the disk can't take what of `total` bytes isn't there yet."""
    staging.mkdir(parents=True, exist_ok=True)
    missing = total - sum(one.stat().st_size for one in staging.rglob("*") if one.is_file())
    if missing > (free := shutil.disk_usage(staging).free):
        raise ModelUnavailable(f"{missing} bytes to download, but the disk has {free} bytes free")


def _note_choice(order: Order, chosen: Selection) -> None:
    log.info(
        "a quantization was chosen",
        model=chosen.model,
        size=gibibytes(chosen.size),
        others=[f"{one.model} {gibibytes(one.size)}" for one in chosen.others],
        named=order.name,
    )


def _put(staging: Path, target: Path, origin: HubOrigin) -> None:
    """What was collected appears under its name, atomically."""
    write_origin(staging, origin)
    target.parent.mkdir(parents=True, exist_ok=True)
    staging.rename(target)


def _drop_empty(folder: Path) -> None:
    """Remove a download's folder in which nothing is left of it."""
    if [path.name for path in folder.iterdir()] == [FILE]:
        shutil.rmtree(folder)


SUFFIX, MAGIC = ".gguf", b"GGUF"
MOST_AT_ONCE = 2
KEPT_FREE = 1 << 30  # bytes of the disk that no upload takes
PIECE = 1 << 20  # bytes written at a time
RETRY = 30.0  # seconds after which one more may be tried


class Uploads:
    """One per server."""

    def __init__(self, hub: Hub, catalog: Catalog) -> None:
        self._hub = hub
        self._catalog = catalog
        self._running = 0

    async def take(self, name: str, length: int, pieces: AsyncIterator[bytes]) -> Path:
        """The file, `length` bytes long; where it lies.

        Raises InvalidRequest (a bad name, one that is taken, no such model), TooLarge where the
        disk has no room, QueueFull. On any error nothing is left of it.
        """
        target = self._target(name)
        self._require_room(length)
        if self._running >= MOST_AT_ONCE:
            raise QueueFull(f"{MOST_AT_ONCE} uploads are already running", retry_after=RETRY)
        self._running += 1
        part = self._hub.root() / STAGING_DIR / f"upload-{uuid.uuid4().hex}{SUFFIX}"
        try:
            await anyio.Path(part.parent).mkdir(parents=True, exist_ok=True)
            await _written(part, length, pieces)
            await to_thread.run_sync(self._require_model, part)
            await to_thread.run_sync(_placed, part, target)
        finally:
            self._running -= 1
            part.unlink(missing_ok=True)
        return target

    def _target(self, name: str) -> Path:
        if "/" in name or not name.endswith(SUFFIX):
            raise InvalidRequest.at("name", f"a file name that ends in {SUFFIX} is wanted")
        target = within(self._hub.root(), name, "name")
        if target.exists():
            raise InvalidRequest.at("name", f"{name} already exists")
        return target

    def _require_room(self, length: int) -> None:
        root = self._hub.root()
        root.mkdir(parents=True, exist_ok=True)
        if length > shutil.disk_usage(root).free - KEPT_FREE:
            raise TooLarge("Not enough disk space for this file.", param="content-length")

    def _require_model(self, part: Path) -> None:
        try:
            self._catalog.recognise(part)
        except (BackendError, ValueError) as error:
            problem = str(error).replace(str(part), "the file")
            raise InvalidRequest(f"Not a model: {problem}") from error


async def _written(part: Path, length: int, pieces: AsyncIterator[bytes]) -> None:
    """Raises InvalidRequest for what is no GGUF file, or has another length."""
    done, held = 0, b""
    async with await anyio.open_file(part, "xb") as disk:
        async for piece in _hurried(pieces):
            held += piece
            done += len(piece)
            if done > length:
                break
            if done >= len(MAGIC) and done - len(held) == 0 and not held.startswith(MAGIC):
                raise InvalidRequest(f"Not a GGUF file: it begins with {held[:4]!r}.")
            if len(held) >= PIECE:
                await disk.write(held)
                held = b""
        await disk.write(held)
    if done != length:
        raise InvalidRequest(f"{length} bytes were announced, and others came.")


async def _hurried(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Raises InvalidRequest where nothing comes for a while."""
    while True:
        try:
            with anyio.fail_after(SILENCE):
                piece = await anext(pieces)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise InvalidRequest(f"No data received for {SILENCE:g} s.") from None
        yield piece


def _placed(part: Path, target: Path) -> None:
    """Under its name, unless that was taken meanwhile: a link never replaces a file."""
    try:
        os.link(part, target)
    except FileExistsError as error:
        raise InvalidRequest.at("name", f"{target.name} already exists") from error
    except OSError:  # a file system without links
        part.rename(target)


LOG_EVERY = 5.0  # seconds between log lines of a download

# A model's name to what is called with the progress of its download.
DownloadReporter: TypeAlias = Callable[[str], Callable[[DownloadProgress], None]]


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
    room, hub, report = _room(config), Hub(config), report or log_reporter
    models: list[ModelConfig] = []
    for model in config.models:
        found = await to_thread.run_sync(_found, hub, model)
        if found is None:
            with _naming(model):
                wanted = hub_model(model.path)
                path = await hub.download(wanted, report(model.name), room)
                found = _lying_at(model, wanted, path)
        models.append(found)
    return replace(config, models=tuple(models))


def downloaded(config: Config) -> Config:
    """As `provided`, for a server that runs: nothing is downloaded. Blocks.

    Raises ConfigError that names the model, for one that isn't here.
    """
    found, absent = present(config)
    if absent:
        problem = f"not downloaded yet; first `roundhouse pull {absent[0].path}`, then reload"
        raise ConfigError(f"model {absent[0].name!r}", "$.path", problem)
    return found


def present(config: Config) -> tuple[Config, tuple[ModelConfig, ...]]:
    """`config` with the models that are here, and those that have to be downloaded first. Raises
    ConfigError for one that can't be named so. Blocks.
    """
    hub = Hub(config)
    found = [(model, _found(hub, model)) for model in config.models]
    here = tuple(one for _, one in found if one is not None)
    return replace(config, models=here), tuple(model for model, one in found if one is None)


def foreseen(
    config: Config, absent: Sequence[ModelConfig], folder: Path
) -> tuple[Config, Sequence[str]]:
    """`config` with those models of the `absent` whose headers a hub gives, which lie in `folder`
    then; and a line for each. Blocks.
    """
    room, source, lines = _room(config), Hub(config).source, []
    for number, model in enumerate(absent):
        try:
            place, order = folder / str(number), hub_model(model.path)
            asked = begun(source, order, place, BACKENDS, room)
            lines.append(f"{model.name}: not downloaded yet; `serve` downloads {HUB}{asked}")
            found = replace(model, path=str(place))
            config = replace(config, models=(*config.models, found))
        except (GatewayError, OSError) as error:
            lines.append(f"{model.name}: not downloaded yet; what it needs isn't known: {error}")
    return config, lines


def _room(config: Config) -> Fits:
    return fits_in({**Gauge().free(), **config.swap.memory}, config, BACKENDS)


def _found(hub: Hub, model: ModelConfig) -> ModelConfig | None:
    """None: it has to be downloaded."""
    if not is_on_hub(model.path):
        return model
    with _naming(model):
        wanted = hub_model(model.path)
        path = hub.here(wanted, _is_usable)
        return None if path is None else _lying_at(model, wanted, path)


@contextmanager
def _naming(model: ModelConfig) -> Iterator[None]:
    """Raises ConfigError, which names the model, for what goes wrong with it."""
    try:
        yield
    except GatewayError as error:
        raise ConfigError(f"model {model.name!r}", "$.path", error.message) from error


def _lying_at(model: ModelConfig, wanted: Order, path: Path) -> ModelConfig:
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
