"""A network between a gateway and a node, which can be slow, cut or silent."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from config.nodes import joined, split


class Network:
    """What passes between the two. `piece`: bytes at a time; 0: as they come. `cut_after`: bytes
    from the node, after which all connections are closed.
    """

    def __init__(self, there: str) -> None:
        self.address = ""
        self.piece = 0
        self.cut_after: int | None = None
        self.passing = asyncio.Event()  # cleared: nothing arrives, nothing is closed
        self.passing.set()
        self._there = split(there)
        self._pumps: set[asyncio.Task[None]] = set()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._there)
        both = (self._pump(reader, back, counts=False), self._pump(there, writer, counts=True))
        self._pumps.update(asyncio.ensure_future(one) for one in both)

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counts: bool
    ) -> None:
        try:
            while data := await reader.read(self.piece or 65_536):
                await self.passing.wait()
                if counts and self.cut_after is not None:
                    data = data[: self.cut_after]
                    self.cut_after -= len(data)
                writer.write(data)
                await writer.drain()
                if self.cut_after == 0:
                    break
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def close(self) -> None:
        for pump in self._pumps:
            pump.cancel()
        if self._pumps:
            await asyncio.wait(self._pumps)


@asynccontextmanager
async def network(address: str) -> AsyncIterator[Network]:
    """One to the node at `address`; its own `address` is where the gateway connects."""
    made = Network(address)
    listens = socket.socket()
    listens.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)  # what is silent takes little
    listens.bind(("127.0.0.1", 0))
    async with await asyncio.start_server(made.connected, sock=listens):
        made.address = joined(*listens.getsockname())
        try:
            yield made
        finally:
            await made.close()
