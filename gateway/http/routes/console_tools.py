"""The tools of MCP servers, for a page that shows its user each call and runs it when allowed.

The page gives a model these tools as functions of its own, so what the model may call, and what
ran, is in the conversation as for any client's tools. Chats whose tools run without a page are
`gateway.mcp.rounds`.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from litestar import get, post

from gateway.http.auth import AnyRequest
from gateway.http.request_log import audit
from gateway.http.routing import Routes
from gateway.http.services import Services
from gateway.http.sse import attended
from gateway.keys.access import Access
from gateway.mcp.servers import Toolset
from gateway.terms.request import ServedTools
from gateway.terms.tasks import companions

api = Routes()


class ToolWire(msgspec.Struct, frozen=True, kw_only=True):
    """One tool. `function`: what a model calls it; `asks`: the configuration has each call wait for
    its user; `reads_only`: it changes nothing, by its server's word.
    """

    name: str
    function: str
    description: str
    parameters: Mapping[str, Any]
    asks: bool
    reads_only: bool


class ToolsWire(msgspec.Struct, frozen=True):
    """The tools of one server."""

    server: str
    tools: Sequence[ToolWire]


class ToolOrder(msgspec.Struct, frozen=True, kw_only=True):
    """A call that its user allowed."""

    server: str
    tool: str
    arguments: dict[str, Any] = {}


class ToolResultWire(msgspec.Struct, frozen=True):
    """What the tool answered, as a model would be told."""

    text: str
    is_error: bool


@api(get, "/v1/admin/mcp/tools", access="user")
async def tools(request: AnyRequest, services: Services, server: str = "") -> ToolsWire:
    """List the tools of an MCP server."""
    async with attended(request), _opened(services, server, request.auth) as toolset:
        return ToolsWire(server, _wires(toolset))


@api(post, "/v1/admin/mcp/call", status_code=200, access="user")
async def call(request: AnyRequest, services: Services, order: ToolOrder) -> ToolResultWire:
    """Run a tool of an MCP server, as its user has allowed. The call ends with the connection."""
    audit(request, "call tool", server=order.server, tool=order.tool)
    async with attended(request), _opened(services, order.server, request.auth) as toolset:
        name = toolset.function(order.server, order.tool, "tool")
        result = await toolset.runnable[name].run(order.arguments)
        return ToolResultWire(result.text, result.is_error)


@asynccontextmanager
async def _opened(services: Services, server: str, access: Access) -> AsyncIterator[Toolset]:
    """One server's tools. Raises InvalidRequest and ToolServerFailed."""
    wanted = ServedTools(label=server, field="server", named_at="server")
    async with companions() as tasks:
        yield await services.mcp.opened((wanted,), (), access, tasks, can_approve=True)


def _wires(toolset: Toolset) -> Sequence[ToolWire]:
    described = {
        entry["name"]: entry for listed in toolset.listed for entry in listed.tools
    }  # by the server's own names
    found = []
    for tool in toolset.tools:
        runnable = toolset.runnable[tool.name]
        hints = described[runnable.shown.name]["annotations"] or {}
        assert isinstance(hints, Mapping)
        found.append(
            ToolWire(
                name=runnable.shown.name,
                function=tool.name,
                description=tool.description or "",
                parameters=tool.parameters or {},
                asks=runnable.shown.waits,
                reads_only=bool(hints.get("readOnlyHint")),
            )
        )
    return found
