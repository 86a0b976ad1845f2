"""Every keyword of JSON Schema is enforced: by the grammar, or by the check and named."""

from typing import Any, Literal

import msgspec
import pytest

from gateway.constraints.checking import fault_of
from gateway.constraints.keywords import KEYWORDS
from gateway.terms.errors import InvalidRequest
from tests.gateway.constraints.machine import Machine, schema

NO_A = {"not": {"required": ["a"]}}
NUMBERS = {"type": "array", "prefixItems": [{"type": "number"}]}


class Row(msgspec.Struct, frozen=True):
    """`right` satisfies `schema`, `wrong` doesn't, which `by` sees to."""

    schema: Any
    right: str
    wrong: str
    by: Literal["grammar", "check"] = "grammar"


ROWS: dict[str, Row] = {
    "multipleOf": Row({"multipleOf": 0.5}, "1.5", "1.2"),
    "minProperties": Row({"minProperties": 1}, '{"a": 1}', "{}"),
    "maxProperties": Row({"maxProperties": 1}, '{"a": 1}', '{"a": 1, "b": 1}'),
    "uniqueItems": Row({"uniqueItems": True}, "[1, 2]", "[1, 1]", "check"),
    "maxLength": Row({"maxLength": 2}, '"é😀"', '"abc"'),
    "minLength": Row({"minLength": 2}, '"é😀"', '"😀"'),
    "pattern": Row({"pattern": "b+"}, '"abb"', '"a"'),
    "format": Row({"format": "date"}, '"2024-02-29"', '"2024-02-30"'),
    "minItems": Row({"minItems": 1}, "[1]", "[]"),
    "maxItems": Row({"maxItems": 1}, "[1]", "[1, 2]"),
    "minimum": Row({"minimum": 3}, "3", "2.9"),
    "maximum": Row({"maximum": 3}, "3", "3.1"),
    "exclusiveMinimum": Row({"exclusiveMinimum": 3}, "3.1", "3"),
    "exclusiveMaximum": Row({"exclusiveMaximum": 3}, "2.9", "3"),
    "required": Row({"required": ["a"]}, '{"a": 1}', '{"b": 1}'),
    "dependentRequired": Row(
        {"dependentRequired": {"a": ["b"]}}, '{"a": 1, "b": 1}', '{"a": 1}', "check"
    ),
    "patternProperties": Row(
        {"patternProperties": {"^n": {"type": "null"}}}, '{"n": null}', '{"n": 1}'
    ),
    "additionalProperties": Row({"additionalProperties": False}, "{}", '{"a": 1}'),
    "propertyNames": Row({"propertyNames": {"maxLength": 1}}, '{"a": 1}', '{"ab": 1}', "check"),
    "unevaluatedProperties": Row(
        {"allOf": [{"properties": {"a": True}}], "unevaluatedProperties": {"type": "null"}},
        '{"a": 1}', '{"b": 1}', "check",
    ),
    "contains": Row({"contains": {"type": "null"}}, "[1, null]", "[1]", "check"),
    "minContains": Row(
        {"contains": {"type": "null"}, "minContains": 2}, "[null, null]", "[null]", "check"
    ),
    "maxContains": Row(
        {"contains": {"type": "null"}, "maxContains": 1}, "[null]", "[null, null]", "check"
    ),
    "unevaluatedItems": Row({**NUMBERS, "unevaluatedItems": False}, "[1]", "[1, 2]", "check"),
    "prefixItems": Row({"prefixItems": [{"type": "null"}]}, "[null, 1]", "[1]"),
    "items": Row({"items": {"type": "null"}}, "[null, null]", "[1]"),
    "properties": Row({"properties": {"a": {"type": "null"}}}, '{"a": null}', '{"a": 1}'),
    "not": Row(NO_A, '{"b": 1}', '{"a": 1}', "check"),
    "if": Row({"if": {"type": "array"}, "then": {"maxItems": 1}}, "[1]", "[1, 2]", "check"),
    "then": Row({"if": True, "then": {"type": "null"}}, "null", "1", "check"),
    "else": Row({"if": False, "else": {"type": "null"}}, "null", "1", "check"),
    "dependentSchemas": Row(
        {"dependentSchemas": {"a": {"required": ["b"]}}}, '{"a": 1, "b": 1}', '{"a": 1}', "check"
    ),
    "oneOf": Row({"oneOf": [{"type": "integer"}, {"minimum": 3}]}, "1", "4", "check"),
    "allOf": Row({"allOf": [{"minimum": 3}, {"maximum": 4}]}, "3", "5"),
    "anyOf": Row({"anyOf": [{"type": "null"}, {"type": "array"}]}, "null", "1"),
    "$ref": Row({"$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}, "null", "1"),
    "enum": Row({"enum": [1, "a", [None]]}, "[null]", '"b"'),
    "const": Row({"const": {"a": [1]}}, '{"a": [1]}', '{"a": [2]}'),
    "type": Row({"type": ["null", "array"]}, "null", "1"),
}  # fmt: skip


def test_the_table_is_tested_whole() -> None:
    assert ROWS.keys() == KEYWORDS.keys()


@pytest.mark.parametrize("keyword", ROWS)
def test_a_keyword_is_enforced(keyword: str) -> None:
    row = ROWS[keyword]
    made = schema(row.schema)
    machine = Machine(made.text)
    assert made.check is not None

    assert machine.takes(row.right)
    assert fault_of(made.check, row.right) is None
    assert fault_of(made.check, row.wrong) is not None
    assert machine.takes(row.wrong) == (row.by == "check")
    assert bool(made.relaxed) == (row.by == "check")


@pytest.mark.parametrize("keyword", [each for each, row in ROWS.items() if row.by == "check"])
def test_a_strict_client_is_reported_what_cant_be_enforced_and_where(keyword: str) -> None:
    whole = {"type": "object", "properties": {"size": ROWS[keyword].schema}}
    named = KEYWORDS[keyword].became or r"contains|if"
    pattern = rf'\$\.properties\.size.*: "({named}|.*)" can\'t be enforced'

    with pytest.raises(InvalidRequest, match=pattern):
        schema(whole, strict=True)


UNIQUE = {"type": "array", "uniqueItems": True}
NAMED: list[tuple[Any, str, bool]] = [
    ({"uniqueItems": True}, '$: "uniqueItems"', True),
    ({"properties": {"a b": NO_A}}, '$.properties["a b"]: "not"', True),
    ({"items": [NO_A]}, '$.items[0]: "not"', True),
    ({"format": "topic"}, '$: "format"', False),
    ({"pattern": "a(?=b)"}, '$: "pattern"', False),
    ({"patternProperties": {"a": True, "b": True}}, '$: "patternProperties"', True),
    ({"multipleOf": 12.3457}, '$: "multipleOf"', True),
    ({"allOf": [{"multipleOf": 991}, {"multipleOf": 997}]}, '$.allOf[1]: "multipleOf"', True),
    ({"maxLength": 10**12}, '$: "maxLength"', True),
    ({"oneOf": [{"type": "null"}, UNIQUE]}, '$.oneOf[1]: "uniqueItems"', True),
    ({"$ref": "#/$defs/a", "$defs": {"a": NO_A, "unused": NO_A}}, '$.$defs.a: "not"', True),
    ({"$schema": "http://json-schema.org/draft-04/schema#", "const": 1}, '$: "const"', False),
]


@pytest.mark.parametrize(("document", "named", "is_checked"), NAMED)
def test_what_is_relaxed_is_named_once_with_its_place(
    document: Any, named: str, is_checked: bool
) -> None:
    (note,) = schema(document).relaxed

    assert str(note).startswith(f"{named} relaxed to ")
    assert note.checked is is_checked


def test_a_number_s_format_is_no_relaxation() -> None:
    assert schema({"type": "integer", "format": "int32"}).relaxed == ()


def test_what_a_client_leaves_out_of_a_negation_is_named_once() -> None:
    (note,) = schema({"not": {"not": {"uniqueItems": True}}}).relaxed

    assert note.keyword == "not"


NULL = {"type": "null"}
DRAFTS: list[tuple[Any, str, str]] = [
    ({"items": [{"type": "null"}], "additionalItems": False}, "[null]", "[null, 1]"),
    ({"minimum": 3, "exclusiveMinimum": True}, "3.1", "3"),
    ({"$ref": "#/definitions/a", "definitions": {"a": {"type": "null"}}}, "null", "1"),
    ({"$ref": "#a", "$defs": {"a": {"$anchor": "a", "type": "null"}}}, "null", "1"),
    ({"$id": "http://a/b", "$ref": "b#/$defs/a~1%25", "$defs": {"a/%": NULL}}, "null", "1"),
    ({"$ref": "c", "$defs": {"x": {"$id": "c", "type": "null"}}}, "null", "1"),
    ({"properties": {"a": {"$recursiveRef": "#"}}, "type": "object"}, '{"a": {}}', '{"a": 1}'),
    ({"properties": {"a": {"$ref": "#"}}, "type": "object"}, '{"a": {"a": {}}}', '{"a": {"a": 1}}'),
    ({"type": "object", "unevaluatedProperties": False}, "{}", '{"a": 1}'),
    ({"type": "string", "pattern": "^(?=.*x)[a-z]+$"}, '"axb"', '"ab"'),
    ({"type": "string", "nullable": True}, "null", "1"),
    ({"$ref": "#/$defs/a", "nullable": True, "$defs": {"a": {"enum": ["b"]}}}, "null", '"c"'),
]  # fmt: skip


@pytest.mark.parametrize(("document", "right", "wrong"), DRAFTS)
def test_every_draft_s_words_are_understood(document: Any, right: str, wrong: str) -> None:
    made = schema(document)
    machine = Machine(made.text)
    assert made.check is not None

    assert (machine.takes(right), machine.takes(wrong)) == (True, False)
    assert fault_of(made.check, right) is None
    assert fault_of(made.check, wrong) is not None


def test_up_to_draft_7_a_reference_stands_alone() -> None:
    document = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$ref": "#/definitions/a",
        "type": "string",
        "definitions": {"a": {"type": "null"}},
    }

    assert Machine(schema(document).text).takes("null")


def test_members_are_written_in_the_order_of_the_properties() -> None:
    last = {"required": ["b"], "properties": {"b": {"minimum": 1}}}
    document = {"anyOf": [last, {"type": "object"}], "properties": {"a": True, "b": True}}

    assert Machine(schema({"type": "object", **document}).text).takes('{"a": 1, "b": 1}')


WRONG: list[tuple[Any, str]] = [
    ({"items": {"$ref": "http://x/y"}}, r"\$\.items: \"\$ref\" 'http://x/y' leads out"),
    ({"$ref": "#/no"}, "leads out"),
    ({"$ref": "#/enum", "enum": [1]}, "leads to no schema"),
    ({"$ref": "#"}, "no JSON that has an end satisfies it"),
    ({"items": {"type": "text"}}, r'\$\.items: "type" must be one of array'),
    ({"items": {"required": "a"}}, r'\$\.items: "required" must be a list of texts'),
    ({"items": 3}, '"items": a schema is an object'),
    ({"minLength": -1}, "zero or more"),
    ({"multipleOf": 0}, "above zero"),
    ({"type": "integer", "minimum": 2, "maximum": 1}, "no JSON satisfies it"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "message"), WRONG)
def test_what_is_no_schema_names_the_place(document: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        schema(document)
