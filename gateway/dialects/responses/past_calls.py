"""Items of earlier turns that are calls of tools, and their results, as messages a template takes.

Whoever ran a tool, what it was asked and what it said is read again: as a call and its result
where both are known, else as a line of text. Nothing here refuses an item.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from gateway.terms.request import Message, TextPart, ToolCall

Item: TypeAlias = Mapping[str, Any]

LONGEST_NOTE = 16_384  # characters of an item whose type is unknown
SUMMARY = "What happened in this conversation until here, in short:"
PICTURE = "(a picture)"


def past_messages(item: Item, summary: str | None) -> tuple[Message, ...]:
    """An item of a type that is no message, no function's and no custom tool's. `summary`: what a
    compaction says; None where it was packed elsewhere.
    """
    kind = str(item.get("type"))
    match kind:
        case "additional_tools" | "compaction_trigger" | "configuration_update":
            return ()  # they say something of the request, and nothing in the conversation
        case "mcp_list_tools" | "mcp_approval_request" | "mcp_approval_response":
            return ()  # likewise, or it was settled: see `mcp_items`
        case "mcp_call":
            call = _call(item, _served_name(item), item.get("arguments") or {})
            return call, _result(_id(item), _served(item))
        case "compaction":
            told = summary if summary is not None else "(it was packed by another server)"
            return (Message(role="user", parts=(TextPart(f"{SUMMARY}\n{told}"),)),)
    if (asked := _ASKED.get(kind)) is not None:
        name, arguments = asked
        return (_call(item, name, arguments(item)),)
    if (answered := _ANSWERED.get(kind)) is not None:
        return (_result(_id(item), answered(item)),)
    if (both := _BOTH.get(kind)) is not None:
        arguments, result = both
        call = _call(item, kind.removesuffix("_call"), arguments(item))
        return call, _result(_id(item), result(item))
    return (Message(role="assistant", parts=(TextPart(f"[{kind[:64]}] {_brief(item)}"),)),)


def _id(item: Item) -> str:
    found = item.get("call_id") or item.get("id")
    return found if isinstance(found, str) else "call"


def _call(item: Item, name: str, arguments: Any) -> Message:
    text = arguments if isinstance(arguments, str) else _json(arguments)
    return Message(role="assistant", tool_calls=(ToolCall(_id(item), name, text),))


def _result(call_id: str, text: str) -> Message:
    return Message(role="tool", parts=(TextPart(text),), tool_call_id=call_id)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _brief(item: Item) -> str:
    text = _json({key: value for key, value in item.items() if key not in ("type", "id", "status")})
    return text if len(text) <= LONGEST_NOTE else f"{text[:LONGEST_NOTE]}…"


def _object(item: Item, field: str) -> dict[str, Any]:
    value = item.get(field)
    found = value if isinstance(value, dict) else {}
    return {key: each for key, each in found.items() if each is not None}


def _list(item: Item, field: str) -> Sequence[Mapping[str, Any]]:
    value = item.get(field)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _some(*fields: str) -> Callable[[Item], Any]:
    def chosen(item: Item) -> dict[str, Any]:
        return {field: item[field] for field in fields if item.get(field) is not None}

    return chosen


def _text(item: Item) -> str:
    """An `output` in whatever form."""
    output = item.get("output")
    if isinstance(output, str):
        return output
    parts = _list(item, "output")
    return "\n".join(str(part.get("text") or PICTURE) for part in parts) or _json(output)


def _shell(item: Item) -> str:
    return "\n".join(map(_one_output, _list(item, "output"))) or _text(item)


def _one_output(output: Mapping[str, Any]) -> str:
    outcome = _object(output, "outcome")
    ended = (
        "timed out"
        if outcome.get("type") == "timeout"
        else f"exit code {outcome.get('exit_code', 0)}"
    )
    texts = (output.get("stdout"), output.get("stderr"), f"({ended})")
    return "\n".join(str(text).rstrip("\n") for text in texts if text)


def _patched(item: Item) -> str:
    return "\n".join(filter(None, (str(item.get("status") or ""), str(item.get("output") or ""))))


def _found_tools(item: Item) -> str:
    names = [str(tool.get("name") or tool.get("type")) for tool in _list(item, "tools")]
    return f"Found, and ready to be called: {', '.join(names)}" if names else "Found no tools."


def _interpreted(item: Item) -> str:
    outputs = _list(item, "outputs")
    return "\n".join(str(output.get("logs") or PICTURE) for output in outputs) or "(no output)"


def _searched(item: Item) -> str:
    results = _list(item, "results")
    texts = (f"{result.get('filename', '')}: {result.get('text', '')}" for result in results)
    return "\n".join(texts) or "(the results are not known here)"


def _sources(item: Item) -> str:
    urls = [str(source.get("url")) for source in _list(_object(item, "action"), "sources")]
    return "\n".join(urls) or "(the results are not known here)"


def _served_name(item: Item) -> str:
    """As the model was shown it."""
    names = (item.get("server_label"), item.get("name"))
    return "__".join(str(name) for name in names if name)[:128]


def _served(item: Item) -> str:
    error = item.get("error")
    if not error:
        return _text(item)
    said = (
        [str(part.get("text")) for part in _list(error, "content")]
        if isinstance(error, dict)
        else []
    )
    return "\n".join(said) or f"Error: {error if isinstance(error, str) else _json(error)}"


def _action(item: Item) -> dict[str, Any]:
    action = _object(item, "action")
    return {key: value for key, value in action.items() if (key, value) != ("type", "exec")}


# Calls and results that are items of their own: the tool's name and its arguments; the text.
_ASKED: Mapping[str, tuple[str, Callable[[Item], Any]]] = {
    "local_shell_call": ("local_shell", _action),
    "shell_call": ("shell", _action),
    "apply_patch_call": ("apply_patch", lambda item: _object(item, "operation")),
    "tool_search_call": ("tool_search", lambda item: _object(item, "arguments")),
    "computer_call": ("computer", _some("action", "actions")),
    "program": ("program", _some("code")),
}
_ANSWERED: Mapping[str, Callable[[Item], str]] = {
    "local_shell_call_output": _text,
    "shell_call_output": _shell,
    "apply_patch_call_output": _patched,
    "tool_search_output": _found_tools,
    "computer_call_output": lambda _: PICTURE,
    "program_output": lambda item: str(item.get("result") or ""),
}
# Calls that hold their result.
_BOTH: Mapping[str, tuple[Callable[[Item], Any], Callable[[Item], str]]] = {
    "web_search_call": (_action, _sources),
    "file_search_call": (_some("queries"), _searched),
    "code_interpreter_call": (_some("code"), _interpreted),
    "image_generation_call": (_some("revised_prompt"), lambda _: PICTURE),
}
