"""A node that sends what it shouldn't: its connection ends with a reason, and nobody else notices.

The node of these tests has the token, and speaks the protocol as it likes.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec
import pytest
from structlog.testing import capture_logs

from backends.contract.catalog import BACKENDS, NodeShare
from backends.contract.errors import BackendError, GenerationFailed, LoadFailed
from backends.contract.framing import (
    HEADER,
    LARGE,
    Frames,
    Loaded,
    LoadModel,
    Shelf,
    VocabularyFiles,
    WorkerCommand,
    WorkerEvent,
)
from backends.contract.messages import (
    Answered,
    Begin,
    Outcomes,
    SlotTokens,
)
from backends.contract.protocol import Generation, ModelInfo, Piece
from backends.places.cluster.nodes import NOTHING
from backends.places.container import PortContainer
from backends.places.nodes import node
from backends.places.nodes.handshake import Handshake
from config.engines import ScriptedOptions
from config.nodes import NodeConfig
from tests.backends.engines.test_scripted import SCRIPT
from tests.backends.places.nodes.nodes import TOKEN
from tests.hang import HANG

pytestmark = pytest.mark.anyio

Says = Callable[[WorkerCommand], Sequence[bytes]]


def framed(event: WorkerEvent) -> bytes:
    return Shelf(shared=False).frame(event)


def naming(file: int) -> bytes:
    """A piece of a kept conversation that lies in a file of the gateway's machine."""
    piece = ["OfferedBytes", 1, [LARGE, file]]
    payload = msgspec.msgpack.encode(["KeptAsked", 1, piece])
    return HEADER.pack(len(payload)) + payload


@asynccontextmanager
async def saying(says: Says) -> AsyncIterator[NodeConfig]:
    """A node that sends what `says` makes of each command."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, frames = Handshake("worker", TOKEN), Frames(WorkerCommand, lambda: None)
        theirs.begin()
        rest = b""
        while not theirs.done:
            sent, rest = theirs.feed(await reader.read(4096))
            writer.write(sent)
        try:
            data = rest
            while data or (data := await reader.read(1 << 16)):
                for command in frames.feed(data):
                    for part in says(command):
                        writer.write(part)
                        await writer.drain()
                data = b""
        except OSError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        yield NodeConfig(name="box", address=f"127.0.0.1:{port}", token=TOKEN)


@pytest.fixture
async def info(tmp_path: Path) -> ModelInfo:
    """What a sound node says of a model."""
    backend, path = BACKENDS["scripted"], tmp_path / "demo.script.json"
    path.write_text(SCRIPT)
    files = BACKENDS.recognise(path)
    container = await backend.container.load(files, ScriptedOptions(), lambda _: None)
    try:
        return container.info
    finally:
        await container.aclose()


async def loaded(place: NodeConfig, tmp_path: Path) -> PortContainer:
    files = BACKENDS.recognise(tmp_path / "demo.script.json")
    there = msgspec.structs.replace(files, node=NodeShare(node=place, need=NOTHING))
    container = await node.load(BACKENDS["scripted"], there, ScriptedOptions(), lambda _: None)
    assert isinstance(container, PortContainer)
    return container


async def said_by(container: PortContainer) -> None:
    """Of a short answer. It fails where there is much more of it."""
    characters = 0
    async with container.generate(Generation(prompt=(1, 2), max_tokens=8)) as outputs:
        async for output in outputs:
            characters += len(output.text) if isinstance(output, Piece) else 0
            assert characters < 2_000_000


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(naming(os.open("/dev/null", os.O_RDONLY)), id="a-file-of-ours"),
        pytest.param(HEADER.pack(2**31 - 1), id="a-frame-without-end"),
        pytest.param(HEADER.pack(2) + b"\x93\x01", id="no-message"),
    ],
)
async def test_what_a_node_may_not_say_ends_its_connection(said: bytes) -> None:
    await refused(said)


async def test_answers_that_nobody_asked_for_are_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until the wait for the right one is over."""
    monkeypatch.setattr(node, "DESCRIBING", 0.5)
    await refused(framed(Answered(1, SlotTokens(1))) * 9)


async def refused(said: bytes) -> None:
    with capture_logs() as lines, anyio.fail_after(HANG):
        async with saying(lambda _: [said] * 3) as place:
            with pytest.raises(LoadFailed):
                await node.recognise(place, "/models/a.gguf", "scripted")
    assert not [line for line in lines if line["log_level"] == "error"]


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "..", "a/../../b"])
async def test_a_vocabulary_lies_in_its_folder(name: str, info: ModelInfo, tmp_path: Path) -> None:
    there = msgspec.structs.replace(info, tokenizer_path="/models")
    for vocabulary in (VocabularyFiles({}, name), VocabularyFiles({name: b"{}"})):
        with pytest.raises(LoadFailed, match="no vocabulary that can be used"):
            node.tokenizer(BACKENDS["scripted"], there, vocabulary)
    assert not (tmp_path.parent / "b").exists()


@pytest.mark.parametrize(
    "piece",
    [
        pytest.param(Piece("a", (1,)), id="tokens"),
        pytest.param(Piece("", ()), id="nothing"),
        pytest.param(Piece("x" * 1_000_000, (1,)), id="text"),
    ],
)
async def test_an_answer_is_no_longer_than_it_was_asked_for(
    piece: Piece, info: ModelInfo, tmp_path: Path
) -> None:
    """And what comes of a job that isn't there is refused."""

    def says(command: WorkerCommand) -> Sequence[bytes]:
        match command:
            case LoadModel():
                return [framed(Loaded(info))]
            case Begin(key):
                return [framed(Outcomes(((key, piece),) * 100))] * 1_000
        return ()

    async with saying(says) as place:
        container = await loaded(place, tmp_path)
        with pytest.raises(GenerationFailed, match="sent what can't be read"):
            await said_by(container)
        with pytest.raises(BackendError):
            await said_by(container)
        await container.aclose()
