"""The items of an answer while they grow, and their events. Knows no response that they stand in.

At most one item is open. The kinds of items differ by what stands in a table: the names of their
events, and whether they have parts.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Literal, Self, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from backends.contract.protocol import TokenLogprob
from gateway.dialects.custom import InputText
from gateway.dialects.dialect import named_frame
from gateway.dialects.logprobs import LogprobWire, logprob_wire
from gateway.dialects.responses.items import packed
from gateway.dialects.responses.mcp_items import McpApprovalItem, McpCallItem, McpListItem
from gateway.dialects.responses.tools import Kind as ToolKind
from gateway.dialects.responses.tools import (
    Offered,
    arguments_of,
    local_action,
    patch_operation,
    shell_action,
)
from gateway.terms.events import ToolOpened

Progress: TypeAlias = Literal["in_progress", "completed", "incomplete"]


class OutputText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    """The text of a message."""

    text: str
    annotations: tuple[()] = ()
    logprobs: Sequence[LogprobWire] = ()


class ReasoningText(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    """The text of the reasoning."""

    text: str


class SummaryText(msgspec.Struct, frozen=True, tag_field="type", tag="summary_text"):
    """The text of the reasoning, for requests with a summary."""

    text: str


class MessageItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """A message."""

    id: str
    status: Progress
    role: Literal["assistant"] = "assistant"
    content: tuple[OutputText, ...] = ()


class ReasoningItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """A reasoning item."""

    id: str
    status: Progress
    summary: tuple[SummaryText, ...] = ()
    content: tuple[ReasoningText, ...] | UnsetType = UNSET
    encrypted_content: str | UnsetType = UNSET  # see `encrypted_content`


class ClientCall(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """A call that the client is to run."""

    id: str
    call_id: str
    status: Progress


class NamedCall(ClientCall, frozen=True, kw_only=True):
    """A call of a tool that the client has described."""

    name: str
    namespace: str | UnsetType = UNSET


class CallItem(NamedCall, frozen=True, kw_only=True, tag="function_call"):
    """A call; `arguments` is the text of a JSON object."""

    arguments: str


class CustomItem(NamedCall, frozen=True, kw_only=True, tag="custom_tool_call"):
    """A call of a custom tool; `input` is a text."""

    input: str


class LocalEnvironment(msgspec.Struct, frozen=True, tag_field="type", tag="local"):
    """The client's own machine."""


class ShellItem(ClientCall, frozen=True, kw_only=True, tag="shell_call"):
    """Commands that the client is to run."""

    action: Mapping[str, Any]
    environment: LocalEnvironment = LocalEnvironment()


class LocalShellItem(ClientCall, frozen=True, kw_only=True, tag="local_shell_call"):
    """One command that the client is to run."""

    action: Mapping[str, Any]


class PatchItem(ClientCall, frozen=True, kw_only=True, tag="apply_patch_call"):
    """A change of one file that the client is to make."""

    operation: Mapping[str, Any]


class SearchItem(ClientCall, frozen=True, kw_only=True, tag="tool_search_call"):
    """A search for tools that the client is to do."""

    arguments: Mapping[str, Any]
    execution: Literal["client"] = "client"


class CompactionItem(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="compaction"):
    """A summary of what came before; `encrypted_content` is packed, see `items`."""

    id: str
    encrypted_content: str

    @classmethod
    def of(cls, summary: str, new_id: Callable[[], str]) -> Self:
        """The item of `summary`."""
        return cls(id=f"cmp_{new_id()}", encrypted_content=packed(summary))


OutputItem: TypeAlias = (
    MessageItem
    | CompactionItem
    | ReasoningItem
    | CallItem
    | CustomItem
    | ShellItem
    | LocalShellItem
    | PatchItem
    | SearchItem
    | McpCallItem
    | McpApprovalItem
    | McpListItem
)


class ItemEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An item was added or completed."""

    type: str
    output_index: int
    item: OutputItem
    sequence_number: int


class PlacedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of an item or of a part of it. One of the last two indexes applies, or none."""

    type: str
    item_id: str
    output_index: int
    content_index: int | UnsetType = UNSET
    summary_index: int | UnsetType = UNSET
    sequence_number: int


class PartEvent(PlacedEvent, frozen=True, kw_only=True):
    """A part of an item was added or completed."""

    part: OutputText | ReasoningText | SummaryText


class GrownEvent(PlacedEvent, frozen=True, kw_only=True):
    """A further part of a text, of reasoning or of arguments."""

    logprobs: Sequence[LogprobWire] | UnsetType = UNSET
    delta: str


class WholeEvent(PlacedEvent, frozen=True, kw_only=True):
    """The whole content: `text`, or `name` and `arguments`, or the `input` of a custom tool."""

    logprobs: Sequence[LogprobWire] | UnsetType = UNSET
    text: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    input: str | UnsetType = UNSET


class CommandEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A command of a shell call."""

    type: str
    output_index: int
    command_index: int
    command: str | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    sequence_number: int


Kind: TypeAlias = ToolKind | Literal["message", "reasoning", "raw", "summary", "mcp", "approval"]


class Form(msgspec.Struct, frozen=True):
    """The wire form of a kind of item: the prefix of its id, the stem of the names of its events
    ("": it is sent whole), the name of its parts' events ("": it has none), and of the index of its
    part.
    """

    prefix: str
    stem: str
    part: str = ""
    index: Literal["content_index", "summary_index", ""] = ""


FORMS: Mapping[Kind, Form] = {
    "message": Form("msg_", "output_text", "content_part", "content_index"),
    "reasoning": Form("rs_", "reasoning_text", "content_part", "content_index"),
    "raw": Form("rs_", "reasoning", "content_part", "content_index"),  # Open Responses' names
    "summary": Form("rs_", "reasoning_summary_text", "reasoning_summary_part", "summary_index"),
    "function": Form("fc_", "function_call_arguments"),
    "custom": Form("ctc_", "custom_tool_call_input"),
    "mcp": Form("mcp_", "mcp_call_arguments"),
    "approval": Form("mcpr_", ""),
}
ACTION = Form("act_", "")  # of all other tools: what a client does


def event(message: Any) -> bytes:
    """An event under the name of its type."""
    return named_frame(message.type.encode(), message)


class PlacedItem(msgspec.Struct, eq=False):
    """An item at its `place` among those of the answer, and its events. `id` is unique among all
    responses; `numbers`: of the events of one stream.
    """

    id: str
    place: int
    numbers: "count[int]"

    def event(self, kind: type[msgspec.Struct], called: str, /, **fields: Any) -> bytes:
        """An event of this item or of a part of it."""
        number = next(self.numbers)
        placed = {"item_id": self.id, "output_index": self.place, "sequence_number": number}
        return event(kind(type=f"response.{called}", **placed, **fields))

    def item_event(self, what: Literal["added", "done"], item: OutputItem) -> bytes:
        """The item was added, or is done."""
        return event(
            ItemEvent(
                type=f"response.output_item.{what}",
                output_index=self.place,
                item=item,
                sequence_number=next(self.numbers),
            )
        )


class GrowingItem(PlacedItem, eq=False):
    """One item that the model writes. `offered`: the tool of a `call`; `packs`: see
    `encrypted_content`. Its `id` is given without the prefix of its kind.
    """

    kind: Kind
    call: ToolOpened | None = None
    offered: Offered | None = None
    packs: bool = False
    _input: InputText | None = None
    _texts: list[str] = []
    _logprobs: list[LogprobWire] = []

    def __post_init__(self) -> None:
        self.id = self._form.prefix + self.id
        if self.kind == "custom":
            self._input = InputText()

    @property
    def _form(self) -> Form:
        return FORMS.get(self.kind, ACTION)

    @property
    def _index(self) -> dict[str, Any]:
        return {self._form.index: 0} if self._form.index else {}

    def keep(self, text: str, logprobs: tuple[TokenLogprob, ...] = ()) -> list[LogprobWire]:
        """Some more of it, without an event."""
        self._texts.append(text)
        wires = [logprob_wire(one) for one in logprobs]
        self._logprobs += wires
        return wires

    def opening(self) -> Iterator[bytes]:
        """It begins, empty."""
        yield self.item_event("added", self.item("in_progress"))
        if self._form.part:
            yield self._part_event("added", "")

    def grow(self, text: str, logprobs: tuple[TokenLogprob, ...] = ()) -> bytes:
        """Some more of it: the event of nearly every token."""
        wires = self.keep(text, logprobs)
        shown = wires if self.kind == "message" else UNSET
        name = f"{self._form.stem}.delta"
        return self.event(GrownEvent, name, logprobs=shown, delta=text, **self._index)

    def fragment(self, arguments: str) -> bytes:
        """Some more of a call's arguments."""
        if not self._form.stem:
            self.keep(arguments)
            return b""
        text = arguments if self._input is None else self._input.grow(arguments)
        return self.grow(text) if text else b""

    def closing(self, status: Progress) -> Iterator[bytes]:
        """It is over, and this is all of it."""
        if self._input is not None and (left := self._input.finish()):
            yield self.grow(left)
        text = "".join(self._texts)
        if self._form.stem:
            yield self._whole(text)
        else:
            yield from self._commands()
        if self._form.part:
            yield self._part_event("done", text)
        yield self.item_event("done", self.item(status))

    def _whole(self, text: str) -> bytes:
        return self.event(
            WholeEvent,
            f"{self._form.stem}.done",
            logprobs=self._logprobs if self.kind == "message" else UNSET,
            text=text if self.call is None else UNSET,
            name=self.offered.name if self.offered and self.kind == "function" else UNSET,
            arguments=text or "{}" if self.kind in ("function", "mcp") else UNSET,
            input=text if self.kind == "custom" else UNSET,
            **self._index,
        )

    def _part_event(self, what: str, text: str) -> bytes:
        name, part = f"{self._form.part}.{what}", self._part(text)
        return self.event(PartEvent, name, part=part, **self._index)

    def _part(self, text: str) -> OutputText | ReasoningText | SummaryText:
        if self.kind == "message":
            return self._output_text(text)
        return SummaryText(text) if self.kind == "summary" else ReasoningText(text)

    def _output_text(self, text: str) -> OutputText:
        return OutputText(text=text, logprobs=tuple(self._logprobs) if text else ())

    def item(self, status: Progress) -> OutputItem:
        """As it is now; without its text while it is in progress."""
        text = "" if status == "in_progress" else "".join(self._texts)
        if self.call is not None and self.offered is not None:
            return self._called(self.call, self.offered, text, status)
        if self.kind == "message":
            content = () if status == "in_progress" else (self._output_text(text),)
            return MessageItem(id=self.id, status=status, content=content)
        return self._reasoning(text, status)

    def _called(self, call: ToolOpened, tool: Offered, text: str, status: Progress) -> OutputItem:
        named: dict[str, Any] = {"name": tool.name, "namespace": tool.namespace or UNSET}
        known: dict[str, Any] = {"id": self.id, "call_id": call.id, "status": status}
        match tool.kind:
            case "custom":
                return CustomItem(input=text, **named, **known)
            case "shell":
                return ShellItem(action=shell_action(text), **known)
            case "local_shell":
                return LocalShellItem(action=local_action(text), **known)
            case "apply_patch":
                return PatchItem(operation=patch_operation(text), **known)
            case "tool_search":
                return SearchItem(arguments=arguments_of(text), **known)
        arguments = text if status == "in_progress" else text or "{}"
        return CallItem(arguments=arguments, **named, **known)

    def _commands(self) -> Iterator[bytes]:
        """Each command of a shell call."""
        item = self.item("completed")
        if not isinstance(item, ShellItem):
            return
        for k, command in enumerate(item.action["commands"]):
            for what, fields in (
                ("added", {"command": ""}),
                ("delta", {"delta": command}),
                ("done", {"command": command}),
            ):
                yield event(
                    CommandEvent(
                        type=f"response.shell_call_command.{what}",
                        output_index=self.place,
                        command_index=k,
                        sequence_number=next(self.numbers),
                        **fields,
                    )
                )

    def _reasoning(self, text: str, status: Progress) -> ReasoningItem:
        is_over, sums = status != "in_progress", self.kind == "summary"
        return ReasoningItem(
            id=self.id,
            status=status,
            summary=(SummaryText(text),) if is_over and sums else (),
            content=UNSET if sums else (ReasoningText(text),) if is_over else (),
            encrypted_content=packed(text) if self.packs and is_over else UNSET,
        )
