"""Bare text becomes JSON of the declared type; what fits none is a string, never lost."""

import json
from typing import Any

import pytest

from gateway.splitter.payloads.coercion import (
    Declared,
    coerce,
    guess,
    items_of,
    property_of,
    types_of,
)


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({}, {"string"}),
        ({"type": "integer"}, {"integer"}),
        ({"type": ["number", "null"]}, {"number", "null"}),
        ({"type": ["number", 5]}, {"number"}),
        ({"type": "str"}, {"string"}),
        ({"type": "integer", "nullable": True}, {"integer", "null"}),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}),
        ({"oneOf": [{"type": "boolean"}, True]}, {"boolean"}),
        ({"allOf": "wrong"}, {"string"}),
        ({"enum": ["a", "b"]}, {"string"}),
        ({"enum": [1, 2.5, None, True]}, {"integer", "number", "null", "boolean"}),
        ({"const": [1]}, {"array"}),
        ({"properties": {}}, {"object"}),
        ({"items": {}}, {"array"}),
    ],
)
def test_the_declared_types(schema: dict[str, Any], types: set[str]) -> None:
    assert types_of(schema) == types


def test_references_are_followed() -> None:
    schema = {
        "$defs": {"level": {"type": "integer"}, "same": {"$ref": "#/$defs/level"}},
        "properties": {
            "a": {"$ref": "#/$defs/same"},
            "b": {"anyOf": [{"$ref": "#/$defs/level"}, {"type": "null"}]},
            "c": {"items": {"$ref": "#/$defs/level"}},
            "d": {"$ref": "#/$defs/missing"},
            "e": {"$ref": "#/$defs/level/type"},
        },
    }
    assert types_of(property_of(schema, "a")) == {"integer"}
    assert types_of(property_of(schema, "b")) == {"integer", "null"}
    assert types_of(items_of(property_of(schema, "c"))) == {"integer"}
    assert types_of(property_of(schema, "d")) == {"string"}
    assert types_of(property_of(schema, "e")) == {"string"}


def test_references_in_a_circle_end() -> None:
    schema = {"$defs": {"a": {"$ref": "#/$defs/a"}}, "properties": {"x": {"$ref": "#/$defs/a"}}}
    assert types_of(property_of(schema, "x")) == {"string"}
    nested: dict[str, Any] = {"anyOf": []}
    nested["anyOf"].append(nested)
    assert types_of(nested) == {"string"}


def test_a_schema_that_branches_without_end_is_left_at_some_point() -> None:
    branches = [{"$ref": "#/$defs/more"}] * 100
    schema = {"$defs": {"more": {"anyOf": branches}}, "properties": {"x": {"anyOf": branches}}}
    assert types_of(property_of(schema, "x")) == {"string"}


def test_what_is_no_schema_declares_nothing() -> None:
    assert property_of({"properties": {"a": True}}, "a") == {}
    assert property_of({"properties": []}, "a") == {}
    assert items_of({}) == {}


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("5", {"integer"}, 5),
        (" -5 ", {"integer"}, -5),
        ("+5", {"integer"}, 5),
        ("007", {"integer"}, 7),
        ("3.0", {"integer"}, 3),
        ("3.5", {"integer"}, "3.5"),
        ("three", {"integer"}, "three"),
        ("1.5", {"number"}, 1.5),
        ("2", {"number"}, 2),
        ("1e3", {"number"}, 1000.0),
        (".5", {"number"}, 0.5),
        ("-0", {"number"}, 0),
        ("nan", {"number"}, "nan"),
        ("inf", {"number"}, "inf"),
        ("1_000", {"number"}, "1_000"),
        ("True", {"boolean"}, True),
        ("0", {"boolean"}, False),
        ("yes", {"boolean"}, "yes"),
        ("null", {"string", "null"}, None),
        ("None", {"null", "integer"}, None),
        ("nil", {"string", "null"}, "nil"),
        ("none", {"string", "null"}, "none"),
        ("5", {"string", "integer"}, 5),
        ('{"a": [1]}', {"object"}, {"a": [1]}),
        ("{'a': True, 'b': None}", {"object"}, {"a": True, "b": None}),
        ("[1, 2]", {"object"}, "[1, 2]"),
        ("[1, 2]", {"object", "array"}, [1, 2]),
        ("['a', \"b\"]", {"array"}, ["a", "b"]),
        ("{1, 2}", {"object"}, "{1, 2}"),
        ("['a'] and more", {"array"}, "['a'] and more"),
        ("[5days]", {"array"}, "[5days]"),
        ("[float('inf')]", {"array"}, "[float('inf')]"),
        ("[NaN]", {"array"}, "[NaN]"),
        ("{'a': [1]", {"object"}, "{'a': [1]"),
        ("rye, wheat", {"array"}, "rye, wheat"),
        (' "quoted" ', {"string", "null"}, ' "quoted" '),
        ("[" * 100_000, {"array"}, "[" * 100_000),
    ],
)
def test_the_value(text: str, types: set[str], value: Any) -> None:
    assert json.loads(coerce(text, frozenset(types))) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("5", 5), (' {"a": null} ', {"a": None}), ("Oslo", "Oslo"), ("NaN", "NaN"), ('"a"', "a")],
)
def test_a_value_that_has_no_type_is_the_json_it_is(text: str, value: Any) -> None:
    assert json.loads(guess(text)) == value


@pytest.mark.parametrize(
    "schema",
    [
        {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/point"}]},
        {"oneOf": [{"type": "string"}, {"anyOf": [{"$ref": "#/$defs/point"}]}]},
    ],
)
def test_what_an_alternative_declares_of_a_property_counts(schema: dict[str, Any]) -> None:
    point = {"properties": {"x": {"type": "integer"}, "tags": {"items": {"type": "boolean"}}}}
    declared = Declared({**schema, "$defs": {"point": point}})
    assert declared.property("x").types == {"integer"}
    assert declared.property("tags").items().types == {"boolean"}
    assert declared.property("y").types == {"string"}
