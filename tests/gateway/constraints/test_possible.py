"""What nothing with an end satisfies is refused or left out; what is too wide is relaxed, said."""

import json
import random
from typing import Any

import pytest
from llguidance import LLMatcher

from backends.contract.conversation import Grammar, JsonSchema, Regex, Shape
from backends.contract.grammar_limits import parser_limits
from gateway.constraints.compiling import grammar_of
from gateway.constraints.grammars import ShapeGrammar, byte_tokenizer
from gateway.terms.errors import InvalidRequest

SELF = {"$ref": "#/$defs/a"}
LISTS = {"type": "array", "minItems": 1, "items": SELF}
NODE: dict[str, Any] = {"type": "object", "properties": {"next": SELF}, "required": ["next"]}
NULL = {"type": "null"}


def of(schema: Any, *, strict: bool = False) -> ShapeGrammar:
    return grammar_of(JsonSchema(schema=json.dumps(schema).encode(), strict=strict, field="schema"))


def wide(count: int) -> dict[str, Any]:
    names = {f"property_{number}": {"type": "string"} for number in range(count)}
    return {"type": "object", "properties": names}


def texts(grammar: ShapeGrammar, steps: int = 300) -> None:
    """Some random ways through it: none comes to a place where nothing goes on."""
    for seed in range(5):
        rng = random.Random(seed)
        matcher = LLMatcher(byte_tokenizer(), grammar.text, log_level=0, limits=parser_limits())
        for _ in range(steps):
            bits = int.from_bytes(matcher.compute_bitmask(), "little")
            assert not matcher.is_error(), matcher.get_error()
            if matcher.is_stopped():
                break
            allowed = [token for token in range(byte_tokenizer().vocab_size) if bits >> token & 1]
            assert allowed
            assert matcher.consume_token(rng.choice(allowed)), matcher.get_error()


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}, "required": ["a"]},
        {**SELF, "$defs": {"a": {"$ref": "#/$defs/b"}, "b": SELF}},
        {**SELF, "$defs": {"a": {"anyOf": [SELF, {"allOf": [SELF]}]}}},
        {**SELF, "$defs": {"a": LISTS}},
        {**SELF, "$defs": {"a": NODE}},
        {"type": "array", "prefixItems": [SELF], "minItems": 1, "$defs": {"a": NODE}},
        {"oneOf": [SELF, {"type": "array", "minItems": 2, "items": SELF}], "$defs": {"a": NODE}},
    ],
)
def test_a_schema_that_has_no_end_is_refused_by_its_field(schema: Any) -> None:
    with pytest.raises(InvalidRequest, match="schema: no ") as refused:
        of(schema)
    assert refused.value.param == "schema"


@pytest.mark.parametrize(
    "schema",
    [
        {
            "type": "object",
            "properties": {"x": SELF, "y": {"type": "string"}},
            "$defs": {"a": LISTS},
        },
        {"anyOf": [SELF, {"type": "boolean"}], "$defs": {"a": NODE}},
        {"type": "array", "items": SELF, "$defs": {"a": NODE}},
        {**SELF, "$defs": {"a": {**NODE, "required": []}}},
        {**SELF, "$defs": {"a": {"anyOf": [NODE, {"type": "null"}]}}},
        {**SELF, "$defs": {"a": {"type": ["array", "integer"], "minItems": 1, "items": SELF}}},
    ],
)
def test_a_part_that_has_no_end_is_left_out(schema: Any) -> None:
    texts(of(schema))


DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
UNIQUE = {"type": "array", "uniqueItems": True}
APART: list[Any] = [
    # Nothing that has an end satisfies what it, or what refers to it, stands in.
    {"anyOf": [NULL, {**NODE, "properties": {**NODE["properties"], "other": UNIQUE}}]},
    {"anyOf": [NULL, SELF], "$defs": {"a": {"allOf": [NODE, UNIQUE]}}},
    {
        "anyOf": [NULL, SELF],
        "$defs": {"a": {"allOf": [NODE, {"items": {"$ref": "#/$defs/b"}}]}, "b": UNIQUE},
    },
    # `then` says nothing without `if`.
    {**DRAFT_7, "type": "null", "then": SELF, "$defs": {"a": {"dependentRequired": {"a": ["b"]}}}},
]


@pytest.mark.parametrize("schema", APART)
def test_what_is_left_out_is_no_reason_to_refuse_a_strict_schema(schema: Any) -> None:
    assert of({"$defs": {"a": NODE}, **schema}, strict=True).relaxed == ()


def test_what_is_dropped_with_what_refers_to_it_is_named_once() -> None:
    (note,) = of({"patternProperties": {"^(?<=a)b": SELF}, "$defs": {"a": UNIQUE}}).relaxed

    assert note.keyword == "patternProperties"


@pytest.mark.parametrize("count", [450, 500, 1000])
def test_an_object_with_too_many_optional_properties_is_relaxed_and_said(count: int) -> None:
    for schema in (
        wide(count),
        {"type": "object", "properties": {"in": wide(count)}, "required": ["in"]},
        {"anyOf": [wide(count), {"type": "null"}]},
    ):
        grammar = of(schema)
        texts(grammar, 60)
        assert bool([each for each in grammar.relaxed if each.checked]) == (count > 490)
    if count > 490:
        with pytest.raises(InvalidRequest, match="can't be enforced"):
            of(wide(count), strict=True)


def test_many_required_properties_are_kept() -> None:
    grammar = of({**wide(600), "required": list(wide(600)["properties"])})
    assert not grammar.relaxed
    texts(grammar, 30)


def test_objects_to_choose_from_count_together() -> None:
    grammar = of({"anyOf": [wide(300), {**wide(300), "required": ["property_1"]}, wide(200)]})
    assert grammar.relaxed
    texts(grammar, 60)


DOUBLED = "\n".join(f"a{number}: a{number + 1} a{number + 1}" for number in range(40))


@pytest.mark.parametrize(
    "shape",
    [
        Grammar(text=f'start: a0\n{DOUBLED}\na40: "x"'),
        Grammar(text='start: "a"~1000000'),
        Grammar(text='start: (((("a"~100)~100)~100)~100)'),
        Grammar(text='start: ("ab"{1000}){1000}'),
        Grammar(text="start: " + " | ".join(f'"w{number}"' for number in range(5000))),
        Grammar(text='start: "x" a | "z"\na: a "y"'),
        Grammar(text='start: "x" | a\na: "q" a'),
        Grammar(text='root ::= "x" a\na ::= "q" a'),
        Grammar(text="start: " + "(" * 30_000 + '"x"' + ")" * 30_000),
        Regex(pattern="((a{100}){100}){100}"),
        Regex(pattern="a{1000000}"),
    ],
)
def test_a_grammar_that_is_too_wide_or_has_no_end_is_refused_by_its_field(shape: Shape) -> None:
    with pytest.raises(InvalidRequest) as refused:
        grammar_of(shape)
    assert refused.value.param in ("grammar", "regex_pattern")


@pytest.mark.parametrize(
    "text",
    [
        'start: "x" a\na: "q" a?',
        'start: "x" (a | "y")*\na: "(" (a|"b") ")"',
        'start: "a".."c" b\nb: "x"~2..4',
        'root ::= "(" root ")" | "x"',
        'start: item ("," item)*\nitem: NAME\n%import common.CNAME -> NAME',
    ],
)
def test_grammars_with_an_end_are_taken(text: str) -> None:
    texts(grammar_of(Grammar(text=text)))
