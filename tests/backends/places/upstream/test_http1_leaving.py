"""Who leaves, at whatever await, leaves no connection behind."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
import httpx
import pytest

from backends.places.upstream.http1 import Http1Transport
from tests.hang import HANG

pytestmark = pytest.mark.anyio

PARTS = (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n", b"0\r\n\r\n")


class Place:
    """A server that counts the connections it has."""

    def __init__(self) -> None:
        self.url = ""
        self.open = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                for part in PARTS:
                    writer.write(part)
                    await asyncio.sleep(0)
        self.open -= 1
        writer.close()


@asynccontextmanager
async def listening() -> AsyncIterator[Place]:
    place = Place()
    server = await asyncio.start_server(place.serve, "127.0.0.1", 0)
    place.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with server:
        yield place


async def ask(client: httpx.AsyncClient, url: str) -> None:
    async with client.stream("GET", url) as response:
        assert isinstance(response.stream, httpx.AsyncByteStream)
        async for _ in response.stream:
            pass


@pytest.mark.parametrize("is_warm", [False, True])
@pytest.mark.parametrize("is_native", [False, True])
async def test_whenever_it_is(is_warm: bool, is_native: bool) -> None:
    """`is_native`: the task is cancelled, not a scope."""
    async with listening() as place:
        for steps in range(60):
            transport = Http1Transport(None, most=4, idle=30.0)
            async with httpx.AsyncClient(transport=transport, timeout=HANG) as client:
                if is_warm:
                    await ask(client, place.url)
                before = place.open
                if await left(client, place.url, steps, is_native=is_native):
                    return
                with anyio.fail_after(HANG):
                    while place.open > max(before, 1):
                        await asyncio.sleep(0.001)
                await ask(client, place.url)
                assert place.open <= 1, f"after {steps} steps"
            with anyio.fail_after(HANG):
                while place.open:
                    await asyncio.sleep(0.001)
    raise AssertionError("it never ended")


async def left(client: httpx.AsyncClient, url: str, steps: int, *, is_native: bool) -> bool:
    """Whether it had its answer before."""
    scope = anyio.CancelScope()

    async def run() -> None:
        with scope:
            await ask(client, url)

    task = asyncio.create_task(run())
    for _ in range(steps):
        await asyncio.sleep(0)
    if task.done():
        return True
    if is_native:
        task.cancel()
    else:
        scope.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return False
