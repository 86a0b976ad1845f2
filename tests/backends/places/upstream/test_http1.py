"""HTTP/1.1 as other servers speak it."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import httpx
import pytest

from backends.places.upstream.http1 import MAX_HEAD, Http1Transport
from tests.hang import HANG

pytestmark = pytest.mark.anyio

REQUEST_END = b"\r\n\r\n"
Reply = Callable[[int], bytes]


@asynccontextmanager
async def speaking(reply: Reply, *, closes: bool = False) -> AsyncIterator[str]:
    """A server that sends `reply(k)` for the k-th request, then closes if it `closes`."""
    asked = 0
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        writers.append(writer)
        try:
            while True:
                await reader.readuntil(REQUEST_END)
                asked += 1
                writer.write(reply(asked))
                await writer.drain()
                if closes:
                    break
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0)


@asynccontextmanager
async def asking() -> AsyncIterator[httpx.AsyncClient]:
    transport = Http1Transport(None, most=4, idle=30.0)
    async with httpx.AsyncClient(transport=transport, timeout=HANG) as client:
        yield client


async def got(reply: bytes, *, closes: bool = False) -> httpx.Response:
    async with speaking(lambda _: reply, closes=closes) as url, asking() as client:
        return await client.get(url)


async def test_a_body_of_known_length() -> None:
    response = await got(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: b\r\n\r\nhi")

    assert (response.status_code, response.text, response.headers["x-a"]) == (200, "hi", "b")


async def test_a_body_in_chunks() -> None:
    body = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nh\r\n1\r\ni\r\n0\r\n\r\n"
    assert (await got(body)).text == "hi"


async def test_a_body_that_ends_with_the_connection() -> None:
    assert (await got(b"HTTP/1.0 200 OK\r\n\r\nhi", closes=True)).text == "hi"


async def test_a_body_without_any_bytes() -> None:
    assert (await got(b"HTTP/1.1 204 No Content\r\n\r\n")).status_code == 204


async def test_what_comes_before_the_response_is_passed_over() -> None:
    reply = (
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    )
    response = await got(reply)

    assert response.status_code == 200
    assert "link" not in response.headers


@pytest.mark.parametrize(
    "reply",
    [
        b"nothing of the kind\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nhi",
        b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * (2 * MAX_HEAD),
        b"",
    ],
)
async def test_what_is_no_whole_response_is_an_error(reply: bytes) -> None:
    with pytest.raises(httpx.RemoteProtocolError):
        await got(reply, closes=True)


async def test_a_connection_that_was_closed_while_idle_is_made_again() -> None:
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
    async with speaking(lambda _: reply, closes=True) as url, asking() as client:
        assert [(await client.get(url)).text for _ in range(3)] == ["hi"] * 3


async def test_a_header_that_would_end_its_line_is_not_sent() -> None:
    async with speaking(lambda _: b"") as url, asking() as client:
        with pytest.raises(httpx.LocalProtocolError):
            await client.get(url, headers={"x-a": "b\r\nx-c: d"})


OK = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b"


async def test_a_second_response_in_the_same_bytes_answers_nobody() -> None:
    def reply(number: int) -> bytes:
        return OK % (1, b"%d" % number) + (OK % (5, b"stray") if number == 1 else b"")

    async with speaking(reply) as url, asking() as client:
        assert [(await client.get(url)).text for _ in range(3)] == ["1", "2", "3"]


async def test_what_had_come_before_a_reset_is_read() -> None:
    """However late: whoever reads slowly loses nothing to a server that closes hard."""
    sent = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(REQUEST_END)
        writer.write(OK % (4, b"ab"))
        await sent.wait()
        writer.write(b"cd")
        await asyncio.sleep(0.05)
        linger = struct.pack("ii", 1, 0)  # closing resets the connection
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with server, asking() as client, client.stream("GET", url) as response:
        parts = response.aiter_raw()
        assert await anext(parts) == b"ab"
        sent.set()
        await asyncio.sleep(0.2)
        assert [part async for part in parts] == [b"cd"]


async def test_bytes_that_come_while_a_connection_is_idle_answer_nobody() -> None:
    """Whether the event loop has read them when the connection is taken again, or not."""
    idle: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        idle.append(writer)
        while await reader.readline() not in (b"", b"\r\n"):
            pass
        writer.write(OK % (5, b"asked"))
        with suppress(ConnectionError):  # what was not read resets the connection
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with server, asking() as client:
        for waits in (0, 5):
            assert (await client.get(url)).text == "asked"
            idle[-1].write(OK % (5, b"stray"))
            for _ in range(waits):
                await asyncio.sleep(0)
        assert (await client.get(url)).text == "asked"
        assert len(idle) == 3
        for writer in idle:
            writer.transport.abort()
