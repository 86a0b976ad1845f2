"""The finished answer is checked against all of its schema, in bounded time."""

import itertools
import json
from typing import Any

import pytest

from gateway.constraints.checking import (
    WORK,
    Failed,
    Passed,
    Unchecked,
    Verdict,
    fault_of,
    verdict,
)
from gateway.constraints.grammars import Check
from tests.gateway.constraints.machine import cases, schema


def checked(document: Any, answer: Any) -> Verdict:
    check = schema(document).check
    assert check is not None
    return verdict(check, json.dumps(answer))


def test_what_satisfies_a_schema_from_the_field_passes_and_nothing_else() -> None:
    wrong = []
    for case in cases():
        check = schema(case.schema).check
        assert check is not None
        wrong += [
            case.id for one in case.valid if isinstance(verdict(check, json.dumps(one)), Failed)
        ]
        wrong += [case.id for one in case.invalid if verdict(check, json.dumps(one)) == Passed()]
    assert wrong == []


PROPERTY = {"properties": {"a": {"type": "integer"}}}
EITHER = {"anyOf": [{"properties": {"b": True}, "required": ["b"]}, {"properties": {"c": True}}]}
CLOSED = {**PROPERTY, **EITHER, "unevaluatedProperties": False}
CASES: list[tuple[Any, Any, Verdict]] = [
    ({"uniqueItems": True}, [1, True, "1", [1], {"a": 1}, 0, False], Passed()),
    ({"uniqueItems": True}, [{"a": 1, "b": 2}, {"b": 2, "a": 1.0}], Failed("$", "uniqueItems")),
    ({"uniqueItems": False}, [1, 1], Passed()),
    ({"multipleOf": 0.1}, 0.3, Passed()),
    ({"multipleOf": 0.1}, 0.35, Failed("$", "multipleOf")),
    ({"properties": {"a": {"pattern": "^b"}}}, {"a": "b"}, Passed()),
    ({"properties": {"a": {"pattern": "^b"}}}, {"a": "ab"}, Failed("$.a", "pattern")),
    ({"pattern": "^(?=.*x)(?!a)\\w+$"}, "bx", Passed()),
    ({"pattern": "^(?=.*x)(?!a)\\w+$"}, "ax", Failed("$", "not")),
    ({"pattern": "^(?=.*x)(?!a)\\w+$"}, "b", Failed("$", "pattern")),
    ({"format": "date"}, "2024-12-32", Failed("$", "format")),
    ({"format": "topic"}, "anything", Passed()),
    ({"patternProperties": {"^n": {"type": "null"}}}, {"n1": None, "m": 1}, Passed()),
    ({"patternProperties": {"^n": {"type": "null"}}}, {"n1": 1}, Failed("$.n1", "type")),
    ({"patternProperties": {"^n": True}, "additionalProperties": False}, {"n": 1}, Passed()),
    ({**PROPERTY, "additionalProperties": False}, {"b": 1}, Failed("$.b", "additionalProperties")),
    (CLOSED, {"a": 1, "b": 1}, Passed()),
    (CLOSED, {"d": 1}, Failed("$.d", "unevaluatedProperties")),
    ({"$ref": "#/$defs/x", "$defs": {"x": PROPERTY}}, {"a": ""}, Failed("$.a", "type")),
    (
        {"$ref": "#/$defs/x", "$defs": {"x": PROPERTY}, "unevaluatedProperties": False},
        {"a": 1, "b": 1},
        Failed("$.b", "unevaluatedProperties"),
    ),
    ({"items": {"$ref": "#"}, "type": "array"}, [[[]], []], Passed()),
    ({"items": {"$ref": "#"}, "type": "array"}, [[[1]]], Failed("$[0][0][0]", "type")),
    ({"not": {"required": ["x y"]}}, {"x y": 1}, Failed("$", "not")),
    ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, Failed("$", "maxLength")),
    ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, {"a": 1}, Failed("$", "required")),
    ({"dependencies": {"a": ["b"]}}, {"a": 1}, Failed("$", "dependentRequired")),
    ({"contains": {"type": "null"}, "maxContains": 1}, [None, None], Failed("$", "maxContains")),
    ({"oneOf": [{"minimum": 1}, {"maximum": 3}]}, 2, Failed("$", "oneOf")),
]  # fmt: skip


@pytest.mark.parametrize(("document", "answer", "expected"), CASES)
def test_each_keyword_is_checked(document: Any, answer: Any, expected: Verdict) -> None:
    assert checked(document, answer) == expected


def test_what_is_no_json_fails() -> None:
    check = Check(schema=True)

    assert verdict(check, '{"a": ') == Failed("$", "")
    assert verdict(check, "[NaN]") == Failed("$", "")
    assert verdict(check, "1") == Passed()


def test_a_number_beyond_floats_is_one() -> None:
    assert verdict(Check(schema={"type": "number", "minimum": 3}), "1e999") == Passed()
    assert isinstance(verdict(Check(schema={"multipleOf": 3}), "1e999"), Unchecked)
    assert isinstance(verdict(Check(schema=True), "9" * 5_000), Unchecked)


def test_half_a_surrogate_pair_is_unchecked_where_it_matters() -> None:
    assert isinstance(verdict(Check(schema={"pattern": "a"}), '"\\ud800"'), Unchecked)


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

    assert isinstance(checked(lookbehind, "ab"), Unchecked)


TWICE: dict[str, Any] = {
    f"d{at}": {"allOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(60)
}
REFERENCES = {"$ref": "#/$defs/d0", "$defs": {**TWICE, "d60": {"type": "integer"}}}
WIDE = {"anyOf": [{"items": {"const": at}} for at in range(500)]}
NULLS = {"anyOf": [{"type": "null"}] * 5_000}
LOOP = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
NESTED = {"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}}
NAMES = {"patternProperties": {"^(a+)+$": False}}
HOSTILE: dict[str, tuple[Any, Any, type[Verdict]]] = {
    "exponential regex": ({"pattern": "^(a+)+$"}, "a" * 50_000 + "b", Failed),
    "exponential name": (
        {"patternProperties": {"^(a+)+$": False}},
        {"a" * 50_000 + "b": 1},
        Passed,
    ),
    "exponential references": (REFERENCES, 1, Unchecked),
    "a circle of references": (LOOP, 1, Unchecked),
    "many alternatives, long answer": (WIDE, list(range(20_000)), Unchecked),
    "long messages": (NULLS, ["x" * 100_000], Unchecked),
    "items without an order": ({"uniqueItems": True}, [[at, {}] for at in range(20_000)], Passed),
    "deep answer": (NESTED, json.loads("[" * 900 + "]" * 900), Unchecked),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_and_answer_end(name: str) -> None:
    document, answer, expected = HOSTILE[name]

    assert isinstance(verdict(Check(schema=document), json.dumps(answer)), expected)


def test_work_is_counted_and_not_how_long_a_pause_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A garbage collection counts as the thread's own time."""
    clock = itertools.count(0, 0.03)
    monkeypatch.setattr("gateway.constraints.checking.time.thread_time", lambda: next(clock))
    check = Check({"type": "object", "properties": {"city": {"type": "string"}}})
    assert fault_of(check, '{"city": "Oslo"}', WORK // 10) is None
    assert fault_of(check, '{"city": "Oslo"}', 1) == "not checked: the check takes too long"
