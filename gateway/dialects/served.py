"""Tools of MCP servers as OpenAI's clients ask for them, in `tools` of responses and of chats.

A server is named by its label, which is its name in the configuration, or by its URL. Whether it is
there, and whose it is, is known elsewhere.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from config.values import is_header
from gateway.dialects.fields import Fields
from gateway.terms.request import Approval, ServedTools

LONGEST_LABEL = 64
SECRETS = ("authorization", "headers")  # of a tool: they are given back to nobody


class ToolFilterWire(msgspec.Struct, frozen=True):
    """Tools, by their names, or by what they do."""

    tool_names: list[str] | None = None
    read_only: bool | None = None


class ApprovalWire(msgspec.Struct, frozen=True):
    """The tools that always need their user's approval, and those that never do."""

    always: ToolFilterWire | None = None
    never: ToolFilterWire | None = None


AllowedTools: TypeAlias = list[str] | ToolFilterWire


class McpToolWire(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a tool of type `mcp`."""

    server_label: str = ""
    server_url: str | None = None
    server_description: str | None = None
    connector_id: str | None = None
    authorization: str | None = None
    headers: dict[str, str] | None = None
    allowed_tools: AllowedTools | None = None
    require_approval: Literal["always", "never"] | ApprovalWire | None = None


def read_served(fields: Fields, path: str, wire: McpToolWire, *, asks: bool) -> ServedTools:
    """What a tool of type `mcp` asks for. `asks`: its calls need approvals unless it says
    otherwise. Raises InvalidRequest.
    """
    if wire.connector_id is not None:
        message = "Connectors are OpenAI's; name a server by its server_url or server_label."
        raise fields.wrong(f"{path}.connector_id", message)
    if not wire.server_label or len(wire.server_label) > LONGEST_LABEL:
        message = f"Expected a label of 1 to {LONGEST_LABEL} characters."
        raise fields.wrong(f"{path}.server_label", message)
    allowed, only_reading = _allowed(wire.allowed_tools)
    return ServedTools(
        label=wire.server_label,
        url=wire.server_url or "",
        headers=_headers(fields, path, wire),
        allowed=allowed,
        only_reading=only_reading,
        approval=_approval(wire.require_approval, asks=asks),
        field=path,
        named_at=f"{path}.server_url" if wire.server_url else f"{path}.server_label",
    )


def _headers(fields: Fields, path: str, wire: McpToolWire) -> Mapping[str, str]:
    found = dict(wire.headers or {})
    if wire.authorization:
        found["Authorization"] = f"Bearer {wire.authorization}"
    for name, value in found.items():
        if not is_header(name, value):
            place = "authorization" if name == "Authorization" and wire.authorization else "headers"
            raise fields.wrong(f"{path}.{place}", "Not a header.")
    return found


def _allowed(wire: AllowedTools | None) -> tuple[frozenset[str] | None, bool]:
    match wire:
        case None:
            return None, False
        case ToolFilterWire(names, read_only):
            return (None if names is None else frozenset(names)), bool(read_only)
    return frozenset(wire), False


def _approval(wire: str | ApprovalWire | None, *, asks: bool) -> Approval:
    match wire:
        case None:
            return Approval(needed=asks)
        case str(word):
            return Approval(needed=word == "always")
        case ApprovalWire(never=None, always=ToolFilterWire(names)):
            return Approval(needed=False, other=frozenset(names or ()))
    never = wire.never.tool_names if wire.never is not None else None
    return Approval(needed=True, other=frozenset(never or ()))


def without_secrets(tools: Any) -> Any:
    """`tools` as an answer repeats them."""
    if not isinstance(tools, list):
        return tools
    return [
        {name: value for name, value in tool.items() if name not in SECRETS}
        if isinstance(tool, dict) and tool.get("type") == "mcp"
        else tool
        for tool in tools
    ]
