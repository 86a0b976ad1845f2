"""Calls arrive as the model wrote them: its order of arguments, its numbers, its texts. What was
cut stays open, and what small models write in place of their template's form is a call, too.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.prompt.new_families import UNREAD
from tests.gateway.splitter.renderers import MARKERS, RENDERERS
from tests.served import Serve, Served, events, scripted, served

# One of each syntax; what all families write is tried in tests/gateway/splitter.
FAMILIES = (
    "hermes_json", "mistral_v11", "harmony", "qwen3_coder_xml", "glm45", "minimax_m3", "gemma4",
    "olmo3_pythonic",
)  # fmt: skip


def _properties(**types: str) -> dict[str, Any]:
    return {name: {"type": kind} for name, kind in types.items()}


# As GitHub's MCP server lists them: by the alphabet, and the model in the order of its training.
ISSUE = {
    "type": "object",
    "properties": {
        **_properties(body="string"),
        "labels": {"type": "array", "items": {"type": "string"}},
        **_properties(owner="string", repo="string", title="string"),
    },
    "required": ["owner", "repo", "title"],
}
RATE = {
    "type": "object",
    "properties": {**_properties(rate="number"), "part": {"type": "number", "minimum": 0}},
    "required": ["rate", "part"],
}
FILE = {
    "type": "object",
    "properties": _properties(line="integer", path="string", text="string"),
    "required": ["path", "text"],
}
SHORT = FILE | {
    "properties": {
        "line": {"type": "integer"},
        "path": {"type": "string", "pattern": "^.*\\.py$"},
        "text": {"type": "string", "maxLength": 1_900},
    }
}
LONG = {
    "type": "object",
    "properties": {"text": {"type": "string", "maxLength": 5000}},
    "required": ["text"],
}
WROTE: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "late": (ISSUE, {"owner": "o", "repo": "r", "title": "t", "body": "b", "labels": ["l"]}),
    "tiny": (RATE, {"rate": 3e-05, "part": 1e-07}),
    "long": (LONG, {"text": "All work and no play. " * 200}),
}
ANY = {"type": "object", "properties": {"value": {}, "plain": {}}, "required": ["value"]}
OBJECT = '{"name": "late", "arguments": {"owner": "o", "repo": "r", "title": "t"}}'
BARE = {
    "bare": OBJECT,
    "fenced": f"```json\n{OBJECT}\n```",
    "several": f"{OBJECT}\n{OBJECT}",
}
TEXTS = {
    "behind": f"{OBJECT}\nThis is how it would look.",
    "unknown": OBJECT.replace("late", "early"),
    "unfit": OBJECT.replace('"title"', '"head"'),
    "data": '{"name": "late", "age": 3}',
    "code": "```python\nprint(1)\n```",
}
# As Qwen2.5's: calls, and nothing of reasoning.
TEMPLATE = """{% if tools %}# Tools: <tools>{{ tools }}</tools>. For each function call, return \
a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls %}<tool_call>{{ call.function | tojson }}\
</tool_call>{% endfor %}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def _lines(family: str) -> Iterator[dict[str, str]]:
    for name, (_, arguments) in WROTE.items():
        yield {"when": f"Call {name}", "say": RENDERERS[family]([(name, arguments)])}
    marker = MARKERS.get(family, "")
    yield {"when": "Call marker", "say": RENDERERS[family]([("marker", _marked(marker))])}
    yield {"when": "Call any", "say": RENDERERS[family]([("any", _any())])}
    for name, say in (BARE | TEXTS).items():
        yield {"when": f"Say {name}", "say": say}


def _any() -> dict[str, Any]:
    return {"value": {"a": [1, 2]}, "plain": "12"}


def _marked(marker: str) -> dict[str, Any]:
    text = f'a = "{marker}"; b = 1\n\n{marker} and {marker}{marker}\n'
    return {"path": f"{marker}.py", "text": text, "line": 3}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("calls")
    models = [
        {**scripted(folder, each, lines=[*_lines(each)], context_length=40_000), "format": each}
        for each in {*FAMILIES, *MARKERS}
    ]
    thinks = f"<think>Celsius.</think>{RENDERERS['hermes_json']([('late', WROTE['late'][1])])}"
    models.append(scripted(folder, "thoughtless", say=thinks, chat_template=TEMPLATE))
    with served(folder, {"models": models}) as running:
        yield running


def test_answers_that_show_markers_are_counted_and_warned_of(serve: Serve, tmp_path: Path) -> None:
    lines = [
        {"when": "Call", "say": "<zap:call>find Bern IS city;</zap:call>"},
        {"when": "", "say": "A <b>zap</b> is no <zap>."},
    ]
    server = serve({"models": [scripted(tmp_path, "zap", lines=lines, chat_template=UNREAD)]})
    for asked in ("Call", "Hello", "Call again"):
        body = {"model": "zap", "messages": [{"role": "user", "content": asked}], "stream": True}
        assert server.client.post("/v1/chat/completions", json=body).status_code == 200
    assert 'roundhouse_marked_answers_total{model="zap"} 2.0' in server.client.get("/metrics").text
    assert server.stop() == 0  # all of its log is read
    assert len(server.log.records("answers may show markers")) == 1


def _called(server: Served, family: str, name: str, schema: Any, **more: Any) -> Any:
    tool = {"type": "function", "function": {"name": name, "parameters": schema}}
    body = {
        "model": family,
        "messages": [{"role": "user", "content": f"Call {name}"}],
        "tools": [tool],
        **more,
    }
    answer = server.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    assert choice["finish_reason"] == "tool_calls", choice
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == name
    return json.loads(call["function"]["arguments"])


@pytest.mark.parametrize("name", WROTE)
@pytest.mark.parametrize("family", FAMILIES)
def test_arguments_arrive_as_they_were_written(server: Served, family: str, name: str) -> None:
    schema, arguments = WROTE[name]
    assert _called(server, family, name, schema) == arguments


@pytest.mark.parametrize("schema", [FILE, SHORT], ids=["any", "short"])
@pytest.mark.parametrize("family", MARKERS)
def test_a_text_holds_the_marker_that_ends_texts(
    server: Served, family: str, schema: Mapping[str, Any]
) -> None:
    assert _called(server, family, "marker", schema) == _marked(MARKERS[family])


@pytest.mark.parametrize("family", ["qwen3_coder_xml", "glm45", "minimax_m2"])
def test_an_untyped_argument_is_the_object_that_it_is(server: Served, family: str) -> None:
    assert _called(server, family, "any", ANY) == _any()


def _asked(server: Served, path: str, family: str, name: str, **more: Any) -> Any:
    body = {"model": family, "messages": [{"role": "user", "content": name}], **more}
    answer = server.client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return events(answer.text) if more.get("stream") else answer.json()


def _tools(schema: Any) -> Any:
    return [{"type": "function", "function": {"name": "late", "parameters": schema}}]


@pytest.mark.parametrize("family", ["hermes_json", "qwen3_coder_xml", "gemma4", "olmo3_pythonic"])
def test_a_call_that_was_cut_stays_open(server: Served, family: str) -> None:
    """In every API: who takes half of the arguments for all of them writes half a file."""
    whole = RENDERERS[family]([("late", WROTE["late"][1])])
    cut = {"max_tokens": whole.index("t", whole.index("title") + 5) + 1}
    chat = "/v1/chat/completions"
    (choice,) = _asked(server, chat, family, "Call late", tools=_tools(ISSUE), **cut)["choices"]
    assert choice["finish_reason"] == "length"
    begun = choice["message"]["tool_calls"][0]["function"]["arguments"]
    assert begun.replace(" ", "").startswith('{"owner":"o","repo":"r"')
    with pytest.raises(json.JSONDecodeError):
        json.loads(begun)
    streamed = _asked(server, chat, family, "Call late", tools=_tools(ISSUE), stream=True, **cut)
    deltas = [choice["delta"] for chunk in streamed for choice in chunk["choices"]]
    calls = [call for delta in deltas for call in delta.get("tool_calls") or ()]
    assert "".join(call["function"].get("arguments") or "" for call in calls) == begun
    function = {"type": "function", "name": "late", "parameters": ISSUE}
    asked = {"model": family, "input": "Call late", "tools": [function]}
    answer = server.client.post(
        "/v1/responses", json={**asked, "max_output_tokens": cut["max_tokens"]}
    ).json()
    item = answer["output"][-1]
    assert (answer["status"], item["status"], item["arguments"]) == ("incomplete",) * 2 + (begun,)
    tool = {"name": "late", "input_schema": ISSUE}
    message = _asked(server, "/v1/messages", family, "Call late", tools=[tool], **cut)
    assert message["stop_reason"] == "max_tokens"
    assert message["content"][-1]["input"] == {"_raw": begun}
    options = {"num_predict": cut["max_tokens"]}
    told = _asked(
        server, "/api/chat", family, "Call late", tools=_tools(ISSUE), options=options, stream=False
    )
    assert told["message"]["tool_calls"][0]["function"]["arguments"] == {"_raw": begun}


@pytest.mark.parametrize("name", BARE)
@pytest.mark.parametrize("family", ["hermes_json", "gemma4"])
def test_an_answer_that_is_a_call_as_json_is_one(server: Served, family: str, name: str) -> None:
    streamed = _asked(
        server, "/v1/chat/completions", family, f"Say {name}", tools=_tools(ISSUE), stream=True
    )
    deltas = [choice["delta"] for chunk in streamed for choice in chunk["choices"]]
    assert not "".join(delta.get("content") or "" for delta in deltas)
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls") or ()]
    named = [call["name"] for call in calls if call.get("name")]
    assert named == ["late"] * BARE[name].count("late")


@pytest.mark.parametrize("name", TEXTS)
def test_an_answer_that_only_looks_like_a_call_is_text(server: Served, name: str) -> None:
    answer = _asked(
        server, "/v1/chat/completions", "hermes_json", f"Say {name}", tools=_tools(ISSUE)
    )
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"] == TEXTS[name]
    assert "tool_calls" not in choice["message"]


def test_a_demanded_call_brings_no_thoughts_where_the_template_has_none(server: Served) -> None:
    answer = _asked(
        server, "/v1/chat/completions", "thoughtless", "Hi", tools=_tools(ISSUE),
        tool_choice="required", max_tokens=1000,
    )  # fmt: skip
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert not choice["message"].get("reasoning_content")
    assert not choice["message"]["content"]
