"""Each shape takes what it means and nothing else."""

import json

import pytest

from backends.contract.conversation import Choices, Grammar, JsonObject, JsonSchema, Regex, Shape
from gateway.constraints.compiling import grammar_of
from gateway.terms.errors import InvalidRequest
from tests.gateway.constraints.machine import Machine, machine

GBNF = 'root ::= greeting " " [a-z]+\ngreeting ::= "hello" | "good day"\n'
LARK = 'start: greeting " " /[a-z]+/\ngreeting: "hello" | "good day"\n'
NUMBERED = r'root ::= "\x41\u00e9\U0001F600" [\x61-\u0063]'
TEXTS = ('a "quote"', "new\nline", "é😀", "back\\slash", "a/b", "\x7f\x00", "yes", "yes or no")
PARTLY = b'{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'

TAKEN: list[tuple[Shape, list[str], list[str]]] = [
    (JsonObject(), ["{}", '{"a": [1, {"b":null}]}'], ["[]", "1", "{ }", '{"a"  : 1}']),
    (JsonSchema(schema=PARTLY), ['{"a": 1}'], ["{}", '{"a": "1"}', '{"a":1, "b": ""}']),
    (JsonSchema(schema=b"true"), ["1", "[]"], ["x", ""]),
    (Regex(pattern=r"\d+/[a-z]?"), ["1/", "42/x"], ["/", "x1/", "١/"]),
    (Regex(pattern=r"^(yes|no)$"), ["yes", "no"], ["yes!", "maybe"]),
    (Grammar(text=GBNF), ["hello world", "good day x"], ["hello", "hello World"]),
    (Grammar(text=LARK), ["hello world", "good day x"], ["hello", "hello World"]),
    (Grammar(text=NUMBERED), ["Aé😀a", "Aé😀c"], ["Aé😀d"]),
    (Grammar(text='root ::= "." . "\t"'), [".x\t", ".\n\t"], ["xx\t", ". "]),
    (Choices(texts=TEXTS), list(TEXTS), ["", "yes or", "no"]),
]


@pytest.mark.parametrize(("shape", "taken", "refused"), TAKEN)
def test_a_shape_takes_what_it_means(shape: Shape, taken: list[str], refused: list[str]) -> None:
    made = machine(shape)

    assert [text for text in taken if not made.takes(text)] == []
    assert [text for text in refused if made.takes(text)] == []


@pytest.mark.parametrize(("shape", "taken", "refused"), TAKEN)
def test_another_grammar_can_refer_to_it(
    shape: Shape, taken: list[str], refused: list[str]
) -> None:
    inner = grammar_of(shape, "inner")
    around = {"name": "around", "lark_grammar": 'start: "<a>" @inner "</a>"'}
    made = Machine(json.dumps({"grammars": [around, *inner.entries]}))

    assert [text for text in taken if not made.takes(f"<a>{text}</a>")] == []
    assert [text for text in refused if made.takes(f"<a>{text}</a>")] == []


WRONG: list[tuple[Shape, str]] = [
    (JsonSchema(schema=b"{", field="guided_json"), "guided_json: not a JSON schema"),
    (JsonSchema(schema=b'"text"', field="guided_json"), "guided_json: \\$: a schema is an object"),
    (JsonSchema(schema=b"false"), "no JSON satisfies it"),
    (JsonSchema(schema=b'{"enum": [1], "type": "string"}'), "no JSON satisfies it"),
    (Regex(pattern="(", field="guided_regex"), "guided_regex: .*unclosed group"),
    (Regex(pattern=r"(a)\1"), "regex_pattern: .*backreferences"),
    (Grammar(text='root ::= "a', field="grammar_string"), "grammar_string: not a GBNF grammar"),
    (Grammar(text="root ::= other\n"), "not a GBNF grammar: Rule 'other' not found"),
    (Grammar(text="start: other"), "grammar: .*other"),
    (Choices(texts=()), "guided_choice: at least one"),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "message"), WRONG)
def test_what_is_wrong_names_the_field(shape: Shape, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        grammar_of(shape)

    assert caught.value.param == shape.field


def test_a_schema_that_is_too_large_for_our_words_says_what_is_forbidden_besides() -> None:
    """llguidance's own words know no exponents in numbers within bounds."""

    def relaxed(size: int) -> list[str]:
        parts = {
            f"p{i}": {"properties": {f"q{i}_{j}": True for j in range(size)}} for i in range(size)
        }
        whole = {"properties": {**parts, "n": {"type": "number", "minimum": 0}}}
        grammar = grammar_of(JsonSchema(schema=json.dumps(whole).encode(), field="format"))
        return [f"{each.place}.{each.keyword}" for each in grammar.relaxed]

    assert relaxed(8) == []
    assert relaxed(80) == ["$.exponents"]
