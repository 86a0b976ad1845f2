"""Reads the MCP servers of a request: `mcp_servers`, and the `mcp_toolset` in `tools` that says
which of a server's tools are wanted. Knows no server.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from gateway.dialects.anthropic.tools import TOOLSET, ToolWire, kind_of
from gateway.dialects.fields import Fields
from gateway.terms.request import ServedTools

LONGEST_NAME = 64


class ToolConfigurationWire(msgspec.Struct, frozen=True):
    """Which tools may be used: the form of before toolsets."""

    enabled: bool | None = None
    allowed_tools: list[str] | None = None


class McpServerWire(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server, by its URL; here its name alone will do."""

    name: str
    type: str = "url"
    url: str | None = None
    authorization_token: str | None = None
    tool_configuration: ToolConfigurationWire | None = None


def read_servers(
    fields: Fields, servers: Sequence[McpServerWire], tools: Sequence[ToolWire]
) -> tuple[ServedTools, ...]:
    """What is wanted of which server. A toolset may name one that the configuration has, without
    any `mcp_servers`. Raises InvalidRequest.
    """
    toolsets = {
        wire.mcp_server_name: (f"tools[{k}]", wire)
        for k, wire in enumerate(tools)
        if kind_of(wire) == TOOLSET
    }
    found = [
        _server(fields, f"mcp_servers[{k}]", wire, toolsets.pop(wire.name, None))
        for k, wire in enumerate(servers)
        if _is_enabled(wire)
    ]
    return (*found, *_named_alone(fields, toolsets))


def _is_enabled(wire: McpServerWire) -> bool:
    return wire.tool_configuration is None or wire.tool_configuration.enabled is not False


def _server(
    fields: Fields, path: str, wire: McpServerWire, toolset: tuple[str, ToolWire] | None
) -> ServedTools:
    if not wire.name or len(wire.name) > LONGEST_NAME:
        message = f"Expected a name of 1 to {LONGEST_NAME} characters."
        raise fields.wrong(f"{path}.name", message)
    token = wire.authorization_token
    if token is not None and not (token.isascii() and token.isprintable()):
        raise fields.wrong(f"{path}.authorization_token", "Expected one line of ASCII.")
    allowed = wire.tool_configuration.allowed_tools if wire.tool_configuration else None
    wanted = ServedTools(
        label=wire.name,
        url=wire.url or "",
        headers={"Authorization": f"Bearer {token}"} if token else {},
        allowed=None if allowed is None else frozenset(allowed),
        field=path,
        named_at=f"{path}.url" if wire.url else f"{path}.name",
    )
    return wanted if toolset is None else _limited(wanted, toolset[1])


def _named_alone(
    fields: Fields, toolsets: Mapping[str, tuple[str, ToolWire]]
) -> Iterator[ServedTools]:
    for name, (path, wire) in toolsets.items():
        if not name or len(name) > LONGEST_NAME:
            raise fields.wrong(f"{path}.mcp_server_name", "This field is required.")
        named_at = f"{path}.mcp_server_name"
        yield _limited(ServedTools(label=name, field=path, named_at=named_at), wire)


def _limited(wanted: ServedTools, toolset: ToolWire) -> ServedTools:
    """By the toolset: tools are on or off by default, and each may be set."""
    default = toolset.default_config.enabled is not False
    others = frozenset(
        name
        for name, config in toolset.configs.items()
        if config.enabled is not None and config.enabled is not default
    )
    if default:
        return msgspec.structs.replace(wanted, excluded=others)
    return msgspec.structs.replace(wanted, allowed=others)
