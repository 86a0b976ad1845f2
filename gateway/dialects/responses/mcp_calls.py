"""Calls of MCP servers' tools in an answer, while they are written and run, and their events.

Such a call is written like others, then waits for its tool while further items begin; one whose
user has to allow it is asked for, whole at once. Knows no response that they stand in.
"""

from collections.abc import Iterator

import msgspec

from gateway.dialects.responses.answer_items import (
    GrownEvent,
    Numbers,
    OutputItem,
    PlacedItem,
    WholeEvent,
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


class StepEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a call of an MCP server's tool, or of the list of its tools."""

    type: str
    item_id: str
    output_index: int
    sequence_number: int


class McpCall(PlacedItem):
    """One call. `approved`: the id of the request by which its user allowed it."""

    def __init__(
        self, id: str, place: int, numbers: Numbers, tool: ServedTool, approved: str | None = None
    ) -> None:
        self._asks = tool.waits and approved is None
        super().__init__(f"{'mcpr_' if self._asks else 'mcp_'}{id}", place, numbers)
        self._tool = tool
        self._approved = approved
        self._texts: list[str] = []

    @property
    def is_run(self) -> bool:
        """It waits for its tool, not for its user."""
        return not self._asks

    def opening(self) -> Iterator[bytes]:
        """It begins, without arguments."""
        if self.is_run:
            yield self.item_event("added", self._item("in_progress"))
            yield self.event(StepEvent, "mcp_call.in_progress")

    def fragment(self, arguments: str) -> bytes:
        """Some more of its arguments."""
        self._texts.append(arguments)
        if self._asks:
            return b""
        return self.event(GrownEvent, "mcp_call_arguments.delta", delta=arguments)

    def written(self) -> Iterator[bytes]:
        """Its arguments are whole: it runs, or is asked for."""
        if self._asks:
            yield self.item_event("added", self.item)
            yield self.item_event("done", self.item)
        else:
            yield self.event(WholeEvent, "mcp_call_arguments.done", arguments=self._arguments)

    @property
    def item(self) -> OutputItem:
        """As it stands in the answer until its tool has answered."""
        return self._item("incomplete")

    def answered(self, answer: ToolAnswered) -> tuple[OutputItem, bytes]:
        """It is over: the item, and the events that say so."""
        status: CallStatus = "failed" if answer.is_error else "completed"
        item = self._item(status, answer)
        return item, self.event(StepEvent, f"mcp_call.{status}") + self.item_event("done", item)

    def cut(self) -> tuple[OutputItem, bytes]:
        """The answer ended before the tool had answered."""
        return self.item, self.item_event("done", self.item)

    @property
    def _arguments(self) -> str:
        return "".join(self._texts) or "{}"

    def _item(self, status: CallStatus, answer: ToolAnswered | None = None) -> OutputItem:
        if self._asks:
            return McpApprovalItem(
                id=self.id,
                server_label=self._tool.label,
                name=self._tool.name,
                arguments=self._arguments,
            )
        failed = answer is not None and answer.is_error
        text = answer.text if answer is not None else None
        return McpCallItem(
            id=self.id,
            server_label=self._tool.label,
            name=self._tool.name,
            arguments="" if status == "in_progress" else self._arguments,
            approval_request_id=self._approved,
            output=None if failed else text,
            error=ExecutionError((ErrorText(text),)) if failed and text is not None else None,
            status=status,
        )


def list_item(id: str, server: ListedServer) -> McpListItem:
    """The item of a list. `id` is unique among all responses."""
    return McpListItem(id=f"mcpl_{id}", server_label=server.label, tools=server.tools)


def list_events(item: McpListItem, place: int, numbers: Numbers) -> Iterator[bytes]:
    """A server was asked for its tools: its item, from beginning to end."""
    placed = PlacedItem(item.id, place, numbers)
    yield placed.item_event("added", msgspec.structs.replace(item, tools=()))
    yield placed.event(StepEvent, "mcp_list_tools.in_progress")
    yield placed.event(StepEvent, "mcp_list_tools.completed")
    yield placed.item_event("done", item)
