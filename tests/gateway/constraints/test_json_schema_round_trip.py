"""Schemas at random: what satisfies one is taken by its grammar, and what the grammar writes
satisfies it.
"""

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.constraints.checking import fault_of
from tests.gateway.constraints.machine import Machine, cases, schema

# A schema, and a value that satisfies it.
Pair = tuple[Any, Any]
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"), min_size=1, max_size=6)
SCALARS = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=8)


@st.composite
def numbers(draw: st.DrawFn) -> Pair:
    value = draw(st.integers(-(10**6), 10**6))
    limits = {
        "minimum": value - draw(st.integers(0, 99)),
        "exclusiveMaximum": value + draw(st.integers(1, 99)),
        "multipleOf": draw(st.sampled_from([each for each in (1, 2, 5, 0.5) if value % each == 0])),
    }
    return {"type": "integer", **draw(some(limits))}, value


@st.composite
def texts(draw: st.DrawFn) -> Pair:
    value = draw(st.text(max_size=12))
    limits = {
        "minLength": max(0, len(value) - draw(st.integers(0, 3))),
        "maxLength": len(value) + draw(st.integers(0, 3)),
    }
    return {"type": "string", **draw(some(limits))}, value


@st.composite
def patterned(draw: st.DrawFn) -> Pair:
    pattern = draw(st.sampled_from([r"^[a-z]+-\d{2}$", r"^(yes|no)$", r"^\w+$", "[aeiou]"]))
    return {"type": "string", "pattern": pattern}, draw(st.from_regex(pattern))


def constants() -> st.SearchStrategy[Pair]:
    many = st.lists(SCALARS, min_size=1, max_size=4)
    return many.flatmap(
        lambda listed: st.tuples(st.just({"enum": listed}), st.sampled_from(listed))
    )


def some(words: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Any of `words`, or none."""
    names = st.sets(st.sampled_from(sorted(words)))
    return names.map(lambda chosen: {name: words[name] for name in words if name in chosen})


@st.composite
def lists(draw: st.DrawFn, inner: st.SearchStrategy[Pair]) -> Pair:
    items, value = draw(inner)
    value = [value] * draw(st.integers(0, 3))
    words = {"minItems": max(0, len(value) - 1), "maxItems": len(value) + 1}
    return {"type": "array", "items": items, **draw(some(words))}, value


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Pair]) -> Pair:
    members = draw(st.dictionaries(NAMES, inner, max_size=4))
    present = [name for name in members if draw(st.booleans())]
    words = {"required": present, "additionalProperties": False}
    properties = {name: part for name, (part, _) in members.items()}
    value = {name: members[name][1] for name in present}
    return {"type": "object", "properties": properties, **draw(some(words))}, value


@st.composite
def either(draw: st.DrawFn, inner: st.SearchStrategy[Pair]) -> Pair:
    pairs = draw(st.lists(inner, min_size=1, max_size=3))
    return {"anyOf": [part for part, _ in pairs]}, draw(st.sampled_from(pairs))[1]


PAIRS = st.recursive(
    numbers() | texts() | constants(),
    lambda inner: lists(inner) | objects(inner) | either(inner),
    max_leaves=6,
)


def takes(machine: Machine, value: Any) -> bool:
    return machine.takes(json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f"))


@settings(deadline=None, max_examples=60)
@given(PAIRS)
def test_what_satisfies_a_schema_is_taken(pair: Pair) -> None:
    document, value = pair
    made = schema(document)
    assert made.check is not None

    assert made.relaxed == ()
    assert fault_of(made.check, json.dumps(value)) is None
    assert takes(Machine(made.text), value)


@settings(deadline=None, max_examples=30)
@given(patterned())
def test_a_text_that_a_regex_is_found_in_is_taken(pair: Pair) -> None:
    document, value = pair
    made = schema(document)
    assert made.check is not None

    assert takes(Machine(made.text), value) == (fault_of(made.check, json.dumps(value)) is None)


@settings(deadline=None, max_examples=50)
@given(PAIRS, st.randoms(use_true_random=False))
def test_what_a_grammar_writes_satisfies_its_schema(pair: Pair, random: Random) -> None:
    made = schema(pair[0])
    assert made.check is not None
    text = Machine(made.text).writes(random)

    assert text is None or fault_of(made.check, text) is None


@pytest.mark.slow
def test_what_grammars_of_the_field_write_satisfies_their_schemas() -> None:
    wrong = []
    for case in cases():
        made = schema(case.schema)
        assert made.check is not None
        text = None if made.relaxed else Machine(made.text).writes(Random(case.id), 400)
        fault = None if text is None else fault_of(made.check, text)
        if fault is not None and not fault.startswith(("not checked", "the name")):
            wrong.append((case.id, text))
    assert wrong == []
