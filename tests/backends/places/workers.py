"""Workers for tests, and what is known of their processes."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from weakref import ref

import anyio
import anyio.lowlevel
import psutil

from backends.contract.catalog import BACKENDS, Backend, Catalog
from backends.contract.protocol import Progress
from backends.places.container import PortContainer
from backends.places.worker import WorkerPort, Workers
from config.engines import EngineOptions
from tests.backends.engines.toy.files import ToyOptions
from tests.backends.engines.toy.test_container import write
from tests.hang import HANG

FRAIL = Backend("frail", ToyOptions, package="tests.backends.places.frail")
THREADED = Backend("threaded", ToyOptions, package="tests.backends.places.threaded")
CATALOG = Catalog((*BACKENDS.values(), FRAIL, THREADED))


@contextmanager
def workers() -> Iterator[Workers]:
    """They end with the context."""
    made = Workers()
    try:
        yield made
    finally:
        made.close()


async def load(
    workers: Workers,
    path: Path,
    options: EngineOptions | None = None,
    backend: str | None = None,
    report: Callable[[Progress], None] = lambda _: None,
) -> PortContainer:
    files = CATALOG.recognise(path, backend)
    engine = CATALOG[files.backend]
    container = await workers.load(engine, files, options or engine.options(), report)
    assert isinstance(container, PortContainer)
    return container


async def load_frail(
    workers: Workers,
    folder: Path,
    name: str = "alphabet",
    report: Callable[[Progress], None] = lambda _: None,
    engine: str = "frail",
) -> PortContainer:
    """A model that says the alphabet, unless its prompt or its name ends it."""
    return await load(workers, alphabet(folder, name), ToyOptions(max_concurrent=4), engine, report)


def alphabet(folder: Path, name: str) -> Path:
    folder.mkdir(exist_ok=True)
    return write(folder).rename(folder / f"{name}.toy.json")


def pid_of(container: PortContainer) -> int:
    assert isinstance(container.port, WorkerPort)
    return container.port.pid


def workers_of(gateway: int) -> list[int]:
    """The workers of that process: its launchers' children."""
    launchers = psutil.Process(gateway).children()
    return [child.pid for launcher in launchers for child in launcher.children()]


def is_there(pid: int) -> bool:
    """Whether the process runs."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is collected in this context, as it is rarely in a server."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def forgotten(kept: "ref[PortContainer]") -> None:
    """Once callbacks that are due have run, nobody has the container any more."""
    for _ in range(10):
        await anyio.lowlevel.checkpoint()
    assert kept() is None


async def gone(*pids: int) -> None:
    """Waits until they are."""
    with anyio.fail_after(HANG):
        while any(map(is_there, pids)):
            await anyio.sleep(0.01)
