"""The tools of a response: what the model is shown of each type, and what its calls are to the
client.

To a chat template every tool is a function. So each type that a client runs (custom, shell, local
shell, apply_patch, a search for tools, those in namespaces) has a function that stands for it, and
`Offered` says what a call of that function comes back as. Tools that only OpenAI's servers run are
left out, and said.

A tool whose loading is deferred is shown once an item refers to it: the output of a search that the
client ran, a list of further tools, or a call of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from config.values import alike
from gateway.dialects.custom import CustomWire, FormatWire, custom_tool
from gateway.dialects.fields import Fields
from gateway.dialects.parameters import StrictFunctionWire, read_choice_mode
from gateway.dialects.served import McpToolWire, read_served
from gateway.terms.request import (
    ChatRequest,
    NamedTool,
    ServedChoice,
    ServedTools,
    Tool,
    ToolChoice,
    Unapplied,
)

Kind: TypeAlias = Literal[
    "function", "custom", "shell", "local_shell", "apply_patch", "tool_search"
]
MOST_TOOLS = 1_024  # those in namespaces counted, as `fields.COUNTS` has it for a plain list
LONGEST_NAME = 128


class InnerToolWire(McpToolWire, frozen=True, kw_only=True):
    """A tool of any type; `type` determines which fields apply."""

    type: str = "function"
    name: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    function: StrictFunctionWire | None = None  # as chat completions nest it
    format: FormatWire | None = None  # of a custom tool
    defer_loading: bool | None = None
    execution: str = "server"  # of a search for tools
    environment: dict[str, Any] | None = None  # of a shell


class ToolWire(InnerToolWire, frozen=True, kw_only=True):
    """A tool, or a namespace with several."""

    tools: tuple[InnerToolWire, ...] = ()


class NamedToolWire(msgspec.Struct, frozen=True):
    """One of the allowed tools."""

    name: str = ""
    type: str = "function"
    namespace: str = ""


class ToolChoiceWire(msgspec.Struct, frozen=True):
    """The forms of `tool_choice` that are objects."""

    type: str
    name: str = ""
    namespace: str = ""
    mode: str = "auto"
    tools: list[NamedToolWire] = []
    server_label: str = ""


def item_path(number: int, root: str = "input") -> str:
    """Where a request has an item; those below 0 came before it, and are only said to be items."""
    return f"{root}[{number}]" if number >= 0 else f"{root}[]"


class Offered(msgspec.Struct, frozen=True):
    """How a client knows the tool that a function stands for."""

    kind: Kind
    name: str
    namespace: str = ""


class Tools(msgspec.Struct, frozen=True):
    """What the functions that a model is shown stand for, by their names, and the types of tools
    that it is not shown.
    """

    offered: Mapping[str, Offered] = {}
    left_out: tuple[str, ...] = ()

    @property
    def built_in(self) -> frozenset[str]:
        """The functions that stand for tools which a client has built in, as a shell."""
        own = ("function", "custom")
        return frozenset(name for name, each in self.offered.items() if each.kind not in own)


NOT_OURS = "a tool of this type runs on OpenAI's servers; the model is not shown it"
SHOWN_AT_ONCE = "nothing is searched for here: the model is shown deferred tools from the beginning"
IN_CONTAINER = "there are no containers here: a shell's environment is local"

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}


def _object(required: Sequence[str], properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


# The functions that stand for OpenAI's tools which clients run.
_STANDING: Mapping[str, Tool] = {
    "shell": Tool(
        name="shell",
        description="Runs shell commands on the user's machine, and returns their output.",
        parameters=_object(
            ["commands"],
            {
                "commands": {"type": "array", "items": _TEXT, "minItems": 1},
                "timeout_ms": _COUNT,
                "max_output_length": _COUNT,
            },
        ),
    ),
    "local_shell": Tool(
        name="local_shell",
        description=(
            "Runs one command on the user's machine, and returns its output. The command is a list "
            'of the program and its arguments, as ["bash", "-lc", "ls"].'
        ),
        parameters=_object(
            ["command"],
            {
                "command": {"type": "array", "items": _TEXT, "minItems": 1},
                "working_directory": _TEXT,
                "timeout_ms": _COUNT,
            },
        ),
    ),
    "apply_patch": Tool(
        name="apply_patch",
        description=(
            "Creates, updates or deletes one file. `diff`, which a deletion goes without, is the "
            "file's V4A diff: lines that begin with + are added, with - removed, with a space "
            "kept, and @@ with some line of the file says where."
        ),
        parameters=_object(
            ["type", "path"],
            {
                "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
                "path": _TEXT,
                "diff": _TEXT,
            },
        ),
    ),
}
_SEARCH = "Searches for tools that are not listed here. They can be called once they are found."


class _Entry(msgspec.Struct, frozen=True):
    """A tool before it has its function's name. `path`: where the client wrote it."""

    path: str
    tool: Tool
    offered: Offered
    deferred: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """Its namespace and name."""
        return self.offered.namespace, self.offered.name


_Chosen: TypeAlias = tuple[str, str, str]  # type, namespace, name


class Toolbox:
    """The tools of one request, before it is known which of them items refer to."""

    def __init__(
        self, fields: Fields, wires: Sequence[ToolWire], choice: str | ToolChoiceWire | None
    ) -> None:
        """Raises InvalidRequest."""
        self._fields = fields
        self._choice = choice
        self._unapplied: list[Unapplied] = []
        self._left_out: dict[str, None] = {}
        self._served: list[ServedTools] = []
        self._entries = [
            entry for k, wire in enumerate(wires) for entry in self._read(wire, f"tools[{k}]")
        ]

    def _read(self, wire: InnerToolWire, path: str, namespace: str = "") -> Iterator[_Entry]:
        deferred = bool(wire.defer_loading)
        match wire.type:
            case "function":
                function = wire.function or alike(StrictFunctionWire, wire)()
                tool = function.tool(self._fields, path)
                yield _Entry(path, tool, Offered("function", tool.name, namespace), deferred)
            case "custom":
                custom = CustomWire(wire.name, wire.description, wire.format)
                tool = custom_tool(self._fields, path, custom)
                yield _Entry(path, tool, Offered("custom", tool.name, namespace), deferred)
            case "namespace" if isinstance(wire, ToolWire):
                yield from self._of_namespace(wire, path)
            case "shell" if (wire.environment or {}).get("type", "local") != "local":
                self._leave_out(path, "shell", IN_CONTAINER)
            case "shell" | "local_shell" | "apply_patch" as kind if not namespace:
                yield _Entry(path, _STANDING[kind], Offered(kind, kind))
            case "tool_search" if wire.execution == "client" and not namespace:
                yield _Entry(path, _search(wire), Offered("tool_search", "tool_search"))
            case "mcp" if not namespace:
                self._served.append(read_served(self._fields, path, wire, asks=True))
            case "tool_search":
                self._unapplied.append(Unapplied(path, SHOWN_AT_ONCE, partly=True))
            case other:
                self._leave_out(path, other, NOT_OURS)

    def _of_namespace(self, wire: ToolWire, path: str) -> Iterator[_Entry]:
        if not wire.name:
            raise self._fields.wrong(f"{path}.name", "A namespace needs a name.")
        for k, inner in enumerate(wire.tools):
            for entry in self._read(inner, f"{path}.tools[{k}]", wire.name):
                yield msgspec.structs.replace(entry, tool=_described(entry.tool, wire))

    def _leave_out(self, path: str, kind: str, why: str) -> None:
        self._unapplied.append(Unapplied(path, why))
        self._left_out[kind[:64]] = None

    def opened(
        self, request: ChatRequest, items: Sequence[Mapping[str, Any]], first: int = 0
    ) -> tuple[ChatRequest, Tools]:
        """`request` with the tools as they stand after `items`, whose numbers begin with `first`.
        What MCP servers have is asked for later. Raises InvalidRequest.
        """
        shown, offered = self._shown(items, first)
        opened = Tools(offered, tuple(self._left_out))
        answering, limit = request.answering, request.call_limit
        choice, allowed, unapplied = self._choose(shown, offered)
        told = (*answering.unapplied, *self._unapplied, *unapplied)
        asking = msgspec.structs.replace(
            request,
            tools=shown,
            allowed=allowed,
            tool_choice=choice,
            call_limit=limit and msgspec.structs.replace(limit, counted=opened.built_in),
            answering=msgspec.structs.replace(answering, unapplied=told),
            served=tuple(self._served),
            served_choice=self._served_choice(),
        )
        return asking, opened

    def _shown(
        self, items: Sequence[Mapping[str, Any]], first: int
    ) -> tuple[tuple[Tool, ...], Mapping[str, Offered]]:
        """The functions, and what each stands for."""
        entries = [*self._entries, *self._found(items, first)]
        if len(entries) > MOST_TOOLS:
            message = f"Expected at most {MOST_TOOLS:,} tools, namespaces' counted."
            raise self._fields.wrong("tools", message)
        called = _called(items)
        can_search = any(entry.offered.kind == "tool_search" for entry in self._entries)
        loaded = {entry.key for entry in entries if not entry.deferred}
        tools: dict[str, Tool] = {}
        offered: dict[str, Offered] = {}
        for entry in entries:
            shown = entry.key in called or not can_search  # nobody could ask for it
            if entry.deferred and (entry.key in loaded or not shown):
                continue
            name = _free_name(entry.offered, tools)
            tools[name] = msgspec.structs.replace(entry.tool, name=name)
            offered[name] = entry.offered
        return tuple(tools.values()), offered

    def _found(self, items: Sequence[Mapping[str, Any]], first: int) -> list[_Entry]:
        """The tools that items bring: what a search found, or the client adds."""
        found: dict[tuple[str, str], _Entry] = {}
        for k, item in enumerate(items, first):
            if item.get("type") not in BRINGING or not isinstance(item.get("tools"), list):
                continue
            for j, value in enumerate(item["tools"][:MOST_TOOLS]):
                path = f"{item_path(k)}.tools[{j}]"
                for entry in self._read(self._fields.convert(path, value, ToolWire), path):
                    found[entry.key] = msgspec.structs.replace(entry, deferred=False)
        known = {entry.key for entry in self._entries if not entry.deferred}
        return [entry for key, entry in found.items() if key not in known]

    def _served_choice(self) -> ServedChoice | None:
        """A tool of an MCP server that must be called. Raises InvalidRequest."""
        wire = self._choice
        if not isinstance(wire, ToolChoiceWire) or wire.type != "mcp":
            return None
        if all(each.label != wire.server_label for each in self._served):
            message = f"The MCP server {wire.server_label!r:.64} is not in tools."
            raise self._fields.wrong("tool_choice.server_label", message)
        return ServedChoice(wire.server_label, wire.name)

    def _choose(
        self, tools: tuple[Tool, ...], offered: Mapping[str, Offered]
    ) -> tuple[ToolChoice, frozenset[str] | None, tuple[Unapplied, ...]]:
        """The choice, which tools it leaves (None: all), and what of it is not ours."""
        has_tools = bool(tools or self._served)
        free = read_choice_mode(self._fields, "tool_choice", None, has_tools=has_tools)
        match self._choice:
            case None | ToolChoiceWire(type="mcp"):  # see `served_choice`
                return free, None, ()
            case str(mode) if mode != "required" or has_tools or not self._left_out:
                choice = read_choice_mode(self._fields, "tool_choice", mode, has_tools=has_tools)
                return choice, None, ()
            case ToolChoiceWire(type="allowed_tools") as wire:
                return self._among(wire, tools, offered)
            case ToolChoiceWire() as wire:
                if name := self._named("tool_choice", wire, _by_choice(offered)):
                    return NamedTool(name), None, ()
        return free, None, (Unapplied("tool_choice", NOT_OURS),)

    def _among(
        self, wire: ToolChoiceWire, tools: tuple[Tool, ...], offered: Mapping[str, Offered]
    ) -> tuple[ToolChoice, frozenset[str], tuple[Unapplied, ...]]:
        known = _by_choice(offered)
        found = {
            f"tool_choice.tools[{k}]": self._named(f"tool_choice.tools[{k}]", named, known)
            for k, named in enumerate(wire.tools)
        }
        chosen = set(found.values())
        allowed = tuple(tool for tool in tools if tool.name in chosen)
        missing = tuple(Unapplied(path, NOT_OURS) for path, name in found.items() if not name)
        mode = wire.mode
        if mode == "required" and missing and not allowed:
            mode = "none"
        choice = read_choice_mode(self._fields, "tool_choice.mode", mode, has_tools=bool(allowed))
        if not (allowed or self._served):
            choice = "none"
        return choice, frozenset(tool.name for tool in allowed), missing

    def _named(
        self, path: str, wire: ToolChoiceWire | NamedToolWire, known: Mapping[_Chosen, str]
    ) -> str:
        """The function that stands for a tool; "" for one that is not ours. Raises
        InvalidRequest.
        """
        if wire.type not in ("function", "custom"):
            return known.get((wire.type, "", ""), "")
        if (name := known.get((wire.type, wire.namespace, wire.name))) is None:
            raise self._fields.wrong(f"{path}.name", f"Tool {wire.name!r:.64} not found in tools.")
        return name


def _by_choice(offered: Mapping[str, Offered]) -> Mapping[_Chosen, str]:
    """The functions by all that a choice may call their tools; the first of a name counts."""
    known: dict[_Chosen, str] = {}
    for name, each in offered.items():
        known.setdefault((each.kind, each.namespace, each.name), name)
        known.setdefault((each.kind, "", each.name), name)
        known.setdefault((each.kind, "", name), name)
        if each.kind not in ("function", "custom"):
            known.setdefault((each.kind, "", ""), name)
    return known


BRINGING = ("tool_search_output", "additional_tools")


def joined(namespace: str, name: str) -> str:
    """The name of a namespace's tool, as MCP clients join them."""
    return f"{namespace.removesuffix('__')}__{name}" if namespace else name


def _free_name(offered: Offered, taken: Mapping[str, Any]) -> str:
    wanted = joined(offered.namespace, offered.name)
    name, number = wanted, 2
    while name in taken and offered.kind != "function":
        name, number = f"{wanted}_{number}", number + 1
    return name


def _described(tool: Tool, wire: ToolWire) -> Tool:
    """What the namespace is for is said with each of its tools."""
    about = (
        f"{wire.name[:LONGEST_NAME]}: {wire.description[:1024]}" if wire.description else wire.name
    )
    return msgspec.structs.replace(tool, description=f"{tool.description or ''} ({about})".strip())


def _search(wire: InnerToolWire) -> Tool:
    parameters = wire.parameters or _object(["query"], {"query": _TEXT})
    return Tool(name="tool_search", description=wire.description or _SEARCH, parameters=parameters)


def _called(items: Sequence[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """The tools that items call."""
    return {
        (str(item.get("namespace") or ""), str(item.get("name")))
        for item in items
        if item.get("type") in ("function_call", "custom_tool_call")
    }


def arguments_of(text: str) -> dict[str, Any]:
    """A call's arguments; what no object is stands under `input`. One that is cut is empty."""
    try:
        value = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {"input": value}


def _texts(value: Any) -> list[str]:
    """A list of texts; models that aren't held to the schema write one text instead."""
    listed = value if isinstance(value, list) else [value] if value else []
    return [each if isinstance(each, str) else str(each) for each in listed]


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def shell_action(text: str) -> dict[str, Any]:
    """The `action` of a `shell_call`."""
    found = arguments_of(text)
    return {
        "commands": _texts(found.get("commands", found.get("command"))),
        "timeout_ms": _count(found.get("timeout_ms")),
        "max_output_length": _count(found.get("max_output_length")),
    }


def local_action(text: str) -> dict[str, Any]:
    """The `action` of a `local_shell_call`."""
    found = arguments_of(text)
    directory = found.get("working_directory")
    return {
        "type": "exec",
        "command": _texts(found.get("command", found.get("commands"))),
        "env": {},
        "working_directory": directory if isinstance(directory, str) else None,
        "timeout_ms": _count(found.get("timeout_ms")),
    }


def patch_operation(text: str) -> dict[str, Any]:
    """The `operation` of an `apply_patch_call`."""
    found = arguments_of(text)
    kind = found.get("type")
    operation = {"type": kind if isinstance(kind, str) else "update_file", "path": ""}
    operation["path"] = str(found.get("path") or "")
    return (
        operation if kind == "delete_file" else {**operation, "diff": str(found.get("diff") or "")}
    )
