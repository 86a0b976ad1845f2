"""Shapes that nothing satisfies, or that are too wide, are a 400 that names the field, before an
answer begins; a tool that has one is left free, and the chat answered.
"""

from collections.abc import Iterator
from typing import Any

import pytest

import bundled
from tests.served import Served, served

CHAT = "/v1/chat/completions"
SELF = {"$ref": "#/$defs/a"}
NODE = {"type": "object", "properties": {"next": SELF}, "required": ["next"]}
ENDLESS: dict[str, Any] = {
    "itself": {
        "type": "object",
        "properties": {"a": {"$ref": "#/properties/a"}},
        "required": ["a"],
    },
    "each other": {**SELF, "$defs": {"a": {"$ref": "#/$defs/b"}, "b": SELF}},
    "one of itself": {**SELF, "$defs": {"a": {"anyOf": [SELF]}}},
    "a list of itself": {**SELF, "$defs": {"a": {"type": "array", "minItems": 1, "items": SELF}}},
    "an object of itself": {**SELF, "$defs": {"a": NODE}},
}
DOUBLED = "\n".join(f"a{number}: a{number + 1} a{number + 1}" for number in range(40))
GRAMMARS = {
    "doubled": f'start: a0\n{DOUBLED}\na40: "x"',
    "counted": 'start: "a"~1000000',
    "nested": 'start: (((("a"~100)~100)~100)~100)',
    "no end": 'start: "x" a\na: "q" a',
}
WIDE = {
    "type": "object",
    "properties": {f"property_{number}": {"type": "string"} for number in range(1_000)},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    model = {"name": "tiny", "path": str(bundled.GGUF), "preload": True}
    with served(tmp_path_factory.mktemp("served"), {"models": [model]}) as server:
        server.log.wait_for("model loaded")
        yield server


def asked(server: Served, **more: Any) -> Any:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 24}
    return server.client.post(CHAT, json={**body, **more})


def test_a_shape_that_nothing_satisfies_is_a_400(server: Served) -> None:
    schemas = {
        f"{name}, {'strict' if strict else 'loose'}": {
            "name": "s",
            "schema": schema,
            "strict": strict,
        }
        for name, schema in ENDLESS.items()
        for strict in (True, False)
    }
    for name, schema in schemas.items():
        for streamed in (True, False):
            form = {"type": "json_schema", "json_schema": schema}
            answer = asked(server, response_format=form, stream=streamed)
            assert answer.status_code == 400, (name, answer.text)
            assert "response_format" in answer.json()["error"]["param"]


def test_a_grammar_that_is_too_wide_or_has_no_end_is_a_400(server: Served) -> None:
    for name, grammar in GRAMMARS.items():
        answer = asked(server, grammar=grammar, stream=True)
        assert answer.status_code == 400, (name, answer.text)
    answer = asked(server, regex_pattern="((a{100}){100}){100}")
    assert answer.status_code == 400, answer.text


def test_a_wide_object_is_relaxed_and_said(server: Served) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": WIDE}}
    answer = asked(server, response_format=form)
    assert answer.status_code == 200, answer.text
    assert "properties" in answer.headers["x-roundhouse-relaxed"]


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_tool_that_cannot_be_held_is_left_free(choice: str, server: Served) -> None:
    for name, schema in ENDLESS.items():
        tools = [
            {"type": "function", "function": {"name": "odd", "parameters": schema}},
            {"type": "function", "function": {"name": "sound", "parameters": {"type": "object"}}},
        ]
        answer = asked(server, tools=tools, tool_choice=choice)
        assert answer.status_code == 200, (name, answer.text)
        assert "tools.odd" in answer.headers["x-roundhouse-relaxed"], name
