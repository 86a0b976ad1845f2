"""Tools of every type: what the model is shown, what comes back, and what is said of the others."""

import json
from collections.abc import Sequence
from itertools import count
from typing import Any

import msgspec
import pytest
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from backends.contract.conversation import Grammar, ToolInput
from gateway.dialects.responses import ResponsesExchange, ResponsesReply, read_response
from gateway.terms.errors import InvalidRequest
from gateway.terms.events import (
    ArgumentsGrown,
    Delta,
    Event,
    Finished,
    ToolClosed,
    ToolOpened,
    Usage,
)
from gateway.terms.request import NamedTool

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
LARK = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits.", "format": LARK}
NAMESPACE = {
    "type": "namespace",
    "name": "mcp__crm",
    "description": "Customers.",
    "tools": [
        {"type": "function", "name": "find", "parameters": {"type": "object"}},
        {"type": "custom", "name": "query", "defer_loading": True},
    ],
}
SEARCH = {"type": "tool_search", "execution": "client"}
HOSTED: dict[str, dict[str, Any]] = {
    "web_search": {},
    "file_search": {"vector_store_ids": []},
    "code_interpreter": {"container": "c"},
    "computer": {},
    "image_generation": {},
}


def read(
    tools: Sequence[Any], items: Any = "Hi", history: Sequence[Any] = (), **fields: Any
) -> ResponsesExchange:
    body = {"model": "m", "input": items, "tools": tools, **fields}
    return read_response(msgspec.json.encode(body)).after(history)


def names(exchange: ResponsesExchange) -> list[str]:
    return [tool.name for tool in exchange.request.tools]


def called(exchange: ResponsesExchange, name: str, arguments: str) -> list[dict[str, Any]]:
    """The events of an answer that is one call, each taken by OpenAI's client."""
    numbers = count()
    reply = ResponsesReply(exchange, id="resp_1", created=1, new_id=lambda: str(next(numbers)))
    grown = [ArgumentsGrown(0, arguments[at : at + 5]) for at in range(0, len(arguments), 5)]
    said: tuple[Event, ...] = (
        ToolOpened(0, "call_1", name), *grown, ToolClosed(0), Finished("tool_calls")
    )  # fmt: skip
    data = b"".join(
        (
            reply.answered_by("m").opening(),
            *(reply.delta(Delta(0, (event,))) for event in said),
            reply.closing(Usage(prompt_tokens=1, completion_tokens=1)),
        )
    )
    frames = [
        json.loads(frame.partition("data: ")[2]) for frame in data.decode().split("\n\n")[:-1]
    ]
    for frame in frames:
        EVENT.validate_python(frame, strict=True)
    return frames


def item(frames: Sequence[dict[str, Any]]) -> dict[str, Any]:
    (whole,) = frames[-1]["response"]["output"]
    assert isinstance(whole, dict)
    return whole


# ------------------------------------------------------------------------------------------ custom


def test_a_custom_tool_is_a_function_with_one_text_to_the_model() -> None:
    (tool,) = read([PATCH]).request.tools
    field = "tools[0].format.definition"
    assert tool.input == ToolInput(Grammar(text='start: "a"', field=field))
    assert tool.parameters is not None
    assert tool.parameters["required"] == ["input"]
    assert 'start: "a"' in tool.parameters["properties"]["input"]["description"]


def test_its_calls_come_back_as_text_while_it_grows() -> None:
    text = "*** Begin Patch\n+\té\n"
    frames = called(read([PATCH]), "apply_patch", json.dumps({"input": text}))
    assert item(frames) == {
        "type": "custom_tool_call", "id": "ctc_0", "call_id": "call_1", "name": "apply_patch",
        "input": text, "status": "completed",
    }  # fmt: skip
    stem = "response.custom_tool_call_input"
    deltas = [frame["delta"] for frame in frames if frame["type"] == f"{stem}.delta"]
    assert "".join(deltas) == text
    assert len(deltas) > 2
    assert [frame["input"] for frame in frames if frame["type"] == f"{stem}.done"] == [text]


def test_its_calls_and_outputs_are_read_again() -> None:
    call = {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": 'a"\n'}
    output = {"type": "custom_tool_call_output", "call_id": "c", "output": "Done!"}
    asked, answered = read([PATCH], [call, output]).request.messages
    assert json.loads(asked.tool_calls[0].arguments) == {"input": 'a"\n'}
    assert (answered.role, answered.text, answered.tool_call_id) == ("tool", "Done!", "c")


@pytest.mark.parametrize(
    ("format_", "path"),
    [
        ({"type": "grammar", "syntax": "lark"}, "tools[0].format.definition"),
        ({"type": "grammar", "syntax": "abnf", "definition": "x"}, "tools[0].format.syntax"),
        ({"type": "other"}, "tools[0].format.type"),
    ],
)
def test_a_format_that_is_none_is_refused(format_: Any, path: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read([{**PATCH, "format": format_}])
    assert refused.value.param == path


# -------------------------------------------------------------------------- namespaces and searches


def test_a_namespace_is_flattened_and_put_back() -> None:
    exchange = read([NAMESPACE])
    assert names(exchange) == ["mcp__crm__find", "mcp__crm__query"]
    assert "Customers." in (exchange.request.tools[0].description or "")
    call = item(called(exchange, "mcp__crm__find", "{}"))
    assert (call["type"], call["namespace"], call["name"]) == ("function_call", "mcp__crm", "find")
    again = read([NAMESPACE], [{**call, "call_id": "c"}])
    assert again.request.messages[0].tool_calls[0].name == "mcp__crm__find"


def test_deferred_tools_are_shown_once_a_search_found_them() -> None:
    assert names(read([NAMESPACE, SEARCH])) == ["mcp__crm__find", "tool_search"]
    found = {**NAMESPACE, "tools": NAMESPACE["tools"][1:]}
    output = {"type": "tool_search_output", "call_id": "c", "tools": [found]}
    call = {"type": "tool_search_call", "call_id": "c", "arguments": {"query": "customers"}}
    after = read([NAMESPACE, SEARCH], [call, output])
    assert names(after) == ["mcp__crm__find", "tool_search", "mcp__crm__query"]
    assert after.request.messages[1].text == "Found, and ready to be called: mcp__crm"
    past = {"type": "custom_tool_call", "call_id": "c", "name": "query", "namespace": "mcp__crm"}
    assert "mcp__crm__query" in names(read([NAMESPACE, SEARCH], [past]))


def test_tools_that_items_add_count_in_what_is_stored_too() -> None:
    added = {"type": "additional_tools", "role": "developer", "tools": [PATCH]}
    assert names(read([], [added, {"role": "user", "content": "Hi"}])) == ["apply_patch"]
    assert names(read([], history=[added])) == ["apply_patch"]


def test_what_items_add_behind_what_is_stored_counts_once() -> None:
    hosted, served = {"type": "web_search"}, {"type": "mcp", "server_label": "files"}
    added = {"type": "additional_tools", "role": "developer", "tools": [hosted, served]}
    before = {"role": "user", "content": "Hi"}
    request = read([], [added], history=[before], previous_response_id="resp_1").request
    assert [one.label for one in request.served] == ["files"]
    assert [one.name for one in request.answering.unapplied] == ["input[0].tools[0]"]


def test_a_search_that_nobody_here_does_shows_all_at_once_and_says_so() -> None:
    exchange = read([NAMESPACE, {"type": "tool_search"}])
    assert names(exchange) == ["mcp__crm__find", "mcp__crm__query"]
    (said,) = exchange.request.answering.unapplied
    assert (said.name, said.partly) == ("tools[1]", True)


# ------------------------------------------------------------------------- what clients run, or not


@pytest.mark.parametrize(
    ("kind", "arguments", "field", "meant"),
    [
        ("shell", {"commands": ["ls", "pwd"], "timeout_ms": 5}, "action",
         {"commands": ["ls", "pwd"], "timeout_ms": 5, "max_output_length": None}),
        ("local_shell", {"command": ["ls"]}, "action",
         {"type": "exec", "command": ["ls"], "env": {}, "working_directory": None,
          "timeout_ms": None}),
        ("apply_patch", {"type": "update_file", "path": "a", "diff": "+b"}, "operation",
         {"type": "update_file", "path": "a", "diff": "+b"}),
        ("apply_patch", {"type": "delete_file", "path": "a", "diff": ""}, "operation",
         {"type": "delete_file", "path": "a"}),
        ("tool_search", {"query": "x"}, "arguments", {"query": "x"}),
    ],
)  # fmt: skip
def test_tools_that_clients_run(kind: str, arguments: Any, field: str, meant: Any) -> None:
    tools = [{"type": kind, "execution": "client"}]
    assert read(tools, tool_choice={"type": kind}).request.tool_choice == NamedTool(kind)
    exchange = read(tools)
    call = item(called(exchange, kind, json.dumps(arguments)))
    assert (call["type"], call[field], call["call_id"]) == (f"{kind}_call", meant, "call_1")
    (message,) = read([], [call]).request.messages
    again = json.loads(message.tool_calls[0].arguments)
    assert message.tool_calls[0].name == kind
    assert all(again[key] == value for key, value in arguments.items() if value)


def test_the_commands_of_a_shell_are_streamed_events() -> None:
    frames = called(read([{"type": "shell"}]), "shell", '{"commands": ["ls", "pwd"]}')
    done = [each for each in frames if each["type"] == "response.shell_call_command.done"]
    assert [(each["command_index"], each["command"]) for each in done] == [(0, "ls"), (1, "pwd")]


def test_what_is_not_ours_is_left_out_and_said() -> None:
    exchange = read(
        [*({"type": kind, **more} for kind, more in HOSTED.items()), PATCH], tool_choice="required"
    )
    assert names(exchange) == ["apply_patch"]
    said = [each.name for each in exchange.request.answering.unapplied if "]." not in each.name]
    assert said == [f"tools[{k}]" for k in range(len(HOSTED))]
    answer = called(exchange, "apply_patch", '{"input": ""}')[-1]["response"]
    assert answer["metadata"] == {"roundhouse_left_out": ", ".join(HOSTED)}


@pytest.mark.parametrize("choice", [{"type": "web_search_preview"}, "required"])
def test_a_demand_for_what_is_not_ours_is_said(choice: Any) -> None:
    request = read([{"type": "web_search_preview"}], tool_choice=choice).request
    assert request.tool_choice == "none"
    assert "tool_choice" in [each.name for each in request.answering.unapplied]


def test_allowed_tools_of_every_type() -> None:
    named = [{"type": "custom", "name": "apply_patch"}, {"type": "shell"}, {"type": "mcp"}]
    choice = {"type": "allowed_tools", "mode": "required", "tools": named}
    exchange = read([PATCH, NAMESPACE, {"type": "shell"}], tool_choice=choice)
    allowed = [tool.name for tool in exchange.request.callable_tools]
    assert allowed == ["apply_patch", "shell"]
    assert len(exchange.request.tools) > len(allowed)
    assert [each.name for each in exchange.request.answering.unapplied] == ["tool_choice.tools[2]"]


@pytest.mark.parametrize(
    ("past", "told"),
    [
        ({"type": "web_search_call", "action": {"type": "search", "query": "cats"}}, "cats"),
        ({"type": "file_search_call", "queries": ["q"], "results": [{"text": "cats"}]}, "cats"),
        ({"type": "code_interpreter_call", "code": "1", "outputs": [{"logs": "cats"}]}, "cats"),
        ({"type": "image_generation_call", "result": "x" * 99, "revised_prompt": "cats"}, "cats"),
        ({"type": "computer_call", "call_id": "c", "action": {"type": "click"}}, "click"),
        ({"type": "computer_call_output", "call_id": "c", "output": {}}, "(a picture)"),
        ({"type": "mcp_call", "name": "n", "arguments": "{}", "output": "cats"}, "cats"),
        ({"type": "mcp_call", "name": "n", "arguments": "{}", "error": "cats"}, "cats"),
        ({"type": "mcp_approval_request", "id": "mcpr_1", "arguments": "cats"}, "cats"),
        ({"type": "shell_call_output", "call_id": "c", "output": [
            {"stdout": "cats\n", "outcome": {"type": "exit", "exit_code": 3}}]}, "exit code 3"),
        ({"type": "local_shell_call_output", "id": "c", "output": "cats"}, "cats"),
        ({"type": "apply_patch_call_output", "call_id": "c", "status": "failed"}, "failed"),
        ({"type": "program", "code": "cats"}, "cats"),
        ({"type": "of_next_year", "text": "cats"}, "cats"),
        ({"type": "shell_call", "action": "odd", "call_id": 7}, "{}"),
        ({"type": "shell_call", "action": "odd", "call_id": ["c"]}, "{}"),
        ({"type": "tool_search_output", "tools": "odd"}, "Found no tools."),
    ],
)  # fmt: skip
def test_items_of_any_tool_are_text_that_the_model_reads(past: Any, told: str) -> None:
    messages = read([], [past]).request.messages
    texts = [message.text for message in messages]
    texts += [call.arguments for message in messages for call in message.tool_calls]
    assert told in "\n".join(texts)
    assert "xxxx" not in "\n".join(texts)


def test_too_many_tools_in_namespaces_are_refused() -> None:
    inner = [{"type": "function", "name": f"f{k}"} for k in range(600)]
    bags = [{"type": "namespace", "name": name, "tools": inner} for name in "ab"]
    with pytest.raises(InvalidRequest, match="at most"):
        read(bags)
