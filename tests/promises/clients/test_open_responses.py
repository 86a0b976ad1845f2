"""Open Responses (https://www.openresponses.org, 2026-04-24): each response and each event is what
the standard's own types say, whole and streamed.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import openresponses_types as standard
import pytest
from pydantic import BaseModel
from websockets.sync.client import connect

from tests.hang import HANG
from tests.served import Served, events, scripted, served

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
BARE = '{"name": "weather", "arguments": {"city": "Oslo"}}'
SHELL = '<tool_call>\n{"name": "shell", "arguments": {"commands": ["ls"]}}\n</tool_call>'
LINES = [
    {"when": "Run it twice", "say": SHELL * 2},
    {"when": "Twice", "say": CALL * 2},
    {"when": "As an object", "say": BARE},
    {"when": "Which weather", "say": CALL},
    {"when": "Think", "say": "<think>It is plain.</think>Four."},
    {"when": "As JSON", "say": '{"city": "Oslo"}'},
    {"say": "Hello from the script."},
]
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
RESULT = [
    {"role": "user", "content": "Which weather?"},
    {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Oslo"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "Snow."},
]
CASES: Mapping[str, Mapping[str, Any]] = {
    "text": {"input": "Hi"},
    "system": {"input": "Hi", "instructions": "Be brief."},
    "several turns": {
        "input": [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "Hello."},
            {"role": "user", "content": "And?"},
        ]
    },
    "a call": {"input": "Which weather?", "tools": [TOOL]},
    "a tool that must be called": {
        "input": "Which weather?",
        "tools": [{**TOOL, "description": "The weather.", "strict": False}],
        "tool_choice": {"type": "function", "name": "weather"},
    },
    "some call": {"input": "Which weather?", "tools": [TOOL], "tool_choice": "required"},
    "no call": {"input": "Hi", "tools": [TOOL], "tool_choice": "none"},
    "allowed tools": {
        "input": "Which weather?",
        "tools": [TOOL],
        "tool_choice": {
            "type": "allowed_tools",
            "tools": [{"type": "function", "name": "weather"}],
        },
    },
    "a result": {"input": RESULT, "tools": [TOOL]},
    "a schema": {
        "input": "As JSON",
        "text": {"format": {"type": "json_schema", "name": "city", "schema": SCHEMA}},
    },
    "cut": {"input": "Hi", "max_output_tokens": 1},
    "probabilities": {"input": "Hi", "include": ["message.output_text.logprobs"]},
    "all parameters": {
        "input": "Hi",
        "temperature": 0.5,
        "top_p": 0.9,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "max_tool_calls": 3,
        "safety_identifier": "someone",
        "prompt_cache_key": "some key",
        "metadata": {"a": "b"},
        "service_tier": "auto",
        "truncation": "auto",
    },
}
EVENTS: Mapping[str, type[BaseModel]] = {
    f"response.{name}": getattr(standard, f"Response{kind}StreamingEvent")
    for name, kind in {
        "created": "Created",
        "queued": "Queued",
        "in_progress": "InProgress",
        "completed": "Completed",
        "incomplete": "Incomplete",
        "failed": "Failed",
        "output_item.added": "OutputItemAdded",
        "output_item.done": "OutputItemDone",
        "content_part.added": "ContentPartAdded",
        "content_part.done": "ContentPartDone",
        "output_text.delta": "OutputTextDelta",
        "output_text.done": "OutputTextDone",
        "function_call_arguments.delta": "FunctionCallArgumentsDelta",
        "function_call_arguments.done": "FunctionCallArgumentsDone",
        "reasoning.delta": "ReasoningDelta",
        "reasoning.done": "ReasoningDone",
        "reasoning_summary_part.added": "ReasoningSummaryPartAdded",
        "reasoning_summary_part.done": "ReasoningSummaryPartDone",
        "reasoning_summary_text.delta": "ReasoningSummaryDelta",
        "reasoning_summary_text.done": "ReasoningSummaryDone",
    }.items()
} | {"error": standard.ErrorStreamingEvent}
NAMED = {"OpenResponses-Version": "2026-04-24"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("standard")
    model = {**scripted(folder, "m", lines=LINES, chat_template=TEMPLATE), "format": "hermes_json"}
    breaks = scripted(folder, "breaks", lines=[{"say": "It breaks here.", "fail_after": 2}])
    with served(folder, {"models": [model, breaks]}) as running:
        yield running


def asked(server: Served, **fields: Any) -> Any:
    answer = server.client.post("/v1/responses", json={"model": "m", **fields})
    assert answer.status_code == 200, answer.text
    return answer


def held(resource: Any) -> standard.ResponseResource:
    """Raises ValidationError where it isn't the standard's."""
    return standard.ResponseResource.model_validate(without_schema(resource))


def without_schema(resource: Any) -> Any:
    """The types have null alone in the place of a schema, where the standard has an object, too."""
    shape = resource["text"]["format"]
    return (
        {**resource, "text": {"format": {**shape, "schema": None}}}
        if "schema" in shape
        else resource
    )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_whole_response_is_the_standards(case: Mapping[str, Any], server: Served) -> None:
    response = held(asked(server, **case).json())
    completed = response.status == "completed"
    assert completed == (case != CASES["cut"])
    assert (response.completed_at is not None) == completed


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_event_is_the_standards_and_the_stream_has_its_end(
    case: Mapping[str, Any], server: Served
) -> None:
    text = asked(server, **case, stream=True).text
    assert text.endswith("data: [DONE]\n\n")
    found = events(text)
    for event in found:
        if "response" in event:
            event["response"] = without_schema(event["response"])
        EVENTS[event["type"]].model_validate(event)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert found[-1]["type"] in ("response.completed", "response.incomplete")


def test_who_names_the_standard_gets_its_names_and_others_openais(server: Served) -> None:
    said = {"model": "m", "input": "Think", "stream": True}
    for summary, names in (
        (None, {"response.reasoning.delta", "response.reasoning.done"}),
        ("auto", {"response.reasoning_summary_text.delta", "response.reasoning_summary_text.done"}),
    ):
        body = {**said, "reasoning": {"summary": summary}}
        found = events(server.client.post("/v1/responses", json=body, headers=NAMED).text)
        for event in found:
            EVENTS[event["type"]].model_validate(event)
        assert names <= {event["type"] for event in found}
    theirs = {
        event["type"] for event in events(server.client.post("/v1/responses", json=said).text)
    }
    assert "response.reasoning_text.delta" in theirs
    assert not theirs & EVENTS.keys() & {"response.reasoning.delta", "response.reasoning.done"}


def test_an_error_comes_before_the_failed_response_where_the_standard_is_named(
    server: Served,
) -> None:
    said = {"model": "breaks", "input": "Hi", "stream": True}
    found = events(server.client.post("/v1/responses", json=said, headers=NAMED).text)
    for event in found:
        EVENTS[event["type"]].model_validate(event)
    assert [event["type"] for event in found[-2:]] == ["error", "response.failed"]
    assert "the script fails" in found[-2]["error"]["message"]
    usual = server.client.post("/v1/responses", json=said).text
    assert "error" not in {event["type"] for event in events(usual)}
    assert usual.endswith("data: [DONE]\n\n")


def test_what_was_used_and_what_was_sent_is_shown(server: Served) -> None:
    sent = CASES["all parameters"]
    response = asked(server, **sent).json()
    shown = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
    echoed = ("max_tool_calls", "safety_identifier", "prompt_cache_key", "metadata", "truncation")
    assert {name: response[name] for name in (*shown, *echoed)} == {
        name: sent[name] for name in (*shown, *echoed)
    }
    assert response["service_tier"] == "default"
    usual = asked(server, input="Hi").json()
    assert [type(usual[name]) for name in shown] == [float] * 4
    assert asked(server, **CASES["allowed tools"]).json()["tool_choice"]["mode"] == "auto"
    (tool,) = asked(server, **CASES["a call"]).json()["tools"]
    assert (tool["description"], tool["strict"]) == (None, None)


def test_a_stream_that_fails_or_is_read_again_has_its_end(server: Served) -> None:
    kept = asked(server, input="Hi", background=True, stream=True)
    assert kept.text.endswith("data: [DONE]\n\n")
    name = events(kept.text)[0]["response"]["id"]
    again = server.client.get(f"/v1/responses/{name}", params={"stream": "true"}).text
    assert events(again) == events(kept.text)
    assert again.endswith("data: [DONE]\n\n")
    assert again.count("[DONE]") == 1
    held(json.loads(server.client.get(f"/v1/responses/{name}").text))


def test_a_sockets_events_and_errors_are_the_standards(server: Served) -> None:
    with connect(f"{server.url.replace('http', 'ws', 1)}/v1/responses", open_timeout=HANG) as talk:
        talk.send(json.dumps({"type": "response.create", "model": "m", "input": "Hi"}))
        found = [json.loads(talk.recv(HANG))]
        while found[-1]["type"] != "response.completed":
            found.append(json.loads(talk.recv(HANG)))
        for event in found:
            EVENTS[event["type"]].model_validate(event)
        for wrong in ({"input": 5}, {"input": "Hi", "model": "none of these"}):
            talk.send(json.dumps({"type": "response.create", "model": "m", **wrong}))
            standard.WebSocketErrorEvent.model_validate_json(talk.recv(HANG))


def kinds(response: Any) -> list[str]:
    return [item["type"] for item in response["output"]]


CLOCK = {**TOOL, "name": "clock", "description": "The time of day."}


def allowing(*names: str, mode: str = "auto") -> Mapping[str, Any]:
    named = [{"type": "function", "name": name} for name in names]
    return {"type": "allowed_tools", "mode": mode, "tools": named}


def test_allowed_tools_are_called_and_the_others_shown(server: Served) -> None:
    """What the prompt has is the same whatever is allowed: its beginning stays in the cache."""
    said = {"input": "As an object", "tools": [TOOL, CLOCK]}
    free = asked(server, **said).json()
    assert kinds(free) == ["function_call"]
    held_to = asked(server, **said, tool_choice=allowing("clock")).json()
    assert held_to["usage"]["input_tokens"] == free["usage"]["input_tokens"]
    assert held_to["output"][0]["content"][0]["text"] == BARE
    forced = asked(server, **said, tool_choice=allowing("clock", mode="required")).json()
    assert [item["name"] for item in forced["output"]] == ["clock"]
    assert forced["usage"]["input_tokens"] == free["usage"]["input_tokens"]
    none = asked(server, **said, tool_choice=allowing()).json()
    assert kinds(none) == ["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_calls_beyond_their_limit_are_ignored(stream: bool, server: Served) -> None:
    said = {"input": "Run it twice", "tools": [{"type": "shell"}], "stream": stream}

    def response(**more: Any) -> Any:
        answer = asked(server, **{**said, **more})
        return events(answer.text)[-1]["response"] if stream else answer.json()

    assert kinds(response()) == ["shell_call"] * 2
    assert kinds(response(max_tool_calls=2)) == ["shell_call"] * 2
    one = response(max_tool_calls=1)
    assert (kinds(one), one["status"]) == (["shell_call"], "completed")
    own = response(input="Twice", tools=[TOOL], max_tool_calls=1)
    assert kinds(own) == ["function_call"] * 2
    refused = server.client.post("/v1/responses", json={**said, "max_tool_calls": 0})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tool_calls")


def test_a_result_of_no_call_is_refused(server: Served) -> None:
    """Where the call came before, in a response or a conversation, it is one."""
    output = RESULT[-1:]
    call = asked(server, input="Which weather", tools=[TOOL]).json()
    first = asked(server, input="Hi").json()["id"]
    for body in ({}, {"previous_response_id": first}):
        lost = {"model": "m", "input": [{"role": "user", "content": "Hi"}, *output], **body}
        refused = server.client.post("/v1/responses", json=lost)
        error = refused.json()["error"]
        assert (refused.status_code, error["param"]) == (400, "input[1].call_id"), refused.text
    (made,) = (item for item in call["output"] if item["type"] == "function_call")
    result = [{**output[0], "call_id": made["call_id"]}]
    asked(server, input=result, previous_response_id=call["id"])
    asked(server, input=RESULT)


@pytest.mark.parametrize("fault", [{"temperature": "hot"}, {"model": "none"}, {"model": "breaks"}])
def test_a_continuation_that_failed_is_forgotten_on_its_socket(
    fault: Mapping[str, Any], server: Served
) -> None:
    with connect(f"{server.url.replace('http', 'ws', 1)}/v1/responses", open_timeout=HANG) as talk:

        def said(**more: Any) -> Any:
            body = {"type": "response.create", "model": "m", "input": "Hi", "store": False}
            talk.send(json.dumps({**body, **more}))
            ends = ("response.completed", "response.failed", "error")
            while (event := json.loads(talk.recv(HANG)))["type"] not in ends:
                pass
            return event

        first, other = said()["response"]["id"], said()["response"]["id"]
        assert said(previous_response_id=first)["type"] == "response.completed"
        assert said(previous_response_id=first, **fault)["type"] != "response.completed"
        again = said(previous_response_id=first)
        assert (again["type"], again["error"]["code"]) == ("error", "previous_response_not_found")
        assert said(previous_response_id=other)["type"] == "response.completed"


def test_a_conversation_is_made_shorter_by_a_model_that_is_named(server: Served) -> None:
    said = [{"role": "user", "content": "Hi"}]
    answer = server.client.post("/v1/responses/compact", json={"model": "m", "input": said})
    standard.CompactResource.model_validate_json(answer.text)
    refused = server.client.post("/v1/responses/compact", json={"input": said})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
