"""Lists the tools of the server at a URL, and calls each: `python -m tests.mcp_servers.client URL`.

The program that `scripts/mcp-conformance` has the official suite try.
"""

import sys

import anyio

from config.mcp import McpConfig
from gateway.mcp.session import McpServer
from gateway.terms.tasks import companions


async def main(url: str) -> None:
    """Every argument is a number."""
    async with companions() as tasks:
        server = McpServer(McpConfig(name="x", url=url, allow_private_addresses=True), tasks)
        for tool in (await server.tools()).tools:
            arguments = dict.fromkeys(tool.input_schema.get("properties", {}), 2)
            result = await server.call(tool.name, arguments)
            if result.is_error:
                sys.exit(result.text)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1])
