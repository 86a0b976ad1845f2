"""What clients ask of the output's shape: each server's spelling of it."""

from typing import Any

import msgspec
import pytest

from backends.protocol import (
    Choices,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    Shape,
    StructuralTags,
)
from tests.gateway.dialects.openai.bodies import chat, chat_fault, text

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
ENCODED = msgspec.json.encode(SCHEMA)
TAGS = {"type": "structural_tag", "structures": [], "triggers": []}


def asked(**fields: Any) -> Shape | None:
    shape = chat(**fields).request.answering.shape
    assert text(**fields).request.answering.shape == shape
    return shape


def schema(field: str, *, strict: bool = False) -> JsonSchema:
    return JsonSchema(schema=ENCODED, strict=strict, field=field)


@pytest.mark.parametrize(
    ("sent", "shape"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, JsonObject()),
        ({"type": "json"}, JsonObject()),  # TabbyAPI
        ({"type": "json", "value": SCHEMA}, schema("response_format.value")),  # TGI
        ({"type": "json_object", "value": SCHEMA}, schema("response_format.value")),
        ({"type": "json_object", "schema": SCHEMA}, schema("response_format.schema")),  # llama.cpp
        ({"type": "json_schema", "schema": SCHEMA}, schema("response_format.schema")),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
            schema("response_format.json_schema.schema"),
        ),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}},
            schema("response_format.json_schema.schema", strict=True),
        ),
        (
            {"type": "json_schema", "json_schema": SCHEMA},
            schema("response_format.json_schema"),
        ),
        ({"type": "regex", "value": "a+"}, Regex(pattern="a+", field="response_format.value")),
        ({"type": "regex", "pattern": "a"}, Regex(pattern="a", field="response_format.pattern")),
        (
            {"type": "grammar", "grammar": 'root ::= "a"'},
            Grammar(text='root ::= "a"', field="response_format.grammar"),
        ),
        (TAGS, StructuralTags(request=msgspec.json.encode(TAGS), field="response_format")),
    ],
)
def test_response_format(sent: dict[str, Any], shape: Shape | None) -> None:
    assert asked(response_format=sent) == shape


@pytest.mark.parametrize("name", ["json_schema", "guided_json"])
def test_a_schema_by_itself_as_text_and_wrapped(name: str) -> None:
    assert asked(**{name: SCHEMA}) == schema(name)
    assert asked(**{name: ENCODED.decode()}) == schema(name)
    wrapped = {"name": "x", "strict": True, "schema": SCHEMA}
    assert asked(**{name: wrapped}) == schema(f"{name}.schema", strict=True)


def test_a_schema_that_describes_a_name_is_none_that_is_wrapped() -> None:
    described = {"type": "object", "properties": {"name": {}, "schema": {}}}
    assert asked(json_schema=described) == JsonSchema(
        schema=msgspec.json.encode(described), field="json_schema"
    )


@pytest.mark.parametrize("name", ["regex_pattern", "guided_regex", "regex"])
def test_a_regex(name: str) -> None:
    assert asked(**{name: "[a-z]+"}) == Regex(pattern="[a-z]+", field=name)


@pytest.mark.parametrize("name", ["grammar", "grammar_string", "guided_grammar", "ebnf"])
def test_a_grammar_and_the_object_of_tgi(name: str) -> None:
    assert asked(**{name: "start: /a/"}) == Grammar(text="start: /a/", field=name)
    assert asked(**{name: {"type": "json", "value": SCHEMA}}) == schema(f"{name}.value")
    assert asked(**{name: {"type": "regex", "value": "a"}}) == Regex(
        pattern="a", field=f"{name}.value"
    )


def test_choices() -> None:
    assert asked(guided_choice=["a", "b"]) == Choices(texts=("a", "b"))


@pytest.mark.parametrize(
    ("sent", "shape"),
    [
        ({"json": SCHEMA}, schema("structured_outputs.json")),
        ({"json_object": True}, JsonObject(field="structured_outputs.json_object")),
        ({"json_object": False}, None),
        ({"regex": "a"}, Regex(pattern="a", field="structured_outputs.regex")),
        ({"choice": ["a"]}, Choices(texts=("a",), field="structured_outputs.choice")),
        ({"grammar": "start: /a/"}, Grammar(text="start: /a/", field="structured_outputs.grammar")),
    ],
)
def test_the_object_of_vllm(sent: dict[str, Any], shape: Shape | None) -> None:
    assert asked(structured_outputs=sent) == shape


def test_the_same_shape_under_two_names_is_one() -> None:
    assert asked(json_schema=SCHEMA, guided_json=SCHEMA) == schema("json_schema")


def test_two_shapes_contradict_each_other() -> None:
    fault = chat_fault(json_schema=SCHEMA, regex_pattern="a")
    assert fault.param == "regex_pattern"
    assert "json_schema" in fault.message


def test_sglang_s_fields_clash_with_each_other() -> None:
    fault = chat_fault(regex="a", ebnf='root ::= "a"')
    assert fault.param == "ebnf"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": 7}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": 3}}},
            "response_format.json_schema.schema",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "", "strict": 1}}},
            "response_format.json_schema.strict",
        ),
        ({"json_schema": "{"}, "json_schema"),
        ({"json_schema": [1]}, "json_schema"),
        ({"regex_pattern": 1}, "regex_pattern"),
        ({"grammar": {"type": "yaml", "value": 1}}, "grammar"),
        ({"guided_choice": "a"}, "guided_choice"),
        ({"guided_choice": ["a", 1]}, "guided_choice[1]"),
        ({"structured_outputs": [1]}, "structured_outputs"),
        ({"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object"),
        ({"structural_tag": [1]}, "structural_tag"),
    ],
)
def test_a_fault_names_its_field(fields: dict[str, Any], param: str) -> None:
    assert chat_fault(**fields).param == param
