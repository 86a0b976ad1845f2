"""Items of MCP servers' tools, and what those of a conversation say of approvals.

The model asks for an approval in one response, the user answers in the next: a call that is allowed
runs before the model goes on. Here it is only read which those are.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from gateway.dialects.fields import TOO_DEEP, nests_deep
from gateway.dialects.responses.tools import item_path
from gateway.terms.errors import InvalidRequest
from gateway.terms.request import ApprovedCall

Item: TypeAlias = dict[str, Any]
CallStatus: TypeAlias = Literal["in_progress", "calling", "completed", "incomplete", "failed"]

MOST_APPROVED = 64  # calls of one request
REFUSED = "The user did not allow this call."
WAITING = "(not run: the user has not allowed this call yet)"


class ErrorText(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """What the tool said."""

    text: str


class ExecutionError(msgspec.Struct, frozen=True, tag_field="type", tag="mcp_tool_execution_error"):
    """The error of a call, as the model reads it."""

    content: tuple[ErrorText, ...]


class OfServer(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """An item of an MCP server."""

    id: str
    server_label: str


class McpApprovalItem(OfServer, frozen=True, kw_only=True, tag="mcp_approval_request"):
    """A call that the user is asked to allow."""

    name: str
    arguments: str


class McpCallItem(OfServer, frozen=True, kw_only=True, tag="mcp_call"):
    """A call of an MCP server's tool, which was run here, and what came of it."""

    name: str
    arguments: str
    approval_request_id: str | None = None
    output: str | None = None
    error: ExecutionError | None = None
    status: CallStatus


class McpListItem(OfServer, frozen=True, kw_only=True, tag="mcp_list_tools"):
    """The tools of an MCP server that the model is shown."""

    tools: Sequence[Mapping[str, Any]]
    error: str | None = None


def listed_before(items: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """The labels of servers whose tools a conversation lists already."""
    return frozenset(str(item.get("server_label")) for item in _of(items, "mcp_list_tools"))


def _of(items: Sequence[Mapping[str, Any]], kind: str) -> list[Mapping[str, Any]]:
    return [item for item in items if item.get("type") == kind]


def settled(items: Sequence[Mapping[str, Any]]) -> list[Item]:
    """`items` with what became of each call that waits for its user: one that was refused, or that
    nobody has answered, is a call with that result. Those that ran have an item of their own.
    """
    responses = _of(items, "mcp_approval_response")
    answers = {str(item.get("approval_request_id")): item for item in responses}
    run = _run_already(items)
    return [dict(_settled(item, answers, run)) for item in items]


def _settled(
    item: Mapping[str, Any], answers: Mapping[str, Mapping[str, Any]], run: frozenset[str]
) -> Mapping[str, Any]:
    if item.get("type") != "mcp_approval_request":
        return item
    name = str(item.get("id"))
    answer = answers.get(name)
    if name in run or (answer is not None and answer.get("approve") is True):
        return item
    output = WAITING
    if answer is not None:
        output = " ".join(filter(None, (REFUSED, str(answer.get("reason") or ""))))
    return {**item, "type": "mcp_call", "output": output}


def approved_calls(items: Sequence[Mapping[str, Any]], first: int = 0) -> tuple[ApprovedCall, ...]:
    """The calls that are allowed and were not run. The numbers of `items` begin with `first`.
    Raises InvalidRequest.
    """
    if not _of(items, "mcp_approval_response"):
        return ()
    asked = {str(item.get("id")): item for item in _of(items, "mcp_approval_request")}
    run, found = _run_already(items), list[ApprovedCall]()
    for k, answer in enumerate(items, first):
        if answer.get("type") != "mcp_approval_response":
            continue
        name, field = answer.get("approval_request_id"), f"{item_path(k)}.approval_request_id"
        request = asked.get(name) if isinstance(name, str) else None
        if request is None:
            text = f"No approval {name!r:.80} was asked for in this conversation."
            raise InvalidRequest.at(field, text)
        if answer.get("approve") is True and name not in run:
            found.append(_approved(str(name), request, field))
    if len(found) > MOST_APPROVED:
        raise InvalidRequest.at("input", f"Expected at most {MOST_APPROVED} approvals.")
    return tuple({each.id: each for each in found}.values())


def _approved(name: str, request: Mapping[str, Any], field: str) -> ApprovedCall:
    arguments = str(request.get("arguments") or "{}")
    if nests_deep(arguments):
        raise InvalidRequest.at(field, f"Its arguments are {TOO_DEEP}")
    return ApprovedCall(
        id=name,
        label=str(request.get("server_label")),
        tool=str(request.get("name")),
        arguments=arguments,
        field=field,
    )


def _run_already(items: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    named = (item.get("approval_request_id") for item in _of(items, "mcp_call"))
    return frozenset(name for name in named if isinstance(name, str))
