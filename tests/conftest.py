"""What all tests share: async tests run on asyncio, because the server does."""

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import pytest
from hypothesis import HealthCheck, settings

from backends.machine.process_settings import prepare_process
from config.settings import LogConfig
from gateway.terms.logs import LogLines, configure_structlog
from tests.served import Options, Serve, Served, served
from tests.signatures import read_once

if TYPE_CHECKING:
    from tests.gateway.http.serving import Running

REAL = Path(__file__).parent / "real"

# A test states a promise, not a speed: a busy machine breaks none. And what it says of a checkout
# it says again: examples are the same each time, unless `--hypothesis-profile=search` looks for new
# ones, as the fuzzing at length does.
BUSY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", BUSY, derandomize=True)
settings.register_profile("search", BUSY, derandomize=False)
settings.load_profile("same")

# As in a server: structlog's own way draws a traceback in 800 lines, which holds up the event loop.
configure_structlog(LogConfig(level="debug", format="json"), LogLines())

# Also as in a server: threads of an engine that wait for each other don't keep the others' core.
prepare_process(os.environ)

read_once()

# While tests are collected nothing becomes garbage; looking for it takes a seventh of that time.
gc.disable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """A worker more than cores: much of a test's time it waits for a server to stop."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What real weights are asked for takes minutes a file: it begins first, and all else fills up
    what is left beside it.
    """
    items.sort(key=lambda item: REAL not in item.path.parents)


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": loop_as_under_uvicorn}


def loop_as_under_uvicorn() -> asyncio.AbstractEventLoop:
    """anyio's runner notes in its context that this is asyncio; under uvicorn nothing does. So
    callbacks of timers and of threads, which belong to no task, can't use all of anyio there, nor
    in our tests.
    """
    with suppress(ImportError):  # without sniffio, anyio asks asyncio itself
        from sniffio import current_async_library_cvar

        current_async_library_cvar.set(None)
    return asyncio.new_event_loop()


@pytest.fixture(autouse=True, scope="session")
def _settled_heap() -> None:
    """Every unload collects garbage; it needn't walk through three engines and ten thousand tests
    each time.
    """
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts `roundhouse serve` in the test's folder; see `tests/served.py`."""
    with ExitStack() as stack:

        def begin(
            config: Mapping[str, Any] = {}, *arguments: str, **options: Unpack[Options]
        ) -> Served:
            return stack.enter_context(served(tmp_path, config, *arguments, **options))

        yield begin


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> "AsyncIterator[Running]":
    """One server on the bundled model, in the test's own event loop, for all tests of a module that
    only ask it things.
    """
    from tests.gateway.http.serving import config, serving

    folder = tmp_path_factory.mktemp("server")
    async with serving(config(folder), folder) as server:
        yield server


@pytest.fixture(scope="session")
def embed_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """all-MiniLM-L6-v2 as a GGUF file."""
    from tests.backends import encoder_folders, encoder_gguf

    path = tmp_path_factory.mktemp("embed") / "minilm.gguf"
    return encoder_gguf.write(encoder_folders.minilm(), path, half=True)


@pytest.fixture(scope="session")
def rank_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cross-encoder of its weights as a GGUF file."""
    from tests.backends import encoder_folders, encoder_gguf

    folder = tmp_path_factory.mktemp("rank")
    made = encoder_folders.cross_encoder(folder / "folder", typed=False)
    return encoder_gguf.write(made, folder / "rank.gguf", pooling=encoder_gguf.RANK, half=True)
