"""The finished answer is checked against all of its schema, in bounded time."""

import itertools
import json
from typing import Any

import pytest

from gateway.constraints.checking import WORK, fault_of
from gateway.constraints.grammars import Check
from tests.gateway.constraints.machine import cases, schema

UNCHECKED = "not checked: "
NOT_JSON = "not JSON"


def failed(place: str, keyword: str) -> str:
    return f'{place}: "{keyword}" is not satisfied'


def fails(fault: str | None) -> bool:
    return fault is not None and not fault.startswith(UNCHECKED)


def checked(document: Any, answer: Any) -> str | None:
    check = schema(document).check
    assert check is not None
    return fault_of(check, json.dumps(answer))


def test_what_satisfies_a_schema_from_the_field_passes_and_nothing_else() -> None:
    wrong = []
    for case in cases():
        check = schema(case.schema).check
        assert check is not None
        wrong += [case.id for one in case.valid if fails(fault_of(check, json.dumps(one)))]
        wrong += [case.id for one in case.invalid if fault_of(check, json.dumps(one)) is None]
    assert wrong == []


PROPERTY = {"properties": {"a": {"type": "integer"}}}
EITHER = {"anyOf": [{"properties": {"b": True}, "required": ["b"]}, {"properties": {"c": True}}]}
CLOSED = {**PROPERTY, **EITHER, "unevaluatedProperties": False}
CASES: list[tuple[Any, Any, str | None]] = [
    ({"uniqueItems": True}, [1, True, "1", [1], {"a": 1}, 0, False], None),
    ({"uniqueItems": True}, [{"a": 1, "b": 2}, {"b": 2, "a": 1.0}], failed("$", "uniqueItems")),
    ({"uniqueItems": False}, [1, 1], None),
    ({"multipleOf": 0.1}, 0.3, None),
    ({"multipleOf": 0.1}, 0.35, failed("$", "multipleOf")),
    ({"properties": {"a": {"pattern": "^b"}}}, {"a": "b"}, None),
    ({"properties": {"a": {"pattern": "^b"}}}, {"a": "ab"}, failed("$.a", "pattern")),
    ({"pattern": "^(?=.*x)(?!a)\\w+$"}, "bx", None),
    ({"pattern": "^(?=.*x)(?!a)\\w+$"}, "ax", failed("$", "not")),
    ({"pattern": "^(?=.*x)(?!a)\\w+$"}, "b", failed("$", "pattern")),
    ({"format": "date"}, "2024-12-32", failed("$", "format")),
    ({"format": "topic"}, "anything", None),
    ({"patternProperties": {"^n": {"type": "null"}}}, {"n1": None, "m": 1}, None),
    ({"patternProperties": {"^n": {"type": "null"}}}, {"n1": 1}, failed("$.n1", "type")),
    ({"patternProperties": {"^n": True}, "additionalProperties": False}, {"n": 1}, None),
    ({**PROPERTY, "additionalProperties": False}, {"b": 1}, failed("$.b", "additionalProperties")),
    (CLOSED, {"a": 1, "b": 1}, None),
    (CLOSED, {"d": 1}, failed("$.d", "unevaluatedProperties")),
    ({"$ref": "#/$defs/x", "$defs": {"x": PROPERTY}}, {"a": ""}, failed("$.a", "type")),
    (
        {"$ref": "#/$defs/x", "$defs": {"x": PROPERTY}, "unevaluatedProperties": False},
        {"a": 1, "b": 1},
        failed("$.b", "unevaluatedProperties"),
    ),
    ({"items": {"$ref": "#"}, "type": "array"}, [[[]], []], None),
    ({"items": {"$ref": "#"}, "type": "array"}, [[[1]]], failed("$[0][0][0]", "type")),
    ({"not": {"required": ["x y"]}}, {"x y": 1}, failed("$", "not")),
    ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, failed("$", "maxLength")),
    ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, {"a": 1}, failed("$", "required")),
    ({"dependencies": {"a": ["b"]}}, {"a": 1}, failed("$", "dependentRequired")),
    ({"contains": {"type": "null"}, "maxContains": 1}, [None, None], failed("$", "maxContains")),
    ({"oneOf": [{"minimum": 1}, {"maximum": 3}]}, 2, failed("$", "oneOf")),
]  # fmt: skip


@pytest.mark.parametrize(("document", "answer", "expected"), CASES)
def test_each_keyword_is_checked(document: Any, answer: Any, expected: str | None) -> None:
    assert checked(document, answer) == expected


def test_what_is_no_json_fails() -> None:
    check = Check(schema=True)

    assert fault_of(check, '{"a": ') == NOT_JSON
    assert fault_of(check, "[NaN]") == NOT_JSON
    assert fault_of(check, "1") is None


def test_a_number_beyond_floats_is_one() -> None:
    assert fault_of(Check(schema={"type": "number", "minimum": 3}), "1e999") is None
    assert (fault_of(Check(schema={"multipleOf": 3}), "1e999") or "").startswith(UNCHECKED)
    assert (fault_of(Check(schema=True), "9" * 5_000) or "").startswith(UNCHECKED)


def test_half_a_surrogate_pair_is_unchecked_where_it_matters() -> None:
    assert (fault_of(Check(schema={"pattern": "a"}), '"\\ud800"') or "").startswith(UNCHECKED)


def test_what_is_to_be_said_of_an_answer() -> None:
    check = Check(schema={"items": {"type": "null"}})

    assert fault_of(check, "[null]") is None
    assert fault_of(check, "[1]") == '$[0]: "type" is not satisfied'
    assert fault_of(check, "[") == "not JSON"
    behind = fault_of(Check(schema={"pattern": "(?<=a)b"}), '"b"')
    assert behind is not None
    assert behind.startswith("not checked: the pattern '(?<=a)b' can't be used: look-around")


def test_what_cant_be_checked_is_said() -> None:
    lookbehind = {"not": {"pattern": "(?<=a)b"}}

    assert (checked(lookbehind, "ab") or "").startswith(UNCHECKED)


TWICE: dict[str, Any] = {
    f"d{at}": {"allOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(60)
}
REFERENCES = {"$ref": "#/$defs/d0", "$defs": {**TWICE, "d60": {"type": "integer"}}}
WIDE = {"anyOf": [{"items": {"const": at}} for at in range(500)]}
NULLS = {"anyOf": [{"type": "null"}] * 5_000}
LOOP = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
NESTED = {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}}
NAMES = {"patternProperties": {"^(a+)+$": False}}
HOSTILE: dict[str, tuple[Any, Any, str]] = {
    "exponential regex": ({"pattern": "^(a+)+$"}, "a" * 50_000 + "b", "fails"),
    "exponential name": (
        {"patternProperties": {"^(a+)+$": False}},
        {"a" * 50_000 + "b": 1},
        "passes",
    ),
    "exponential references": (REFERENCES, 1, "is unchecked"),
    "a circle of references": (LOOP, 1, "is unchecked"),
    "many alternatives, long answer": (WIDE, list(range(20_000)), "is unchecked"),
    "long messages": (NULLS, ["x" * 100_000], "is unchecked"),
    "items without an order": ({"uniqueItems": True}, [[at, {}] for at in range(20_000)], "passes"),
    "deep answer": (NESTED, json.loads("[" * 900 + "]" * 900), "is unchecked"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_and_answer_end(name: str) -> None:
    document, answer, expected = HOSTILE[name]

    fault = fault_of(Check(schema=document), json.dumps(answer))
    found = "passes" if fault is None else "fails" if fails(fault) else "is unchecked"
    assert found == expected


def test_work_is_counted_and_not_how_long_a_pause_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A garbage collection counts as the thread's own time."""
    clock = itertools.count(0, 0.03)
    monkeypatch.setattr("gateway.constraints.checking.time.thread_time", lambda: next(clock))
    check = Check({"type": "object", "properties": {"city": {"type": "string"}}})
    assert fault_of(check, '{"city": "Oslo"}', WORK // 10) is None
    assert fault_of(check, '{"city": "Oslo"}', 1) == "not checked: the check takes too long"
