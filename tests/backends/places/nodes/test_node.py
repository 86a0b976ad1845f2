"""A container whose engine is in a worker behind a TCP connection keeps the contract, and whatever
becomes of node, worker or network is told.
"""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from weakref import ref

import anyio
import psutil
import pytest
from msgspec.structs import replace

import bundled
from backends.contract.errors import BackendError, GenerationFailed, LoadFailed, OutOfMemory
from backends.contract.protocol import Generation, Image, Pixels, Progress
from backends.places.container import PortContainer
from backends.places.nodes import node
from backends.places.nodes.handshake import Handshake, OtherVersion, Peer
from backends.places.nodes.listening import Listening, listening
from config.engines import LlamaCppOptions, ScriptedOptions, TransformersOptions
from config.nodes import NodeConfig
from tests.backends.batching import GREETING, STORY
from tests.backends.constrained import PROMISES as CONSTRAINED
from tests.backends.container_contract import LASTING, PROMISES, Subject, job, run, text_of
from tests.backends.engines.test_scripted import SCRIPT
from tests.backends.engines.toy.files import ToyOptions
from tests.backends.places.nodes.nodes import SETTINGS, TOKEN, load_frail_there, load_there, node_of
from tests.backends.places.nodes.process import listener
from tests.backends.places.nodes.proxies import network
from tests.backends.places.workers import (
    CATALOG,
    alphabet,
    forgotten,
    gone,
    is_there,
    uncollected,
    workers_of,
)
from tests.hang import HANG

pytestmark = pytest.mark.anyio

SAID = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
Promise = Callable[[Subject], Awaitable[None]]


@pytest.fixture(scope="module")
async def there() -> AsyncIterator[Listening]:
    async with listening(SETTINGS, TOKEN, CATALOG) as one:
        yield one


@pytest.fixture(scope="module")
async def secured() -> AsyncIterator[Listening]:
    async with listening(replace(SETTINGS, tls=True), TOKEN, CATALOG) as one:
        yield one


@pytest.fixture
async def scripted(there: Listening, tmp_path: Path) -> AsyncIterator[Subject]:
    path = tmp_path / "demo.script.json"
    path.write_text(SCRIPT)
    container = await load_there(node_of(there), path, ScriptedOptions(max_concurrent=4))
    yield Subject(container, prompt="hello", long="long")
    await container.aclose()


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
async def test_contract_of_the_scripted_engine(promise: Promise, scripted: Subject) -> None:
    await promise(scripted)


@pytest.fixture(scope="module")
async def llamacpp(secured: Listening) -> AsyncIterator[Subject]:
    options = LlamaCppOptions(max_concurrent=4, context_length=512)
    container = await load_there(node_of(secured), bundled.GGUF, options)
    yield Subject(container, GREETING, STORY)
    await container.aclose()


@pytest.fixture(scope="module")
async def transformers(there: Listening) -> AsyncIterator[Subject]:
    options = TransformersOptions(device="cpu", max_concurrent=4, context_length=512)
    container = await load_there(node_of(there), bundled.SAFETENSORS, options)
    yield Subject(container, GREETING, STORY)
    await container.aclose()


@pytest.mark.slow
@pytest.mark.parametrize("promise", [*LASTING, *CONSTRAINED], ids=lambda promise: promise.__name__)
async def test_contract_of_llama_cpp_over_tls(promise: Promise, llamacpp: Subject) -> None:
    await promise(llamacpp)


@pytest.mark.slow
@pytest.mark.parametrize("promise", [*LASTING, *CONSTRAINED], ids=lambda promise: promise.__name__)
async def test_contract_of_transformers(promise: Promise, transformers: Subject) -> None:
    await promise(transformers)


async def test_the_tokenizer_is_made_of_what_came_with_the_load(secured: Listening) -> None:
    options = LlamaCppOptions(max_concurrent=2, context_length=256)
    container = await load_there(node_of(secured), bundled.GGUF, options)
    tokens = container.tokenize("<|im_start|>Grüße, 你好", special=True)
    assert tokens[0] < 768
    assert container.detokenize(tokens[1:]) == "Grüße, 你好"
    assert container.info.held is not None
    assert container.info.held["cpu"] > 1_000_000
    pieces, _ = await run(container, job(Subject(container, GREETING, STORY), GREETING))
    assert text_of(pieces)
    await container.aclose()


async def test_pictures_come_whole_over_a_slow_network(there: Listening, tmp_path: Path) -> None:
    path = tmp_path / "seeing.script.json"
    path.write_text('{"lines": [{"say": "{images}"}], "modalities": ["text", "image"]}')
    async with network(there.address) as slow:
        slow.piece = 997
        container = await load_there(node_of(there, address=slow.address), path)
        picture = Image(1000, 900, Pixels(b"\x10\x20\x30" * 900_000))
        prompt = container.tokenize("look", special=True)
        pieces, _ = await run(container, Generation(prompt=prompt, images=(picture,)))
        assert text_of(pieces) == "1000x900 #102030"
        await container.aclose()


# ------------------------------------------------------------------------------------------- faults


async def fault(container: PortContainer, generation: Generation) -> BackendError:
    """What the job ends with."""
    with anyio.fail_after(HANG):
        with pytest.raises(BackendError) as raised:
            await run(container, generation)
    return raised.value


def asked(container: PortContainer, text: str) -> Generation:
    return job(Subject(container, "S", "answer:"), text)


async def test_a_crash_ends_the_jobs_of_its_worker_alone_and_the_model_can_come_again(
    there: Listening, tmp_path: Path
) -> None:
    place = node_of(there)
    broken = await load_frail_there(place, tmp_path / "first")
    sound = await load_frail_there(place, tmp_path / "second")
    texts: list[str] = []

    async def answer() -> None:
        texts.append(text_of((await run(sound, asked(sound, "answer:")))[0]))

    told = anyio.Event()
    broken.on_failure(told.set)
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(answer)
        error = await fault(broken, asked(broken, "fail()"))
    with anyio.fail_after(HANG):
        await told.wait()
    assert str(error).startswith(
        "node box: the worker of alphabet.toy.json was ended by SIGABRT (native.c:1: GGML_ASSERT"
    )
    assert texts == 4 * [SAID]
    again = await load_frail_there(place, tmp_path / "first")
    assert text_of((await run(again, asked(again, "answer:")))[0]) == SAID
    for container in (broken, sound, again):
        await container.aclose()


async def test_a_connection_cut_within_a_frame_ends_its_model_alone(
    there: Listening, tmp_path: Path
) -> None:
    async with network(there.address) as cut:
        broken = await load_frail_there(node_of(there, address=cut.address), tmp_path / "first")
        sound = await load_frail_there(node_of(there), tmp_path / "second")
        cut.cut_after = 11
        error = await fault(broken, asked(broken, "answer:"))
        assert "the worker of alphabet.toy.json is lost: node box (" in str(error)
        assert "closed the connection" in str(error)
        assert text_of((await run(sound, asked(sound, "answer:")))[0]) == SAID
        with pytest.raises(GenerationFailed, match="is lost"):
            await broken.slots.states()
        await broken.aclose()
        await sound.aclose()


@pytest.mark.slow
async def test_a_network_that_falls_silent_is_noticed_at_both_ends(tmp_path: Path) -> None:
    """The gateway has its heartbeats (see below); the node ends what nobody asks for any more."""
    async with (
        listening(replace(SETTINGS, silence=5.0), TOKEN, CATALOG) as there,
        network(there.address) as silent,
    ):
        container = await load_frail_there(node_of(there, address=silent.address), tmp_path)
        (pid,) = (one for one in workers_of(os.getpid()) if "frail" in launcher_of(one))
        silent.passing.clear()
        await gone(pid)
        error = await fault(container, asked(container, "answer:"))
        assert "the worker of alphabet.toy.json is lost: node box" in str(error)
        silent.passing.set()
        await container.aclose()


@pytest.mark.slow
async def test_a_network_that_takes_nothing_of_what_is_sent_is_noticed_as_soon(
    secured: Listening, tmp_path: Path
) -> None:
    """Heartbeats go on, so that there is more under way each time: that is no progress."""
    path = tmp_path / "seeing.script.json"
    path.write_text('{"lines": [{"say": "{images}"}], "modalities": ["text", "image"]}')
    async with network(secured.address) as silent:
        container = await load_there(node_of(secured, address=silent.address), path)
        silent.passing.clear()
        picture = Image(4000, 2000, Pixels(b"\x10\x20\x30" * 8_000_000))
        error = await fault(container, Generation(prompt=(1,), images=(picture,)))
        assert re.search(r"did not answer for \d s", str(error))
        silent.passing.set()
        await container.aclose()


def launcher_of(pid: int) -> str:
    parent = psutil.Process(pid).parent()
    return " ".join(parent.cmdline()) if parent else ""


@pytest.mark.slow
async def test_a_node_that_stands_still_is_lost_and_leaves_no_worker(tmp_path: Path) -> None:
    with listener(SETTINGS, token=TOKEN) as there:
        container = await load_frail_there(node_of(there), tmp_path)
        pids = workers_of(there.pid)
        assert len(pids) == 1
        os.kill(there.pid, signal.SIGSTOP)
        error = await fault(container, asked(container, "answer:"))
        assert "did not answer for 3 s" in str(error)
        with pytest.raises(LoadFailed, match="did not answer within 5 s"):
            await node.recognise(node_of(there), str(tmp_path))
        os.kill(there.pid, signal.SIGKILL)
        await gone(*pids)
        await container.aclose()


async def test_an_unload_keeps_nothing_of_the_model_here(there: Listening, tmp_path: Path) -> None:
    with uncollected():
        container = await load_frail_there(node_of(there), tmp_path)
        kept = ref(container)
        await container.aclose()
        del container
        await forgotten(kept)


async def test_the_end_of_a_gateway_ends_its_workers(there: Listening, tmp_path: Path) -> None:
    before = set(workers_of(os.getpid()))
    async with network(there.address) as cut:
        container = await load_frail_there(node_of(there, address=cut.address), tmp_path)
        (pid,) = set(workers_of(os.getpid())) - before
        assert is_there(pid)
    await gone(pid)
    await container.aclose()


async def test_a_model_is_the_same_whatever_is_free_there(there: Listening, tmp_path: Path) -> None:
    """Else a configuration that is read again would have it loaded anew."""
    place, path = node_of(there), str(alphabet(tmp_path, "alphabet"))
    files = await node.recognise(place, path, "frail")
    before = await node.fitted(place, files, ToyOptions())
    container = await load_frail_there(place, tmp_path)
    assert await node.fitted(place, files, ToyOptions()) == before
    await container.aclose()


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("full", OutOfMemory, "^not enough memory for it$"),
        ("killed", OutOfMemory, "SIGKILL, as the system does where memory runs out"),
    ],
)
async def test_a_load_fails_as_it_would_here(
    name: str, kind: type[Exception], text: str, there: Listening, tmp_path: Path
) -> None:
    with pytest.raises(LoadFailed, match=text) as raised:
        await load_frail_there(node_of(there), tmp_path, name)
    assert type(raised.value) is kind


async def test_a_load_that_is_cancelled_leaves_no_process(there: Listening, tmp_path: Path) -> None:
    before, pids = set(workers_of(os.getpid())), list[int]()
    scope = anyio.CancelScope()

    def begun(_: Progress) -> None:
        pids.extend(set(workers_of(os.getpid())) - before)
        scope.cancel()

    with scope:
        await load_frail_there(node_of(there), tmp_path, "endless", begun)
    assert scope.cancelled_caught
    assert pids
    assert not any(map(is_there, pids))


# ------------------------------------------------------------------------------------ who is there


async def refused(place: NodeConfig) -> str:
    with anyio.fail_after(HANG), pytest.raises(node.Unreached) as raised:
        await node.recognise(place, "/models/any.gguf")
    return str(raised.value)


async def test_who_is_not_the_other_end_is_said(there: Listening, secured: Listening) -> None:
    begin = f"node box ({there.address}) "
    other = node_of(there, token="another one altogether")
    assert (await refused(other)).startswith(begin + "closed the connection: it has another token")
    assert "can't be reached" in await refused(node_of(there, tls=True))
    assert await refused(node_of(secured, tls=False, fingerprint=None))
    pinned = node_of(secured, fingerprint="sha256:" + "0" * 64)
    assert "another certificate than the configured" in await refused(pinned)
    assert "can't be reached" in await refused(node_of(there, address="127.0.0.1:1"))


async def test_a_foreign_protocol_and_another_version_are_said() -> None:
    async def speak(text: bytes, place: NodeConfig) -> str:
        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(text)
            writer.close()

        return await served(answer, place)

    async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs = Handshake("worker", TOKEN, ours=Peer("0.1", b"another digest.."))
        while not theirs.done:
            try:
                writer.write(theirs.feed(await reader.read(100))[0])
            except OtherVersion as error:
                writer.write(error.answer)
                break
        writer.close()

    place = NodeConfig(name="box", address="", token=TOKEN)
    assert "speaks another protocol: b'HTTP/1.1 400" in await speak(b"HTTP/1.1 400 Bad", place)
    assert "runs Roundhouse 0.1, and this is" in await served(old, place)


async def served(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    place: NodeConfig,
) -> str:
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        return await refused(replace(place, address=f"{host}:{port}"))
