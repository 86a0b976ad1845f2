"""An MCP server with tools that answer, for tests: `python -m tests.mcp_servers.honest TRANSPORT`.

TRANSPORT: stdio, streamable-http, or sse; the latter two print their URL.
"""

import os
import sys

import anyio
import uvicorn
from mcp.server.caching import CacheHint
from mcp.server.mcpserver import Context, MCPServer

# For how long the list of its tools is good (2026-07-28, `ttlMs`).
GOOD = CacheHint(ttl_ms=int(os.environ.get("GOOD_FOR", "0")))
server = MCPServer("honest", instructions="Adds.", cache_hints={"tools/list": GOOD})
waiting: list[float] = []


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def weather(city: str) -> str:
    """The weather of a city."""
    return f"Rain in {city}."


@server.tool()
def fail() -> str:
    """Fails."""
    raise ValueError("the moon is down")


@server.tool()
async def wait(seconds: float) -> str:
    """Takes so long."""
    waiting.append(seconds)
    try:
        await anyio.sleep(seconds)
    finally:
        waiting.remove(seconds)
    return "waited"


@server.tool()
def waits() -> str:
    """Counts the waits that are under way."""
    return f"{len(waiting)} under way"


@server.tool()
def who() -> str:
    """The process that serves."""
    return str(os.getpid())


@server.tool()
def variable(name: str) -> str:
    """What the environment says."""
    return os.environ.get(name, "(unset)")


@server.tool()
def long(letters: int) -> str:
    """A long text."""
    return "x" * letters


@server.tool()
async def grow(context: Context) -> str:
    """Has one more tool, and says so to who asked to be told."""
    server.add_tool(who, name="grown")
    await context.notify_tools_changed()
    return "grown"


@server.tool()
def die() -> str:
    """Ends the process."""
    os._exit(3)


def main(transport: str) -> None:
    """Serve until it is stopped."""
    if transport == "stdio":
        server.run("stdio")
        return
    if transport == "sse":
        app, path = server.sse_app(), "/sse"
    else:
        app, path = server.streamable_http_app(), "/mcp"

    class Listening(uvicorn.Server):
        async def startup(self, sockets: object = None) -> None:
            await super().startup(sockets)  # type: ignore[arg-type]
            port = self.servers[0].sockets[0].getsockname()[1]
            sys.stdout.write(f"http://127.0.0.1:{port}{path}\n")
            sys.stdout.flush()

    Listening(uvicorn.Config(app, port=0, log_level="warning")).run()


if __name__ == "__main__":
    main(sys.argv[1])
