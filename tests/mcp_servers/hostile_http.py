"""An MCP server over HTTP that misbehaves in its calls, as its kind says, for tests.

    async with hostile("endless body") as server:
        McpConfig(name="x", url=server.url, …)

It speaks streamable HTTP as of 2025 with sessions, over bare sockets, since no library would send
what it sends.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from tests.mcp_servers.hostile import answer

PLAIN, HTML = "text/plain", "text/html"
JSON, EVENTS = "application/json", "text/event-stream"
Fault = Callable[["HostileServer", asyncio.StreamWriter], Awaitable[None]]


class HostileServer:
    """What was asked of it stands in `methods`: those of HTTP, and JSON-RPC's."""

    def __init__(self, kind: str) -> None:
        self.url = ""
        self.agents: set[str] = set()
        self.methods: list[str] = []
        self.read = 0  # endless streams that are read
        self.kind = kind
        self._sessions = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end."""
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                await self._answer(*await self._request(reader), writer)

    async def _request(self, reader: asyncio.StreamReader) -> tuple[str, bytes]:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method = head.partition(" ")[0]
        lines = (line.partition(":") for line in head.splitlines()[1:])
        fields = {name.lower(): value.strip() for name, _, value in lines}
        self.agents.add(fields["user-agent"])
        return method, await reader.readexactly(int(fields.get("content-length", 0)))

    async def _answer(self, method: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        self.methods.append(method)
        if (refused := REFUSALS.get(self.kind)) is not None:
            await _send(writer, *refused)
            return
        if method != "POST":
            await _send(writer, 200 if method == "DELETE" else 405)
            return
        request = json.loads(body)
        self.methods.append(request["method"])
        if "id" not in request:
            await _send(writer, 202)
        elif request["method"] == "server/discover":
            await _send(writer, 404)
        elif request["method"] == "tools/call" and self.kind in FORGETTING:
            status, text, kind = FORGETTING[self.kind]
            self.kind = "none"
            said = text % {b"id": json.dumps(request["id"]).encode()}
            await _send(writer, status, said, kind)
        elif request["method"] == "tools/call" and self.kind == "foreign id":
            await self._say({**request, "id": None}, writer)
        elif request["method"] == "tools/call" and self.kind in FAULTS:
            await FAULTS[self.kind](self, writer)
        else:
            await self._say(request, writer)

    async def _say(self, request: Mapping[str, Any], writer: asyncio.StreamWriter) -> None:
        result = answer("none", dict(request))
        whole = {"jsonrpc": "2.0", "id": request["id"], "result": result}
        self._sessions += request["method"] == "initialize"
        session = f"mcp-session-id: {self._sessions}\r\n"
        await _send(writer, 200, json.dumps(whole).encode(), JSON, session)


async def _send(
    writer: asyncio.StreamWriter, status: int, body: bytes = b"", kind: str = JSON, more: str = ""
) -> None:
    head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n{more}"
    writer.write(head.encode() + b"\r\n" + body)
    await writer.drain()


async def _begin(writer: asyncio.StreamWriter, kind: str) -> None:
    writer.write(f"HTTP/1.1 200 X\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n".encode())
    await writer.drain()


async def _for_ever(writer: asyncio.StreamWriter, kind: str, text: bytes) -> None:
    await _begin(writer, kind)
    while True:
        writer.write(text)
        await writer.drain()


async def endless_body(_server: HostileServer, writer: asyncio.StreamWriter) -> None:
    await _for_ever(writer, JSON, b"[" * 65_536)


async def endless_event(_server: HostileServer, writer: asyncio.StreamWriter) -> None:
    await _for_ever(writer, EVENTS, b"data: " + b"x" * 65_536)


async def endless_comments(server: HostileServer, writer: asyncio.StreamWriter) -> None:
    await _begin(writer, EVENTS)
    server.read += 1
    try:
        while True:
            writer.write(b"id: 7\ndata:\n\n: still here\n\n")
            await writer.drain()
            await asyncio.sleep(0.01)
    finally:
        server.read -= 1


async def compressed(_server: HostileServer, writer: asyncio.StreamWriter) -> None:
    await _send(writer, 200, b"\x1f\x8b", JSON, "content-encoding: gzip\r\n")


async def elsewhere(server: HostileServer, writer: asyncio.StreamWriter) -> None:
    other = server.url.replace("127.0.0.1", "localhost")
    await _send(writer, 307, b"", JSON, f"location: {other}\r\n")


async def closes(_server: HostileServer, writer: asyncio.StreamWriter) -> None:
    await _begin(writer, JSON)
    writer.close()


async def forgets(_server: HostileServer, writer: asyncio.StreamWriter) -> None:
    await _send(writer, 404)


async def wrong_arguments(_server: HostileServer, writer: asyncio.StreamWriter) -> None:
    error = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32602,"message":"no city"}}'
    await _send(writer, 400, error)


async def a_page(_server: HostileServer, writer: asyncio.StreamWriter) -> None:
    await _send(writer, 200, b"<h1>Welcome</h1>", "text/html")


async def silence(_server: HostileServer, _writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


FAULTS: Mapping[str, Fault] = {
    "endless body": endless_body,
    "endless event": endless_event,
    "endless comments": endless_comments,
    "compressed": compressed,
    "elsewhere": elsewhere,
    "closes": closes,
    "forgets": forgets,
    "a page": a_page,
    "wrong arguments": wrong_arguments,
    "silence": silence,
}


# What a server that was restarted answers to a session of before, once.
FORGETTING: Mapping[str, tuple[int, bytes, str]] = {
    "forgets, as the standard says": (404, b"", JSON),
    "forgets, as FastMCP 3 and Python's SDK 1": (
        404,
        (
            b'{"jsonrpc":"2.0","id":"server-error",'
            b'"error":{"code":-32600,"message":"Session not found"}}'
        ),
        JSON,
    ),
    "forgets, as TypeScript's SDK": (
        404,
        b'{"jsonrpc":"2.0","error":{"code":-32001,"message":"Session not found"},"id":null}',
        JSON,
    ),
    "forgets, as server-everything": (
        400,
        (
            b'{"jsonrpc":"2.0","error":{"code":-32000,'
            b'"message":"Bad Request: No valid session ID provided"},"id":%(id)s}'
        ),
        JSON,
    ),
    "forgets, as Python's SDK 1.0": (400, b"Bad Request: No valid session ID provided", PLAIN),
    "forgets who it is": (401, b'{"error":"invalid_token"}', JSON),
}
# What is answered to whatever is asked.
REFUSALS: Mapping[str, tuple[int, bytes, str]] = {
    "401": (401, b'{"error":"invalid_token"}', JSON),
    "403": (403, b"<h1>Forbidden</h1>", HTML),
    "404": (404, b"<h1>Not Found</h1>", HTML),
    "429": (429, b"", PLAIN),
    "503": (503, b"<h1>Bad Gateway</h1>", HTML),
    "a page for all": (200, b"<h1>Welcome</h1>", HTML),
}


@asynccontextmanager
async def hostile(kind: str) -> AsyncIterator[HostileServer]:
    """It listens."""
    server, tasks = HostileServer(kind), set[asyncio.Task[None]]()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def serve() -> None:
            try:
                await server.serve(reader, writer)
            finally:
                writer.close()

        tasks.add(asyncio.create_task(serve()))

    listener = await asyncio.start_server(accept, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/mcp"
    try:
        yield server
    finally:
        listener.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
