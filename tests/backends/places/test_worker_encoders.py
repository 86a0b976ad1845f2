"""Models that make vectors or rank, in workers: the same contract, beside this process and behind
TCP; and the same texts are read alike at both ends.
"""

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio
import pytest

from backends.contract import catalog
from backends.contract.encoder import EncoderContainer
from backends.contract.errors import GenerationFailed
from backends.contract.messages import Close, Closed, Encode, Event, Leave, Left
from backends.engines.encoder_driver import DrivenEncoder
from backends.places.encoder_container import PortEncoder
from backends.places.nodes import node
from backends.places.nodes.listening import Listening, listening
from backends.places.worker import WorkerPort, Workers
from config.engines import EngineOptions
from tests.backends import encoder_folders
from tests.backends.encoder_contract import PROMISES, TEXTS, EncoderSubject
from tests.backends.pairs import quick
from tests.backends.places.nodes.nodes import SETTINGS, TOKEN, node_of
from tests.backends.places.workers import CATALOG
from tests.backends.places.workers import workers as made_workers

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def workers() -> AsyncIterator[Workers]:
    with made_workers() as made:
        yield made


@pytest.fixture(scope="module")
async def there() -> AsyncIterator[Listening]:
    async with listening(SETTINGS, TOKEN, CATALOG) as one:
        yield one


async def beside(workers: Workers, path: Path) -> PortEncoder:
    files = catalog.recognise(path)
    backend = catalog.BACKENDS[files.backend]
    container = await workers.load(backend, files, backend.options(), lambda _: None)
    assert isinstance(container, PortEncoder)
    return container


async def far(place: Listening, path: Path, options: EngineOptions | None = None) -> PortEncoder:
    files = await node.recognise(node_of(place), str(path))
    backend = catalog.BACKENDS[files.backend]
    chosen = options or backend.options()
    files = await node.fitted(node_of(place), files, chosen)
    container = await node.load(backend, files, chosen, lambda _: None)
    assert isinstance(container, PortEncoder)
    return container


@pytest.fixture(params=quick(["embed", "rank"], "embed"))
async def container(
    request: pytest.FixtureRequest,
    workers: Workers,
    there: Listening,
    embed_gguf: Path,
    rank_gguf: Path,
) -> AsyncIterator[EncoderContainer]:
    if request.param == "embed":
        loaded = await beside(workers, embed_gguf)
    else:
        loaded = await far(there, rank_gguf)
    yield loaded
    await loaded.aclose()


@pytest.mark.slow
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_contract_of_llama_cpp(
    promise: Callable[[EncoderSubject], Awaitable[None]], container: EncoderContainer
) -> None:
    await promise(EncoderSubject(container))


@pytest.mark.slow
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_contract_of_transformers(
    promise: Callable[[EncoderSubject], Awaitable[None]], there: Listening, tmp_path: Path
) -> None:
    container = await far(there, encoder_folders.cross_encoder(tmp_path / "ranks"))
    await promise(EncoderSubject(container))
    await container.aclose()


async def test_texts_are_read_as_where_the_engine_is(workers: Workers, rank_gguf: Path) -> None:
    files = catalog.recognise(rank_gguf)
    backend = catalog.BACKENDS[files.backend]
    here = await backend.container.load_encoder(files, backend.options(), lambda _: None)
    other = await beside(workers, rank_gguf)
    for text in TEXTS:
        assert other.read(text, 12) == here.read(text, 12)
        assert other.read_pair("Who eats?", text, 20) == here.read_pair("Who eats?", text, 20)
    await here.aclose()
    await other.aclose()


async def test_who_leaves_before_it_began_is_answered(embed_gguf: Path) -> None:
    files = catalog.recognise(embed_gguf)
    backend = catalog.BACKENDS[files.backend]
    container = await backend.container.load_encoder(files, backend.options(), lambda _: None)
    assert isinstance(container, DrivenEncoder)
    send, receive = anyio.create_memory_object_stream[Event](2)
    port = container.port
    port.connect(send.send_nowait)
    port.send(Encode(1, (container.read("a"),)))
    port.send(Leave(1))
    assert await receive.receive() == Left(1)
    port.send(Leave(1))
    assert await receive.receive() == Left(1), "it is not known any more"
    port.send(Close())
    assert await receive.receive() == Closed()
    send.close()
    receive.close()


async def test_the_end_of_a_worker_ends_what_it_encodes(workers: Workers, embed_gguf: Path) -> None:
    container = await beside(workers, embed_gguf)
    told = anyio.Event()
    container.on_failure(told.set)
    assert isinstance(container.port, WorkerPort)
    os.kill(container.port.pid, signal.SIGSTOP)
    os.kill(container.port.pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(GenerationFailed, match="SIGKILL"):
            await container.encode([container.read("a")])
    await told.wait()
    assert container.failure is not None
    await container.aclose()
