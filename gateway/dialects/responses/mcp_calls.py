"""Calls of MCP servers' tools in an answer, while they are written and run, and their events.

Such a call is written like others, then waits for its tool while further items begin; one whose
user has to allow it is asked for, whole at once. Knows no response that they stand in.
"""

from collections.abc import Iterator
from itertools import count

import msgspec

from gateway.dialects.responses.answer_items import (
    GrowingItem,
    OutputItem,
    PlacedEvent,
    PlacedItem,
    Progress,
)
from gateway.dialects.responses.mcp_items import (
    CallStatus,
    ErrorText,
    ExecutionError,
    McpApprovalItem,
    McpCallItem,
    McpListItem,
)
from gateway.terms.events import ListedServer, ServedTool, ToolAnswered


class McpCall(GrowingItem, eq=False, kw_only=True):
    """One call of `tool`. `approved`: the id of the request by which its user allowed it."""

    tool: ServedTool
    approved: str | None = None

    @property
    def is_run(self) -> bool:
        """It waits for its tool, not for its user."""
        return self.kind == "mcp"

    def opening(self) -> Iterator[bytes]:
        """It begins, without arguments."""
        if self.is_run:
            yield from super().opening()
            yield self.event(PlacedEvent, "mcp_call.in_progress")

    def closing(self, status: Progress) -> Iterator[bytes]:
        """Its arguments are whole: it runs, or is asked for."""
        if self.is_run:
            yield self._whole("".join(self._texts))
        else:
            yield self.item_event("added", self.item(status))
            yield self.item_event("done", self.item(status))

    def item(self, status: Progress) -> OutputItem:
        """As it stands in the answer until its tool has answered."""
        return self._item("in_progress" if status == "in_progress" else "incomplete")

    def answered(self, answer: ToolAnswered) -> tuple[OutputItem, bytes]:
        """It is over: the item, and the events that say so."""
        status: CallStatus = "failed" if answer.is_error else "completed"
        item = self._item(status, answer)
        return item, self.event(PlacedEvent, f"mcp_call.{status}") + self.item_event("done", item)

    def cut(self) -> bytes:
        """The answer ended before the tool had answered."""
        return self.item_event("done", self.item("incomplete"))

    def _item(self, status: CallStatus, answer: ToolAnswered | None = None) -> OutputItem:
        label, name, arguments = self.tool.label, self.tool.name, "".join(self._texts) or "{}"
        if not self.is_run:
            return McpApprovalItem(id=self.id, server_label=label, name=name, arguments=arguments)
        failed = answer is not None and answer.is_error
        text = answer.text if answer is not None else None
        return McpCallItem(
            id=self.id,
            server_label=label,
            name=name,
            arguments="" if status == "in_progress" else arguments,
            approval_request_id=self.approved,
            output=None if failed else text,
            error=ExecutionError((ErrorText(text),)) if failed and text is not None else None,
            status=status,
        )


def list_item(id: str, server: ListedServer) -> McpListItem:
    """The item of a list. `id` is unique among all responses."""
    return McpListItem(id=f"mcpl_{id}", server_label=server.label, tools=server.tools)


def list_events(item: McpListItem, place: int, numbers: "count[int]") -> Iterator[bytes]:
    """A server was asked for its tools: its item, from beginning to end."""
    placed = PlacedItem(item.id, place, numbers)
    yield placed.item_event("added", msgspec.structs.replace(item, tools=()))
    yield placed.event(PlacedEvent, "mcp_list_tools.in_progress")
    yield placed.event(PlacedEvent, "mcp_list_tools.completed")
    yield placed.item_event("done", item)
