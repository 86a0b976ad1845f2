"""What a small model can't go on writing for ever: members, digits, white space."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gateway.constraints.checking import fault_of
from gateway.constraints.grammars import CompileBudget
from gateway.constraints.lark import Lark
from gateway.splitter.payloads.writing import WritableTool
from gateway.terms.request import Tool
from tests.gateway.constraints.machine import Machine, of_schema, schema

TEXT = {"type": "string"}
BASE = {"type": "object", "properties": {"a": TEXT}, "required": ["a"]}
CAT = {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}}}
DOG = {"type": "object", "properties": {"kind": {"const": "dog"}, "bark": TEXT}}


class Row(msgspec.Struct, frozen=True):
    """`takes` and `refuses`, of which the latter only has members that nobody listed."""

    schema: Any
    takes: list[Any]
    refuses: list[Any]
    places: tuple[str, ...] = ("$",)


CLOSED: dict[str, Row] = {
    "an object": Row(BASE, [{"a": "x"}], [{"a": "x", "b": 1}]),
    "without a type": Row({"properties": {"a": TEXT}}, [{"a": "x"}, 3, [1]], [{"b": 1}]),
    "objects in it": Row(
        {"type": "array", "items": {"properties": {"b": BASE}}},
        [[{"b": {"a": "x"}}, {}]],
        [[{"c": 1}], [{"b": {"a": "x", "c": 1}}]],
        ("$.items.properties.b", "$.items"),
    ),
    "a definition": Row(
        {"items": {"$ref": "#/$defs/b"}, "$defs": {"b": BASE}},
        [[{"a": "x"}]],
        [[{"a": "x", "c": 1}]],
        ("$.$defs.b",),
    ),
    "itself": Row(
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        [{"a": {"a": {}}}],
        [{"a": {"b": 1}}],
    ),
    "a base": Row(
        {"$ref": "#/$defs/b", "properties": {"c": TEXT}, "$defs": {"b": BASE}},
        [{"a": "x", "c": "y"}, {"a": "x"}],
        [{"a": "x", "d": "y"}, {"c": "y"}],
    ),
    "a base that is a value, too": Row(
        {
            "allOf": [{"$ref": "#/$defs/b"}, {"properties": {"c": {"$ref": "#/$defs/b"}}}],
            "$defs": {"b": BASE},
        },
        [{"a": "x", "c": {"a": "y"}}],
        [{"a": "x", "d": 1}, {"a": "x", "c": {"a": "y", "c": 1}}],
        ("$", "$.$defs.b"),
    ),
    "a reference wrapped for its description": Row(
        {"allOf": [{"$ref": "#/$defs/b"}], "description": "…", "$defs": {"b": BASE}},
        [{"a": "x"}],
        [{"a": "x", "c": 1}],
        ("$.$defs.b",),
    ),
    "one of several": Row(
        {"anyOf": [CAT, DOG]},
        [{"kind": "cat", "lives": 9}, {"kind": "dog", "bark": "x"}],
        [{"kind": "cat", "bark": "x"}, {"kind": "dog", "tail": 1}],
        ("$.anyOf[0]", "$.anyOf[1]"),
    ),
    "one of several, and what all have": Row(
        {"type": "object", "properties": {"a": TEXT}, "anyOf": [CAT, DOG]},
        [{"a": "x", "kind": "cat", "lives": 9}],
        [{"a": "x", "kind": "cat", "tail": 1}],
    ),
    "a condition": Row(
        {**BASE, "if": {"required": ["b"]}, "then": {"properties": {"c": TEXT}}},
        [{"a": "x", "b": 1, "c": "y"}],
        [{"a": "x", "d": 1}],
    ),
    "what is required and no property": Row(
        {"type": "object", "properties": {"a": TEXT}, "required": ["b"]},
        [{"b": 1}],
        [{"b": 1, "c": 1}],
    ),
    "names by a pattern": Row(
        {"type": "object", "properties": {"a": TEXT}, "patternProperties": {"^x-": TEXT}},
        [{"a": "x", "x-b": "y"}],
        [{"a": "x", "y": "y"}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CLOSED)
def test_an_object_has_no_members_that_its_schema_doesnt_list(name: str) -> None:
    row = CLOSED[name]
    made = schema(row.schema)
    machine = Machine(made.text)

    assert [value for value in row.takes if not machine.takes(json.dumps(value))] == []
    assert [value for value in row.refuses if machine.takes(json.dumps(value))] == []
    assert {each.place for each in made.closed} == set(row.places)


OPEN: list[tuple[Any, Any]] = [
    ({"type": "object"}, {"b": 1}),
    ({"type": "object", "required": ["a"]}, {"a": 1, "b": 1}),
    ({**BASE, "additionalProperties": True}, {"a": "x", "b": 1}),
    ({**BASE, "additionalProperties": {"type": "null"}}, {"a": "x", "b": None}),
    ({**BASE, "unevaluatedProperties": True}, {"a": "x", "b": 1}),
    ({"allOf": [BASE, {"additionalProperties": True}]}, {"a": "x", "b": 1}),
    ({"anyOf": [CAT, DOG], "unevaluatedProperties": True}, {"kind": "cat", "tail": 1}),
    ({"type": "object", "properties": {"a": TEXT}, "minProperties": 2}, {"a": "x", "b": 1}),
    ({"properties": {"a": TEXT}, "enum": [{"b": 1}]}, {"b": 1}),
    ({"allOf": [True]}, {"b": 1}),
]


@pytest.mark.parametrize(("document", "value"), OPEN)
def test_who_wants_further_members_has_them(document: Any, value: Any) -> None:
    made = schema(document)

    assert Machine(made.text).takes(json.dumps(value))
    assert made.closed == ()


def test_a_writer_who_closes_it_is_told_nothing() -> None:
    assert schema({**BASE, "additionalProperties": False}, strict=True).closed == ()


def test_what_is_closed_enforces_that_nothing_is_unevaluated() -> None:
    made = schema({"allOf": [BASE], "unevaluatedProperties": False}, strict=True)

    assert (made.relaxed, made.closed) == ((), ())
    assert not Machine(made.text).takes('{"a": "x", "b": 1}')


NUMBERS: list[tuple[Any, list[str], list[str]]] = [
    ({"type": "integer"}, ["0", "-12", "9" * 16], ["9" * 17, "-" + "9" * 17]),
    ({"type": "integer", "minimum": 3}, ["3", "9" * 16], ["-", "9" * 17]),
    ({"type": "integer", "minimum": 10**17}, ["1" + "0" * 17], ["-"]),
    ({"type": "number"}, ["-0.5", "3.1415926535", "9" * 16], ["9" * 17, "0.1" + "0" * 16]),
    ({"type": ["number", "null"]}, ["null", "0.25"], ["0." + "3" * 17]),
    ({"type": "number", "multipleOf": 0.25}, ["0.75"], ["0.3", "0.75" + "0" * 16]),
    ({"anyOf": [{"type": "number"}, {"type": "null"}]}, ["null", "1.5"], ["1" * 17]),
    ({"oneOf": [{"type": "number"}, {"type": "string"}]}, ['"x"', "1.5"], ["1" * 17]),
    ({"allOf": [{"type": "integer"}, {"minimum": 0}]}, ["0"], ["1" * 17]),
    ({"enum": [1e17, 1]}, ["1"], []),
    (True, ["1.5", "[1, {}]", '{"a": [2]}'], ["1" * 17, f"[{'1' * 17}]", f'{{"a": {"1" * 17}}}']),
    ({"type": "object"}, ['{"a": {"b": [1.5]}}'], [f'{{"a": {{"b": [{"1" * 17}]}}}}']),
    ({"type": "array"}, ['[1, "x"]'], [f"[{'1' * 17}]"]),
]


@pytest.mark.parametrize(("document", "taken", "refused"), NUMBERS)
def test_a_number_has_at_most_sixteen_digits(
    document: Any, taken: list[str], refused: list[str]
) -> None:
    machine = of_schema(document)

    assert [text for text in taken if not machine.takes(text)] == []
    assert [text for text in refused if machine.begins(text)] == []


def test_hundreds_of_numbers_with_limits_of_their_own_are_taken() -> None:
    limited = {f"n{at}": {"type": "integer", "minimum": at} for at in range(300)}

    assert of_schema({"properties": limited}).takes('{"n7": 7}')


def test_hundreds_of_numbers_cost_what_one_does() -> None:
    plain = {f"n{at}": {"type": "integer"} for at in range(600)}

    assert not of_schema({"properties": plain}).begins('{"n7": ' + "1" * 17)


OF_ALL = {
    "type": "object",
    "properties": {
        "a": TEXT,
        "b": {"type": "array", "items": {"type": "integer"}},
        "c": BASE,
        "d": {"allOf": [{"properties": {"e": {"minLength": 1}}}, {"properties": {"e": TEXT}}]},
    },
}  # `d` is left to llguidance


def answer(document: Any) -> Machine:
    return of_schema(document)


def arguments(document: Any) -> Machine:
    """A call's, as JSON families write them."""
    lark = Lark({})
    tool = WritableTool(Tool(name="t", parameters=document), CompileBudget())
    return Machine(json.dumps({"grammars": [{"lark_grammar": lark.written(tool.json(lark))}]}))


@pytest.mark.parametrize("machine", [answer, arguments])
def test_white_space_ends(machine: Callable[[Any], Machine]) -> None:
    """Wherever a model stands, it isn't let write white space for ever."""
    taking = machine(OF_ALL)
    whole = json.dumps({"a": "x", "b": [1, 2], "c": {"a": "y"}, "d": {"e": "z"}}, indent=2)
    assert taking.takes(whole)
    outside = [at for at in range(len(whole)) if whole[:at].count('"') % 2 == 0]
    for begun in (whole[:at] for at in outside):
        for run in (
            22 * "\n",
            22 * " ",
            "\n" + 22 * " ",
            "\n" + 22 * "\t",
            11 * " \n",
            11 * "\r\n",
        ):
            assert not taking.begins(begun + run), (begun, run)


@pytest.mark.parametrize("machine", [answer, arguments])
def test_all_that_json_dumps_writes_is_taken(machine: Callable[[Any], Machine]) -> None:
    taking = machine(OF_ALL)
    value = {"a": "x", "b": [1, 2], "c": {"a": "y"}, "d": {"e": "z"}}
    for layout in ({"separators": (",", ":")}, {}, {"indent": 2}, {"indent": 4}, {"indent": "\t"}):
        assert taking.takes(json.dumps(value, **layout)), layout
        assert taking.takes(json.dumps({"b": []}, **layout)), layout


EXPONENTS: list[tuple[Any, list[str], list[str]]] = [
    ({"type": "number"}, ["1e-4", "3E+5", "-1.5e10"], ["1e", "e5", "1e1234"]),
    ({"type": "number", "minimum": 0, "maximum": 1}, ["1e-4", "5.5e-1"], ["5e3", "-1e-4"]),
    ({"type": "number", "exclusiveMinimum": 0}, ["3e5", "1e-9"], ["-1e0"]),
    ({"type": ["number", "null"]}, ["1e-4", "null"], ["1e"]),
    ({"anyOf": [{"type": "number"}, {"type": "string"}]}, ["1e-4", '"1e-4"'], ["1e"]),
    ({"type": "integer"}, ["10"], ["1e1"]),
]


@pytest.mark.parametrize("machine", [answer, arguments])
@pytest.mark.parametrize(("number", "taken", "refused"), EXPONENTS)
def test_a_number_has_an_exponent_as_json_has_it(
    machine: Callable[[Any], Machine], number: Any, taken: list[str], refused: list[str]
) -> None:
    taking = machine({"type": "object", "properties": {"n": number}, "required": ["n"]})

    assert [text for text in taken if not taking.takes(f'{{"n": {text}}}')] == []
    assert [text for text in refused if taking.takes(f'{{"n": {text}}}')] == []


ESCAPED = [
    ({"maxLength": 2}, [r"\u00e9x", r"\ud83d\ude00x", r"\n\/", "é😀"], [r"\u00e9xy", r"\ud83dx"]),
    ({"minLength": 2}, [r"\ud83d\ude00x"], [r"\ud83d\ude00", r"\ude00x"]),
    ({}, [r"\u00e9\ud83d\ude00\u0007"], [r"\ud83d", r"\x"]),
    ({"pattern": "[aeiou]"}, [r"a\u0007", "é a"], ["xyz"]),
]


@pytest.mark.parametrize("machine", [answer, arguments])
@pytest.mark.parametrize(("bounds", "taken", "refused"), ESCAPED)
def test_an_escape_stays_its_character_and_counts_as_one(
    machine: Callable[[Any], Machine], bounds: Any, taken: list[str], refused: list[str]
) -> None:
    taking = machine({"type": "object", "properties": {"t": {"type": "string", **bounds}}})

    assert [text for text in taken if not taking.takes(f'{{"t": "{text}"}}')] == []
    assert [text for text in refused if taking.takes(f'{{"t": "{text}"}}')] == []


@pytest.mark.parametrize("machine", [answer, arguments])
@pytest.mark.parametrize(("fewest", "most"), [(0, 255), (1, 256), (300, 511), (5, 65_535)])
def test_characters_are_counted_however_many(
    machine: Callable[[Any], Machine], fewest: int, most: int
) -> None:
    bounded = {"type": "string", "minLength": fewest, "maxLength": most}
    taking = machine({"type": "object", "properties": {"t": bounded}})

    for count in {0, fewest - 1, fewest, 255, 256, 257, 512, most - 1, most, most + 1} - {-1}:
        taken = taking.takes(f'{{"t": "{count * "é"}"}}')
        assert taken == (fewest <= count <= most), count


LISTED: list[tuple[Any, list[str], list[str]]] = [
    (
        {"type": "integer", "enum": [0, 1, 2.0, 2.5, "0", True]},
        ["0", "1", "2.0"],
        ["2.5", '"0"', "true"],
    ),
    ({"type": "boolean", "enum": [True, 1]}, ["true"], ["1", "false"]),
    ({"type": ["string", "null"], "enum": ["a", None, 3]}, ['"a"', "null"], ["3"]),
    ({"enum": [0, False, [1]], "minItems": 0}, ["0", "false", "[1]"], ["1"]),
]


@pytest.mark.parametrize(("document", "taken", "refused"), LISTED)
def test_of_listed_values_those_of_the_type_are_taken(
    document: Any, taken: list[str], refused: list[str]
) -> None:
    taking = answer({"type": "object", "properties": {"v": document}})

    assert [text for text in taken if not taking.takes(f'{{"v": {text}}}')] == []
    assert [text for text in refused if taking.takes(f'{{"v": {text}}}')] == []


def test_schemas_in_schemas_are_followed_however_deep() -> None:
    document: Any = True
    for _ in range(30):
        document = {"allOf": [document, {"minLength": 1}]}

    assert answer({"properties": {"v": document}}).takes('{"v": "x"}')


def test_members_of_an_answer_come_as_listed_and_those_of_a_call_in_any_order() -> None:
    document = {"type": "object", "properties": {"why": TEXT, "yes": TEXT, "no": TEXT}}
    listed, otherwise = '{"why": "x", "no": "y"}', '{"no": "y", "why": "x"}'

    assert (answer(document).takes(listed), answer(document).takes(otherwise)) == (True, False)
    assert arguments(document).takes(listed)
    assert arguments(document).takes(otherwise)


def test_an_answer_is_laid_out_as_models_were_trained_to_or_not_at_all() -> None:
    machine = of_schema({"properties": {"a": TEXT, "b": {"properties": {"c": {}}}}})
    value = {"a": "x", "b": {"c": [1, 2]}}

    for layout in ({"separators": (",", ":")}, {}, {"indent": 2}, {"indent": 4}, {"indent": "\t"}):
        assert machine.takes(json.dumps(value, **layout)), layout
    for text in ("{\n\n", "{ ", '{"a" ', "\n", '{"a": "x"}\n', "{\n" + 21 * " "):
        assert not machine.begins(text), text


def test_no_key_comes_twice() -> None:
    machine = of_schema({"properties": {"a": TEXT, "b": TEXT}})

    assert not machine.begins('{"a": "x", "a"')
    assert not machine.begins('{"b": "x", "a"')


def test_a_key_that_comes_twice_among_free_ones_is_found_afterwards() -> None:
    check = schema({"type": "object"}).check
    assert check is not None

    assert fault_of(check, '{"a": 1, "b": {"a": 2}}') is None
    twice = fault_of(check, '{"a": 1, "b": {"c": 2, "c": 3}}')
    assert twice == "the name 'c' comes twice in an object"
