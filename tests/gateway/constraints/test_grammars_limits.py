"""Each limit refuses what is beyond it, and what is just within is compiled."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from backends.contract.conversation import (
    Choices,
    Grammar,
    JsonSchema,
    Regex,
    Shape,
    StructuralTags,
)
from gateway.constraints import grammars
from gateway.constraints.checking import fault_of
from gateway.constraints.compiling import grammar_of
from gateway.constraints.grammars import CompileBudget, Limit
from gateway.constraints.json_schema import carried_schema
from gateway.terms.errors import InvalidRequest

TEXT = {"type": "string"}


def of(document: Any) -> Shape:
    return JsonSchema(schema=json.dumps(document).encode(), field="field")


def nested(levels: int) -> Any:
    return {"items": nested(levels - 1)} if levels > 0 else {}


def chain(length: int) -> Any:
    """A definition in a definition in a definition: as deep as they are many."""
    links = {f"d{at}": {"items": {"$ref": f"#/$defs/d{at + 1}"}} for at in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{length}": TEXT}}


def definitions(amount: int) -> Any:
    named: dict[str, Any] = {f"d{at}": {} for at in range(amount)}
    return {"prefixItems": [{"$ref": f"#/$defs/{name}"} for name in named], "$defs": named}


def properties(amount: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{at}": TEXT for at in range(amount)}}


def patterns(amount: int) -> Any:
    return {"type": "object", "patternProperties": {f"^{at}-": TEXT for at in range(amount)}}


def together(amount: int) -> Any:
    return {"allOf": [{"anyOf": [properties(3), properties(4)]} for _ in range(amount)]}


def repeated(amount: int) -> Shape:
    content = {"type": "const_string", "value": "a"}
    return tags({"type": "repeat", "min": 0, "max": amount, "content": content})


def tagged(amount: int) -> Shape:
    content = {"type": "const_string", "value": "a"}
    each = [
        {"type": "tag", "begin": f"<{at}>", "content": content, "end": ""} for at in range(amount)
    ]
    return tags({"type": "triggered_tags", "triggers": ["<"], "tags": each})


def tags(format: Any) -> Shape:
    return StructuralTags(request=json.dumps({"format": format}).encode(), field="field")


def gbnf(text: str) -> Shape:
    return Grammar(text=text, field="field")


def choices(*texts: str) -> Shape:
    return Choices(texts=texts, field="field")


def gbnf_rules(amount: int) -> Shape:
    return gbnf("".join(f'r{at} ::= "a"\n' for at in range(amount - 1)) + 'root ::= "a"')


def long_choices(length: int) -> Shape:
    """Of 4,096 characters, and one of what is left."""
    whole, rest = divmod(length, 4_096)
    return choices(*(f"{at:04096}" for at in range(whole)), *["a" * rest][: bool(rest)])


AT: dict[str, Callable[[int], Shape]] = {
    "REGEX_LENGTH": lambda n: Regex(pattern="a" * n, field="field"),
    "GRAMMAR_LENGTH": lambda n: gbnf('start: "a"'.ljust(n)),
    "GRAMMAR_LINES": lambda n: gbnf('start: r0\nr0: "a"\n' + "# :\n" * (n - 2)),
    "GRAMMAR_RULES": gbnf_rules,
    "GROUP_DEPTH": lambda n: gbnf("root ::= " + "(" * n + '"a"' + ")" * n),
    "CHOICES": lambda n: choices(*map(str, range(n))),
    "CHOICE_LENGTH": lambda n: choices("a" * n),
    "CHOICES_LENGTH": long_choices,
    "TAGS": tagged,
    "REPEATS": repeated,
    "SCHEMA_BYTES": lambda n: JsonSchema(schema=b"{}".ljust(n), field="field"),
    "SCHEMA_NODES": lambda n: of({"enum": list(range(n - 2))}),
    "SCHEMA_DEPTH": lambda n: of(nested(n)),
    "SCHEMA_DEFINITIONS": lambda n: of(definitions(n)),
    "SCHEMA_LEVELS": lambda n: of(chain((n - 1) // 2)),
    "SCHEMA_DATA": lambda n: of({"enum": [[0] * (n // 2), [1] * (n - n // 2)]}),
    "SCHEMA_EFFORT": lambda n: of(properties(int(n**0.5))),
}


def test_every_limit_is_tested() -> None:
    assert AT.keys() == {name for name, each in vars(grammars).items() if isinstance(each, Limit)}


@pytest.mark.parametrize("name", AT)
def test_a_limit_holds(name: str) -> None:
    limit: Limit = getattr(grammars, name)
    beyond = limit.most + max(2, limit.most // 100)

    grammar_of(AT[name](limit.most))
    with pytest.raises(
        InvalidRequest, match=rf"^field: at most {limit.most:,} {limit.what}"
    ) as caught:
        grammar_of(AT[name](beyond))

    assert caught.value.param == "field"


CIRCLE = {"a": {"items": {"$ref": "#/$defs/b"}}, "b": {"items": {"$ref": "#/$defs/a"}}}
MULTIPLES = [{"type": "integer", "multipleOf": at} for at in (7_919, 104_729, 1_299_709)]
ONE_OF = {"oneOf": [{"minimum": 1}, {"maximum": 3}]}
DEEP = json.loads("[" * 50 + "]" * 50)
REFUSED: dict[str, Any] = {
    "a chain of references": chain(3_000),
    "many regexes for names": patterns(300),
    "the same many times": {"allOf": [{"$ref": "#/$defs/a"}] * 200, "$defs": {"a": patterns(30)}},
    "alternatives together": together(12),
    "all properties many times": {"anyOf": [{}] * 50, **properties(1_000)},
    "deep values": {"enum": [DEEP] * 150},
}
RELAXED: dict[str, Any] = {
    "counted properties": {**properties(1_000), "minProperties": 1, "additionalProperties": False},
    "multiples": {"allOf": MULTIPLES},
    "a long multiple": {"type": "number", "multipleOf": 0.1234567},
    "many oneOfs": {"properties": {f"p{at}": ONE_OF for at in range(100)}},
    "many repeats": {"pattern": "^((a{1,1000}b){1,1000}c){1,1000}$"},
    "a long text by a pattern": {"pattern": "^[a-z]*$", "maxLength": 4_000},
    "a regex that says nothing": {"pattern": "(?<!a)b"},
}
CARRIED: dict[str, Any] = {
    "a circle of references": {"$ref": "#/$defs/a", "$defs": CIRCLE},
    "nested repeats": {"pattern": "^((a{1,100}b){1,100}c){1,100}$"},
    "a long text": {"maxLength": 65_535},
    "long texts together": {"properties": {f"p{at}": {"maxLength": 5_000 + at} for at in range(9)}},
    "a text by a pattern": {"pattern": "^[a-z]*$", "maxLength": 2_000},
    "an exponential regex": {"pattern": "^(a+)+$"},
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_schema_that_would_cost_too_much_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^field: ") as caught:
        grammar_of(of(REFUSED[name]))

    assert caught.value.param == "field"


@pytest.mark.parametrize("at", ["root", "definition"])
def test_a_name_that_can_not_be_written_is_refused(at: str) -> None:
    named = {"type": "object", "properties": {"a\x7f": {"type": "null"}}}
    whole = named if at == "root" else {"$ref": "#/$defs/a", "$defs": {"a": named}}
    with pytest.raises(InvalidRequest, match=r"^field: a property whose name holds U\+007F"):
        grammar_of(of(whole))


@pytest.mark.parametrize("name", RELAXED)
def test_a_keyword_that_would_cost_too_much_is_relaxed(name: str) -> None:
    assert grammar_of(of(RELAXED[name])).relaxed


def test_a_count_of_a_pattern_may_have_any_number_of_digits() -> None:
    pattern = f"^a{{0,{'9' * 5000}}}$"
    made = carried_schema(
        JsonSchema(schema=msgspec.json.encode({**TEXT, "pattern": pattern}), field="f")
    )
    assert [each.keyword for each in made.relaxed] == ["pattern"]
    assert (fault_of(made.check, '"aaa"') or "").startswith("not checked")


def test_an_unending_count_of_a_pattern_takes_no_time() -> None:
    schema = msgspec.json.encode({**TEXT, "pattern": "{" + "9" * 200_000})
    made = carried_schema(JsonSchema(schema=schema, field="field"))
    assert [each.keyword for each in made.relaxed] == ["pattern"]


def test_a_long_text_is_checked_even_where_all_is_to_be_enforced() -> None:
    shape = of({"type": "string", "maxLength": 4_000})
    assert isinstance(shape, JsonSchema)
    grammar = grammar_of(msgspec.structs.replace(shape, strict=True))
    assert grammar.check is not None
    assert fault_of(grammar.check, json.dumps("x" * 4_000)) is None
    assert fault_of(grammar.check, json.dumps("x" * 4_001)) == '$: "maxLength" is not satisfied'


@pytest.mark.parametrize("name", CARRIED)
def test_what_only_looks_costly_is_carried(name: str) -> None:
    assert grammar_of(of(CARRIED[name])).relaxed == ()


def rules(amount: int, rule: str, last: str) -> str:
    """A Lark grammar in which each rule refers to the next."""
    lines = (rule.format(here=at, next=at + 1) for at in range(amount))
    return "\n".join(
        ("start: " + last.format(here=0).partition(":")[0], *lines, last.format(here=amount))
    )


GRAMMARS = {
    "terminals doubled": rules(60, "R{here}: R{next} R{next}", 'R{here}: "z"'),
    "a chain of rules": rules(3_000, 'r{here}: "a" r{next}', 'r{here}: "z"'),
    "deep groups": "start: " + "(" * 30_000 + '"a"' + ")" * 30_000,
    "a schema inside": 'start: %json {"minProperties": 1}',
    "unending escapes": "root ::= " + "[\\" * 20_000,
    "unending literals": "root ::= " + '"\\' * 20_000,
    "unending strings": "start: " + '"\\' * 30_000,
    "unending regexes": "start: " + "/\\" * 30_000,
    "an unending count": "start: {" + " " * 60_000,
    "a circle of rules": "root ::= a\na ::= b\nb ::= a\n",
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_a_hostile_grammar_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        grammar_of(gbnf(GRAMMARS[name]))

    assert caught.value.param == "field"


def test_regexes_are_compiled_while_the_allowance_lasts() -> None:
    regexes = {f"p{at}": {"format": "uri", "maxLength": at + 10} for at in range(1_000)}
    shape = of({"properties": regexes})
    assert isinstance(shape, JsonSchema)

    with pytest.raises(InvalidRequest, match=r"^field: takes too long to compile"):
        carried_schema(shape, CompileBudget(0.002))
