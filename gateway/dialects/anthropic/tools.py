"""Reads the tools of a request: which of Anthropic's own kinds a client runs, and which of all are
in the prompt. Knows no template.

A tool that the client runs (`bash_…`, `text_editor_…`) has no schema on the wire, since Anthropic's
models were trained on it; here it becomes a function with its documented parameters. What
Anthropic's servers run is left out, and reported. A deferred tool is left out until the
conversation has referenced it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from gateway.dialects.anthropic.history import History
from gateway.dialects.fields import Fields
from gateway.dialects.parameters import read_choice_mode
from gateway.terms.request import NamedTool, Tool, Unapplied
from gateway.terms.request import ToolChoice as Choice


class ToolsetConfigWire(msgspec.Struct, frozen=True):
    """Whether a tool of an MCP server may be used; shown at once, in any case."""

    enabled: bool | None = None
    defer_loading: bool | None = None


class ToolWire(msgspec.Struct, frozen=True, kw_only=True):
    """A tool. Without a type, or of the type "custom", it has an `input_schema`."""

    name: str = ""
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool = False
    eager_input_streaming: bool | None = None  # always: an input is streamed as it is written
    input_examples: list[dict[str, Any]] = []
    allowed_callers: list[str] = []
    max_characters: int | None = None  # of a text editor: what its client shows of a file
    display_width_px: int | None = None
    display_height_px: int | None = None
    mcp_server_name: str = ""  # of a toolset, whose tools an MCP server has
    default_config: ToolsetConfigWire = ToolsetConfigWire()
    configs: dict[str, ToolsetConfigWire] = {}


class ToolChoiceWire(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a tool must be called."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool = False


# What is read of a tool that is not custom.
KEPT = tuple(
    name
    for name in ToolWire.__struct_fields__
    if name not in ("eager_input_streaming", "max_characters")
)


def read_tools(
    fields: Fields, wires: Sequence[ToolWire], history: History, choice: ToolChoiceWire | None
) -> tuple[tuple[Tool, ...], tuple[Unapplied, ...]]:
    """The tools that the model may call now, in the order of the prompt: those that were deferred
    last, so that they change its beginning as late as they can; and what is left out. Raises
    InvalidRequest.
    """
    read = [
        (wire, _tool(fields, f"tools[{k}]", wire))
        for k, wire in enumerate(wires)
        if kind_of(wire) != TOOLSET
    ]
    tools = {tool.name: (wire, tool) for wire, tool in read if isinstance(tool, Tool)}
    mentioned = dict(history.referenced)
    if choice is not None and choice.name:
        mentioned[choice.name] = None
    searched = any(kind_of(wire).startswith(SEARCH) for wire in wires)
    at_once = [tool for wire, tool in tools.values() if searched or not wire.defer_loading]
    later = [tools[name][1] for name in mentioned if name in tools]
    given = {tool.name: tool for tool in (*at_once, *later) if tool.name not in history.removed}
    return tuple(given.values()), tuple(item for _, item in read if isinstance(item, Unapplied))


def read_choice(
    fields: Fields,
    wires: Sequence[ToolWire],
    tools: Sequence[Tool],
    wire: ToolChoiceWire | None,
    *,
    has_served: bool = False,
) -> Choice:
    """Whether a tool must be called. `has_served`: MCP servers have some. Raises InvalidRequest."""
    has_tools = bool(tools) or has_served
    match wire:
        case None:
            return read_choice_mode(fields, "tool_choice", None, has_tools=has_tools)
        case ToolChoiceWire(type="auto" | "any" | "none" as kind):
            mode = "required" if kind == "any" else kind
            return read_choice_mode(fields, "tool_choice", mode, has_tools=has_tools)
        case ToolChoiceWire(type="tool", name=str(name)):
            if all(tool.name != name for tool in tools):
                raise fields.wrong("tool_choice.name", _not_found(name, wires))
            return NamedTool(name)
    raise fields.wrong("tool_choice", "Expected 'auto', 'any', 'none', or 'tool' with a name.")


def _not_found(name: str, wires: Sequence[ToolWire]) -> str:
    if any(wire.name == name for wire in wires):
        return f"The tool {name!r:.64} is in tools, but this server can't give it to a model."
    return f"Tool {name!r:.64} not found in tools."


def _tool(fields: Fields, path: str, wire: ToolWire) -> Tool | Unapplied:
    if wire.allowed_callers and "direct" not in wire.allowed_callers:
        return Unapplied(f"{path}.allowed_callers", "only code on Anthropic's servers may call it")
    if wire.type not in (None, "custom") and wire.input_schema is None:
        return _own(path, wire)
    if not wire.name:
        raise fields.wrong(f"{path}.name", "A tool needs a name.")
    if wire.input_schema is None:
        raise fields.wrong(f"{path}.input_schema", "This field is required.")
    return _function(wire, wire.description, wire.input_schema)


def _function(wire: ToolWire, description: str | None, parameters: Mapping[str, Any]) -> Tool:
    if wire.input_examples:
        examples = "\n".join(msgspec.json.encode(each).decode() for each in wire.input_examples)
        description = f"{description or ''}\nExamples of its input:\n{examples}".lstrip()
    return Tool(name=wire.name, description=description, parameters=parameters, strict=wire.strict)


_DATED = re.compile(r"(?P<kind>.+?)(_(?P<date>\d{8}))?")
SEARCH = "tool_search_tool"
TOOLSET = "mcp_toolset"  # see `served`
ELSEWHERE: Mapping[str, str] = {
    "advisor": "Anthropic's servers ask another model",
    "browser_toolset": "its tools are known to Anthropic's models alone",
    "code_execution": "Anthropic's servers run it",
    "computer_toolset": "its tools are known to Anthropic's models alone",
    "tool_search_tool_bm25": "all tools are given to the model at once",
    "tool_search_tool_regex": "all tools are given to the model at once",
    "web_fetch": "Anthropic's servers run it",
    "web_search": "Anthropic's servers run it",
}


def _parted(wire: ToolWire) -> tuple[str, str]:
    """The kind, and its version: "bash", "20250124"."""
    dated = _DATED.fullmatch(wire.type or "")
    return (dated["kind"], dated["date"] or "") if dated else ("", "")


def kind_of(wire: ToolWire) -> str:
    """Its type, without a version: "bash"."""
    return _parted(wire)[0]


def _own(path: str, wire: ToolWire) -> Tool | Unapplied:
    kind, version = _parted(wire)
    if (described := RUN_BY_CLIENTS.get(kind)) is None:
        reason = ELSEWHERE.get(kind, "it is not known here, and has no input_schema")
        return Unapplied(f"{path}.{wire.type}", reason)
    own = described(wire, version)
    named = wire if wire.name else msgspec.structs.replace(wire, name=own.name)
    return _function(named, wire.description or own.description, own.parameters or {})


def _object(required: Sequence[str], **properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def _text(about: str) -> Mapping[str, Any]:
    return {"type": "string", "description": about}


def _one_of(about: str, *values: str) -> Mapping[str, Any]:
    return {"type": "string", "enum": list(values), "description": about}


def _integer(about: str) -> Mapping[str, Any]:
    return {"type": "integer", "description": about}


def _integers(about: str, count: int) -> Mapping[str, Any]:
    items = {"type": "integer"}
    return {
        "type": "array",
        "items": items,
        "minItems": count,
        "maxItems": count,
        "description": about,
    }


def _bash(_wire: ToolWire, _version: str) -> Tool:
    parameters = _object(
        (),
        command=_text("The command. Required, unless the tool is restarted."),
        restart={"type": "boolean", "description": "True: the shell is started anew."},
    )
    about = (
        "Runs a command in a bash shell that stays open between the calls, and returns its output."
    )
    return Tool(name="bash", description=about, parameters=parameters)


_LINES = "The first and the last line to show, from 1; -1 as the last shows all to the end."
WITH_UNDO = ("20241022", "20250124")


def _editor(_wire: ToolWire, version: str) -> Tool:
    undo = ("undo_edit",) if version in WITH_UNDO else ()
    commands = ("view", "create", "str_replace", "insert", *undo)
    parameters = _object(
        ("command", "path"),
        command=_one_of("What to do.", *commands),
        path=_text("The absolute path of the file or directory."),
        file_text=_text("For create: the content of the file."),
        old_str=_text("For str_replace: the text to replace, which occurs exactly once."),
        new_str=_text("For str_replace: the text in its place."),
        insert_line=_integer("For insert: the line after which the text is inserted; 0: first."),
        insert_text=_text("For insert: the text."),
        view_range=_integers(f"For view: {_LINES}", 2),
    )
    if undo:
        parameters["properties"]["new_str"] = _text("For str_replace and insert: the new text.")
        del parameters["properties"]["insert_text"]
    about = "Shows, creates and edits text files, and lists directories."
    name = "str_replace_editor" if undo else "str_replace_based_edit_tool"
    return Tool(name=name, description=about, parameters=parameters)


def _memory(_wire: ToolWire, _version: str) -> Tool:
    commands = ("view", "create", "str_replace", "insert", "delete", "rename")
    parameters = _object(
        ("command",),
        command=_one_of("What to do.", *commands),
        path=_text("The path below /memories; for all commands but rename."),
        view_range=_integers(f"For view: {_LINES}", 2),
        file_text=_text("For create: the content of the file."),
        old_str=_text("For str_replace: the text to replace."),
        new_str=_text("For str_replace: the text in its place."),
        insert_line=_integer("For insert: the line after which the text is inserted; 0: first."),
        insert_text=_text("For insert: the text."),
        old_path=_text("For rename: the present path."),
        new_path=_text("For rename: the new path."),
    )
    about = (
        "Keeps notes in files below /memories, which outlive this conversation. View the directory"
        " before a task, and write down what will be of use later."
    )
    return Tool(name="memory", description=about, parameters=parameters)


_POINTER = ("key", "type", "mouse_move", "left_click", "left_click_drag", "right_click")
_SHOWN = ("middle_click", "double_click", "screenshot", "cursor_position")
_SINCE_2025 = (
    "left_mouse_down",
    "left_mouse_up",
    "scroll",
    "hold_key",
    "wait",
    "triple_click",
)


def _computer(wire: ToolWire, version: str) -> Tool:
    later = () if version == "20241022" else _SINCE_2025
    zoom = () if version in WITH_UNDO else ("zoom",)
    parameters = _object(
        ("action",),
        action=_one_of("What to do.", *_POINTER, *_SHOWN, *later, *zoom),
        coordinate=_integers("Where: pixels from the left and from the top.", 2),
        start_coordinate=_integers("For left_click_drag: where it begins.", 2),
        text=_text("For type: the text. For key and hold_key: the key, such as ctrl+s."),
    )
    if later:
        parameters["properties"] |= {
            "scroll_direction": _one_of("For scroll.", "up", "down", "left", "right"),
            "scroll_amount": _integer("For scroll: how far."),
            "duration": {"type": "number", "description": "For hold_key and wait: seconds."},
        }
    if zoom:
        parameters["properties"]["region"] = _integers("For zoom: left, top, right, bottom.", 4)
    size = f"{wire.display_width_px} x {wire.display_height_px} pixels"
    known = wire.display_width_px and wire.display_height_px
    about = f"Operates a computer's screen{f' of {size}' if known else ''}, mouse and keyboard."
    return Tool(name="computer", description=about, parameters=parameters)


RUN_BY_CLIENTS: Mapping[str, Callable[[ToolWire, str], Tool]] = {
    "bash": _bash,
    "computer": _computer,
    "memory": _memory,
    "text_editor": _editor,
}
