"""The configured MCP servers: who may use which, and the tools that a chat has of them.

It follows the configuration: a server whose entry has changed begins anew at its next call. Knows
no HTTP and no API.
"""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import filterfalse
from typing import TYPE_CHECKING
from unicodedata import combining, normalize

import msgspec
import structlog
from anyio.abc import TaskGroup
from msgspec.structs import asdict, replace

from backends.contract.catalog import command
from config.mcp import McpConfig
from config.settings import Config
from gateway.keys.access import Access
from gateway.terms.errors import GatewayError, InvalidRequest, NotSupported
from gateway.terms.events import ListedServer, ServedTool
from gateway.terms.request import ServedTools, Tool, Unapplied
from gateway.terms.tasks import companions

if TYPE_CHECKING:  # the library is imported when a server is first asked for
    from gateway.mcp.session import ListedTool, Listing, McpServer, ToolResult

MOST_SERVERS = 16  # of one request
LONGEST_NAME = 64  # of a function, as clients and models know them
OWN_HEADERS = "the configuration says what this server is sent"
CANT_ASK = "its calls wait for their user's approval, which this API can't ask for"
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")

log = structlog.get_logger(__name__)


class ToolServerFailed(
    GatewayError, status=424, type="external_connector_error", code="mcp_server_failed"
):
    """An MCP server that a request names can't be asked for its tools."""


class Runnable(msgspec.Struct, frozen=True):
    """A tool in a chat, and where it runs."""

    shown: ServedTool
    server: "McpServer"

    async def run(self, arguments: Mapping[str, object]) -> "ToolResult":
        """See `McpServer.call`."""
        return await self.server.call(self.shown.name, arguments)


class Toolset(msgspec.Struct, eq=False):
    """The tools of a chat that this server runs: what the model is shown, and what runs, by the
    function's name.
    """

    _taken: set[str]  # names of functions
    _can_approve: bool  # its user can be asked to allow a call
    tools: list[Tool] = []
    runnable: dict[str, Runnable] = {}
    listed: list[ListedServer] = []
    unapplied: list[Unapplied] = []

    def function(self, label: str, tool: str, field: str) -> str:
        """The name of the function that stands for a tool. Raises InvalidRequest that names the
        `field` where there is none.
        """
        for name, each in self.runnable.items():
            if (each.shown.label, each.shown.name) == (label, tool):
                return name
        raise InvalidRequest.at(field, f"No tool {tool!r:.64} of {label!r:.64}.")

    def add(self, wanted: ServedTools, server: "McpServer", listing: "Listing") -> None:
        """Those of one server that its client wants."""
        shown = []
        for name, why in listing.left_out.items():
            if wanted.allowed is None or name in wanted.allowed:
                self.unapplied.append(Unapplied(f"{wanted.field}.{name}", why))
        for tool in listing.tools:
            if not _is_wanted(wanted, tool):
                continue
            waits = wanted.approval.needs(tool.name) or server.config.needs_approval(tool.name)
            if waits and not self._can_approve:
                self.unapplied.append(Unapplied(f"{wanted.field}.{tool.name}", CANT_ASK))
                continue
            shown.append(tool)
            name = self._free_name(f"{wanted.label}__{tool.name}")
            parameters = tool.input_schema
            self.tools.append(Tool(name=name, description=tool.description, parameters=parameters))
            served = ServedTool(wanted.label, tool.name, waits)
            self.runnable[name] = Runnable(served, server)
        self.listed.append(ListedServer(label=wanted.label, tools=tuple(map(asdict, shown))))

    def _free_name(self, wanted: str) -> str:
        """The characters that functions' names have everywhere; names that collide are numbered."""
        plain = _UNSAFE.sub("_", _ascii(wanted))[:LONGEST_NAME]
        name, number = plain, 2
        while name in self._taken:
            end = f"_{number}"
            name, number = plain[: LONGEST_NAME - len(end)] + end, number + 1
        self._taken.add(name)
        return name


class McpServers:
    """One per server of ours."""

    def __init__(self, config: Config) -> None:
        self._configs: Mapping[str, McpConfig] = {}
        self._of_models: Mapping[str, tuple[str, ...]] = {}
        self._running: dict[str, McpServer] = {}
        self._tasks: TaskGroup | None = None
        self.most_rounds = 0
        self.apply(config)

    def apply(self, config: Config) -> None:
        """From the next request on."""
        configs = {server.name: server for server in config.mcp}
        for name, server in list(self._running.items()):
            if configs.get(name) != server.config:
                self._running.pop(name).close()
        self._configs = configs
        self._of_models = {model.name: model.mcp for model in config.models if model.mcp}
        self.most_rounds = config.server.max_tool_rounds

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Sessions are open within; at the end all are closed."""
        async with companions() as self._tasks:
            yield

    @property
    def is_empty(self) -> bool:
        """None is configured."""
        return not self._configs

    def names(self, access: Access) -> tuple[str, ...]:
        """The servers that a key may name."""
        usable = (config for config in self._configs.values() if not config.is_open)
        return tuple(config.name for config in usable if _may_use(config, access))

    def of_model(self, model: str, access: Access) -> tuple[ServedTools, ...]:
        """The servers that a model always has, as far as the key may use them."""
        return tuple(
            ServedTools(label=name, field=f"mcp.{name}")
            for name in self._of_models.get(model, ())
            if (config := self._configs.get(name)) is not None and _may_use(config, access)
        )

    async def opened(
        self,
        wanted: Sequence[ServedTools],
        always: Sequence[ServedTools],
        access: Access,
        tasks: TaskGroup,
        own: Sequence[Tool] = (),
        *,
        can_approve: bool,
    ) -> Toolset:
        """The tools of `wanted`, and those of a model that `always` has them. `tasks`: of the
        request, for servers that it names by itself; `own`: tools that its client runs. Raises
        InvalidRequest and ToolServerFailed.
        """
        if len(wanted) > MOST_SERVERS:
            message = f"Expected at most {MOST_SERVERS} MCP servers."
            raise InvalidRequest.at("tools", message)
        labels = [each.label for each in wanted]
        for place, each in enumerate(wanted):
            if each.label in labels[:place]:
                message = f"The MCP server {each.label!r:.64} is there twice."
                raise InvalidRequest.at(each.field, message)
        found = [(each, self._server(each, access, tasks)) for each in wanted]
        tools = Toolset({tool.name for tool in own}, can_approve)
        for each, server in found:
            if each.headers and server.config.name in self._running:
                tools.unapplied.append(Unapplied(f"{each.field}.headers", OWN_HEADERS))
            tools.add(each, server, await _listed(each, server))
        for each in always:
            if each.label not in labels:
                await self._added(each, access, tasks, tools)
        return tools

    async def _added(
        self, each: ServedTools, access: Access, tasks: TaskGroup, tools: Toolset
    ) -> None:
        """A chat that didn't ask for the server is answered without it where it fails."""
        try:
            server = self._server(each, access, tasks)
            tools.add(each, server, await _listed(each, server))
        except ToolServerFailed as error:
            log.warning("mcp server failed", server=each.label, reason=error.message)
            tools.unapplied.append(Unapplied(each.field, error.message))

    def _server(self, wanted: ServedTools, access: Access, tasks: TaskGroup) -> "McpServer":
        config = self._config(wanted, access)
        if config.is_open:
            headers = {**wanted.headers, **config.headers}
            return _new(replace(config, url=wanted.url, headers=headers), tasks)
        server = self._running.get(config.name)
        if server is None:
            assert self._tasks is not None, "it runs"
            server = self._running[config.name] = _new(config, self._tasks)
        return server

    def _config(self, wanted: ServedTools, access: Access) -> McpConfig:
        """Raises InvalidRequest: what the key may not use is as if it were not there."""
        usable = [config for config in self._configs.values() if _may_use(config, access)]
        if wanted.url:
            found = [config for config in usable if config.serves(wanted.url)]
        else:
            found = [each for each in usable if each.name == wanted.label and not each.is_open]
        if not found:
            what, field = wanted.url or wanted.label, wanted.named_at
            message = f"No MCP server {what!r:.120} is configured here for this key (mcp)."
            raise InvalidRequest.at(field, message)
        return min(found, key=lambda config: config.is_open)


def _may_use(config: McpConfig, access: Access) -> bool:
    return not config.keys or (access.label is not None and access.label in config.keys)


def _new(config: McpConfig, tasks: TaskGroup) -> "McpServer":
    """Raises NotSupported where the library isn't there."""
    try:
        from gateway.mcp.session import McpServer  # noqa: PLC0415 - takes half a second
    except ModuleNotFoundError as error:
        raise NotSupported(f"MCP servers need the library: {command('mcp')}") from error
    return McpServer(config, tasks)


async def _listed(wanted: ServedTools, server: "McpServer") -> "Listing":
    from gateway.mcp.session import ServerFailed  # noqa: PLC0415 - it is imported by now

    try:
        return await server.tools()
    except ServerFailed as error:
        message = f"The MCP server {wanted.label!r:.64} failed: {error}."
        raise ToolServerFailed.at(wanted.field, message) from error


def _ascii(name: str) -> str:
    """`name` without accents; other alphabets in what domain names have for them (RFC 3492)."""
    bare = "".join(filterfalse(combining, normalize("NFKD", name)))
    label, _, tool = bare.partition("__")
    return bare if bare.isascii() else f"{label}__{tool.encode('punycode').decode()}"


def _is_wanted(wanted: ServedTools, tool: "ListedTool") -> bool:
    reads_only = tool.annotations and tool.annotations.get("readOnlyHint")  # by its own word
    if tool.name in wanted.excluded or (wanted.only_reading and not reads_only):
        return False
    return wanted.allowed is None or tool.name in wanted.allowed
