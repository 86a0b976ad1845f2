"""What strangers may do to a listener, and gateways: all of it is bounded, others are served."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from msgspec.structs import replace

import bundled
from backends.contract.errors import BackendMissing, LoadFailed
from backends.contract.framing import Ping, Recognise, Shelf
from backends.contract.messages import Close, Closed, Finish
from backends.places.nodes import node
from backends.places.nodes.handshake import MAGIC, NONCE, Handshake
from backends.places.nodes.listening import STRANGERS, Listening, first_fitting, listening
from config.nodes import split
from tests.backends.places.nodes.nodes import SETTINGS, TOKEN, node_of
from tests.backends.places.nodes.process import listener
from tests.backends.places.workers import CATALOG, gone
from tests.hang import HANG

pytestmark = pytest.mark.anyio


@pytest.fixture
async def there() -> AsyncIterator[Listening]:
    async with listening(SETTINGS, TOKEN, CATALOG) as one:
        yield one


async def opened(there: Listening) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(*split(there.address))


async def is_heard(there: Listening) -> bool:
    """Whether somebody with the token is served."""
    files = await node.recognise(node_of(there), str(bundled.GGUF))
    return files.backend == "llamacpp"


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """What came before."""
    with anyio.fail_after(HANG):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


async def test_more_strangers_than_are_let_in_shut_nobody_out(there: Listening) -> None:
    strangers = [await opened(there) for _ in range(STRANGERS + 8)]
    assert await is_heard(there)
    for reader, _ in strangers[:8]:
        assert await until_closed(reader) == b""
    for _, writer in strangers:
        writer.close()


@pytest.mark.slow
async def test_a_stranger_who_says_nothing_is_not_waited_for(there: Listening) -> None:
    reader, writer = await opened(there)
    writer.write(MAGIC[:2])
    assert await until_closed(reader) == b""
    writer.close()


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\n\r\n", MAGIC + b"n" * NONCE + b"x" * 1_000_000, b"\x16\x03\x01"]
)
async def test_a_foreign_protocol_gets_no_answer(said: bytes, there: Listening) -> None:
    reader, writer = await opened(there)
    writer.write(said)
    assert len(await until_closed(reader)) <= len(MAGIC) + NONCE
    writer.close()
    assert await is_heard(there)


@pytest.mark.parametrize(
    "said",
    [
        b"\xff\xff\xff\xff\x00",
        b"\x01\x00\x00\x00\x00\xc1",
        Shelf(shared=False).frame(Finish(1)),
    ],
)
async def test_who_has_the_token_and_sends_what_is_no_order_is_cut_off(
    said: bytes, there: Listening
) -> None:
    reader, writer = await opened(there)
    ours = Handshake("gateway", TOKEN)
    writer.write(ours.begin())
    while not ours.done:
        writer.write(ours.feed(await reader.read(1000))[0])
    writer.write(Shelf(shared=False).frame(Ping()) + said)
    await until_closed(reader)
    writer.close()
    assert await is_heard(there)


async def test_who_leaves_before_anything_began_is_told(there: Listening) -> None:
    """An order and the end may come in one piece."""
    reader, writer = await opened(there)
    ours = Handshake("gateway", TOKEN)
    writer.write(ours.begin())
    while not ours.done:
        writer.write(ours.feed(await reader.read(1000))[0])
    shelf = Shelf(shared=False)
    writer.write(shelf.frame(Recognise(str(bundled.GGUF), None)) + shelf.frame(Close()))
    assert await until_closed(reader) == shelf.frame(Closed())
    writer.close()


async def test_no_model_outside_its_folders_is_loaded(tmp_path: Path) -> None:
    settings = replace(SETTINGS, folders=(str(tmp_path),))
    link = tmp_path / "link.gguf"
    link.symlink_to(bundled.GGUF)
    async with listening(settings, TOKEN, CATALOG) as there:
        for path in (str(bundled.GGUF), str(link), f"{tmp_path}/../{bundled.GGUF.name}"):
            with pytest.raises(LoadFailed, match="outside the folders that this node loads from"):
                await node.recognise(node_of(there), path)
        with pytest.raises(LoadFailed, match="is no whole path"):
            await node.recognise(node_of(there), "model.gguf")
        with pytest.raises(BackendMissing, match="there is no engine 'other' here"):
            await node.recognise(node_of(there), str(tmp_path), "other")


async def test_a_listener_ends_with_its_context_and_a_port_in_use_is_said() -> None:
    with listener(SETTINGS, token=TOKEN) as there:
        assert await is_heard(there)
        _, port = split(there.address)
        with (
            pytest.raises(LoadFailed, match="the listener ended"),
            listener(replace(SETTINGS, port=port)),
        ):
            pass
    await gone(there.pid)
    assert there.pid != os.getpid()


async def test_the_first_way_with_room_is_taken() -> None:
    ways = ({"cuda:0": 1.0}, {"cuda:0": 0.5, "cuda:1": 0.5}, {"cpu": 1.0})
    assert first_fitting(ways, 8, {"cuda:0": 5, "cuda:1": 4}) == {"cuda:0": 0.5, "cuda:1": 0.5}
    assert first_fitting(ways, 8, {}) == {"cpu": 1.0}
