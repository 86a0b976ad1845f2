"""Free text in which markers begin constrained parts."""

import json
from typing import Any

import pytest

from backends.contract.conversation import StructuralTags
from gateway.constraints.compiling import grammar_of
from gateway.terms.errors import InvalidRequest
from tests.gateway.constraints.machine import Machine

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
JSON = {"type": "json_schema", "json_schema": CITY}
WEATHER = {"type": "tag", "begin": "<f=weather>", "content": JSON, "end": "</f>"}
COUNT = {
    "type": "tag",
    "begin": "<f=count>",
    "content": {"type": "regex", "pattern": "[0-9]+"},
    "end": ["</f>", "<end>"],
}
TRIGGERED = {"type": "triggered_tags", "triggers": ["<f="], "tags": [WEATHER, COUNT]}
SEPARATED = {"type": "tags_with_separator", "separator": ",", "tags": [WEATHER, COUNT]}
CALL = '<f=weather>{"city": "Bonn"}</f>'
ANY = {"type": "any_text"}
A = {"type": "const_string", "value": "a"}


def tags(request: Any) -> StructuralTags:
    return StructuralTags(request=json.dumps({"type": "structural_tag", **request}).encode())


def of(format: Any) -> Machine:
    return Machine(grammar_of(tags({"format": format})).text)


FORMATS: list[tuple[Any, list[str], list[str]]] = [
    (A, ["a"], ["", "aa"]),
    (ANY, ["", "a\nb"], []),
    ({"type": "any_text", "excludes": ["no", "<"]}, ["", "n", "yes"], ["no", "a no b", "<"]),
    (JSON, ['{"city": ""}'], ["{}", "x"]),
    ({"type": "grammar", "grammar": 'root ::= "x"+'}, ["x", "xx"], ["", "y"]),
    ({"type": "sequence", "elements": [A, JSON]}, ['a{"city":""}'], ["a"]),
    ({"type": "sequence", "elements": [ANY, A, A]}, ["aa", "xaa"], ["xa", "xaaa", "aba"]),
    ({"type": "sequence", "elements": [ANY, A]}, ["a", "xa"], ["xaa"]),
    ({"type": "or", "elements": [A, JSON]}, ["a", '{"city":""}'], [""]),
    ({"type": "optional", "content": A}, ["", "a"], ["aa"]),
    ({"type": "plus", "content": A}, ["a", "aaa"], [""]),
    ({"type": "star", "content": A}, ["", "aaa"], ["b"]),
    ({"type": "repeat", "content": A, "min": 1, "max": 2}, ["a", "aa"], ["", "aaa"]),
    ({"type": "repeat", "content": A, "min": 2, "max": -1}, ["aa", "aaaa"], ["a"]),
    (COUNT, ["<f=count>12</f>", "<f=count>1<end>"], ["<f=count></f>", "<f=count>1"]),
    (
        {"type": "tag", "begin": "<t>", "content": ANY, "end": "</t>"},
        ["<t></t>", "<t>a</b></t>"],
        ["<t>", "<t></t></t>", "<t></t>a"],
    ),
    (TRIGGERED, ["", "hi", f"hi {CALL}", f"{CALL}{CALL} x"], ["<f=", "<f=zoo>", "<f=weather>{}"]),
    ({**TRIGGERED, "at_least_one": True}, [CALL, f"{CALL} x {CALL}"], ["", f"x{CALL}"]),
    ({**TRIGGERED, "stop_after_first": True}, ["x", f"x{CALL}"], [f"{CALL}x"]),
    (
        {**TRIGGERED, "at_least_one": True, "stop_after_first": True},
        [CALL, "<f=count>1<end>"],
        ["", f"x{CALL}", f"{CALL}x"],
    ),
    ({**TRIGGERED, "excludes": ["no"]}, ["yes", f"yes{CALL}"], ["no", f"no {CALL}", f"{CALL}no"]),
    (
        {"type": "tag", "begin": "<t>", "content": TRIGGERED, "end": "</t>"},
        ["<t></t>", f"<t>x{CALL}y</t>"],
        [f"<t>x{CALL}y", "<t></t>x"],
    ),
    (SEPARATED, ["", CALL, f"{CALL},<f=count>1</f>"], [f"{CALL}{CALL}", f"{CALL},", "x"]),
    ({**SEPARATED, "at_least_one": True}, [CALL, f"{CALL},{CALL}"], [""]),
    ({**SEPARATED, "stop_after_first": True}, ["", CALL], [f"{CALL},{CALL}"]),
]


@pytest.mark.parametrize(("format", "taken", "refused"), FORMATS)
def test_a_format_takes_what_it_means(format: Any, taken: list[str], refused: list[str]) -> None:
    made = of(format)

    assert [text for text in taken if not made.takes(text)] == []
    assert [text for text in refused if made.takes(text)] == []


def test_the_older_form_means_the_same() -> None:
    structure = {"begin": "<f=weather>", "schema": CITY, "end": "</f>"}
    made = Machine(grammar_of(tags({"structures": [structure], "triggers": ["<f="]})).text)

    assert made.takes(f"hi {CALL} and {CALL}")
    assert not made.takes("hi <f=weather>{}</f>")


def test_what_a_schema_inside_relaxes_is_named_and_not_checked() -> None:
    unique = {"type": "json_schema", "json_schema": {"type": "array", "uniqueItems": True}}
    (note,) = grammar_of(tags({"format": unique})).relaxed

    assert (note.keyword, note.checked) == ("uniqueItems", False)


WRONG: list[tuple[Any, str]] = [
    ({"format": {"type": "token", "token": 3}}, "Invalid value 'token' - at `\\$.format.type`"),
    ({}, "missing required field `format`"),
    ({"format": {**JSON, "style": "qwen_xml"}}, "style 'qwen_xml' is not taken"),
    ({"format": {"type": "sequence", "elements": [ANY, JSON]}}, "free text must come last"),
    ({"format": {"type": "star", "content": ANY}}, "free text must come last"),
    ({"format": {"type": "or", "elements": []}}, "is empty"),
    ({"format": {**TRIGGERED, "triggers": ["<g="]}}, "no trigger begins '<f=weather>'"),
    ({"format": {"type": "repeat", "content": A, "min": 2, "max": 1}}, "min is not from 0 to max"),
    ({"format": {"type": "json_schema", "json_schema": 3}}, "a schema is an object"),
]


@pytest.mark.parametrize(("request_", "message"), WRONG)
def test_what_is_wrong_names_the_field(request_: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        grammar_of(tags(request_))

    assert caught.value.param == "structural_tag"
