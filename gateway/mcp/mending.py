"""Answers of MCP servers that are slightly off, made into what the library takes: it refuses a
whole list for one tool, and a result with its text for one field. What can't be mended stays.

Knows no connection.
"""

import json
from collections.abc import Mapping
from typing import Any

import msgspec
from mcp_types.methods import validate_server_result
from pydantic import ValidationError

STRICTEST = "2025-11-25"  # of the revisions, in tools
LEFT_OUT = "roundhouse/left-out"  # in a tool's `_meta`: why it isn't offered
MOST = 2_000  # tools of a page
NOTHING: Mapping[str, Any] = {"type": "object"}  # a schema


def mended(method: str, result: dict[str, Any]) -> dict[str, Any]:
    """The result of `method`."""
    match method:
        case "initialize":
            version = result.get("protocolVersion")
            nobody = {"name": "", "version": ""}  # nothing here reads who it is
            return {**_offer(result), "protocolVersion": version, "serverInfo": nobody}
        case "server/discover":
            return {**_offer(result), "supportedVersions": result.get("supportedVersions")}
        case "tools/list" if isinstance(tools := result.get("tools"), list):
            return {**_completed(result), "tools": _tools(tools)}
        case "tools/call" if result.get("resultType", "complete") == "complete":
            return _called(result)
    return result


def _offer(result: Mapping[str, Any]) -> dict[str, Any]:
    """Of what a server can do, what is asked for here."""
    match result.get("capabilities"):
        case {"tools": {"listChanged": True}}:
            return {"capabilities": {"tools": {"listChanged": True}}}
    return {"capabilities": {}}


def _completed(result: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in result.items() if name != "_meta"}
    return {"resultType": "complete", "cacheScope": "private", **kept}


def _tools(raw: list[Any]) -> list[dict[str, Any]]:
    """Each is looked at on the event loop, so a page has a bound besides its bytes."""
    others = _left_out({"name": "(others)"}, f"a page has more than {MOST:,} tools")
    return [*map(_tool, raw[:MOST]), *([others] if len(raw) > MOST else [])]


def _tool(raw: Any) -> dict[str, Any]:
    """A tool that the library takes; marked, where it took another one for it."""
    given: Mapping[str, Any] = raw if isinstance(raw, dict) else {}
    name = given.get("name")
    tool = {"name": name if isinstance(name, str) else "", "inputSchema": _schema(given)}
    for key in ("title", "description"):
        if isinstance(given.get(key), str):
            tool[key] = given[key]
    hints = given.get("annotations")
    if isinstance(hints, dict):
        kinds = {"title": str}
        good = {key: hint for key, hint in hints.items() if isinstance(hint, kinds.get(key, bool))}
        tool["annotations"] = good
    match given.get("execution"):
        case {"taskSupport": "required"}:
            return _left_out(tool, "it has to be run as a task, which isn't done here")
    try:
        msgspec.json.encode(tool)  # as clients and models are shown it
        validate_server_result("tools/list", STRICTEST, {"tools": [tool]})
    except ValidationError as error:
        return _left_out(tool, why_not(error))
    except OverflowError:
        return _left_out(tool, "a number in it is too large")
    return tool


def _schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Of an object, as a tool's arguments always are. PHP writes an empty object as a list."""
    given = tool.get("inputSchema")
    schema = {**given, **NOTHING} if isinstance(given, dict) else {**NOTHING}
    for key, kind in (("properties", dict), ("required", list)):
        if key in schema and not isinstance(schema[key], kind):
            del schema[key]
    return schema


def _left_out(tool: Mapping[str, Any], why: str) -> dict[str, Any]:
    return {"name": tool["name"], "inputSchema": {**NOTHING}, "_meta": {LEFT_OUT: why}}


def why_not(error: ValidationError) -> str:
    """What the library doesn't take, and why, by its first complaint."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _called(result: Mapping[str, Any]) -> dict[str, Any]:
    """A tool's result: its text and its pictures, and of what a model can't read, what it is."""
    parts, structured = result.get("content"), result.get("structuredContent")
    if not parts and structured is not None:
        parts = [{"type": "text", "text": _json(structured)}]
    if isinstance(parts, list):
        parts = [_part(part) for part in parts]
    failed = result.get("isError") is True
    return {"resultType": "complete", "content": parts, "isError": failed}


def _part(raw: Any) -> dict[str, Any]:
    match raw:
        case {"type": "image", "data": str(data), "mimeType": str(kind)}:
            return {"type": "image", "data": data, "mimeType": kind}
        case {"type": "image" | "audio" as what, **more}:
            text = f"({what}: {more.get('mimeType')})"
        case {"type": "resource_link", "uri": uri, **more}:
            text = f"{more.get('name')}: {uri}"
        case {"text": str(text)} | {"resource": {"text": str(text)}}:
            pass
        case {"type": "resource", "resource": {"uri": uri}}:
            text = f"(a file: {uri})"
        case _:
            text = raw if isinstance(raw, str) else _json(raw)
    return {"type": "text", "text": text}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
